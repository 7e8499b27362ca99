"""audit.py: known vulnerabilities of what requirements.lock pins, by pip-audit; 1 if there are any.

It asks PyPI's advisory database. Where that cannot be reached, or a mirror answers that has none,
it says so and exits with 0: a machine without a network must be able to run the checks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).parents[1] / "requirements.lock"
LIMIT_S: Final = 120
FLAGS: Final = (
    "--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off",
    "--timeout", "10",
)  # fmt: skip


def verdict(out: str, err: str) -> tuple[int, str]:
    """The exit code and the sentence for what pip-audit wrote."""
    try:
        rows = json.loads(out)["dependencies"]
    except ValueError:
        why = (err.strip().splitlines() or ["it says nothing"])[-1]
        return 0, f"dependency audit: skipped, no advisories can be had here ({why[:200]})"
    known = [row for row in rows if "vulns" in row]
    if not known:
        return 0, "dependency audit: skipped, the package index here has no advisories"
    found = [
        f"{row['name']} {row['version']}: {one['id']}, fixed in "
        f"{', '.join(one['fix_versions']) or 'no release'}"
        for row in known
        for one in row["vulns"]
    ]
    told = f"dependency audit: {len(found)} found in {len(known)} of {len(rows)} packages"
    return int(bool(found)), "\n".join([told, *found])


def main() -> int:
    """Run it; the exit code."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), *FLAGS]
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        code, told = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        code, told = verdict("", f"no answer in {LIMIT_S} s")
    print(told)
    return code


if __name__ == "__main__":
    sys.exit(main())
