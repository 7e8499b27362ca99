"""Files that the package brings: locustfiles and drills, by their names without a suffix.

In a clone they lie at its top, where a reader looks for them, and links in the package lead there.
"""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[1]


def shipped_files(folder: str) -> dict[str, Path]:
    """Those of `locustfiles` or `drills`."""
    paths = sorted((PACKAGE / folder).glob("[!_]*.*"))
    return {path.stem: path for path in paths if path.is_file()}
