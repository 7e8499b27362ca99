"""npm and its registry, for tests marked `npm`."""

from __future__ import annotations

import shutil
import subprocess

PACKAGES = ("@grafana/schema@13.2.3", "typescript@7.0.2")


def npm_missing() -> str:
    """Why no package can be installed here; "" where one can."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    command = ["npm", "view", "--silent", "--fetch-retries=0", PACKAGES[1], "version"]
    asked = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return "npm's registry cannot be reached" if asked.returncode else ""
