"""npm and its registry, for tests marked `npm`."""

from __future__ import annotations

import shutil
import subprocess

TYPESCRIPT = "typescript@7.0.2"
GRAFANAS = ("10.4.19", "13.2.3")  # the oldest that dashboards are for, and the newest


def packages(grafana: str) -> tuple[str, str]:
    """What checks a dashboard for that Grafana."""
    return f"@grafana/schema@{grafana}", TYPESCRIPT


def npm_missing() -> str:
    """Why no package can be installed here; "" where one can."""
    if shutil.which("npm") is None:
        return "npm is not installed"
    command = ["npm", "view", "--silent", "--fetch-retries=0", TYPESCRIPT, "version"]
    asked = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return "npm's registry cannot be reached" if asked.returncode else ""
