"""Whether a run may be written to a folder: one rule for every command. Standard library only."""

from __future__ import annotations

from pathlib import Path

from harness.errors import RunFolderError


def check_new(folder: Path, option: str = "--out") -> None:
    """The folder is new or empty, so no run is overwritten, and has a name that lines can show.

    Raises RunFolderError, which names the option that gave it.
    """
    if not str(folder).isprintable():
        raise RunFolderError(
            f"the output folder {str(folder)!r} has a line break or another control character: "
            f"expected a name on one line; try {option} result."
        )
    try:
        is_empty = folder.is_dir() and not any(folder.iterdir())
        free = is_empty or not folder.exists()
    except OSError as error:
        raise RunFolderError(
            f"the output folder {folder} cannot be used ({error.strerror}): expected a place where "
            f"this user may write; try another {option}."
        ) from None
    if not free:
        raise RunFolderError(
            f"the output folder {folder} exists and is not an empty folder: expected a new one, "
            f"so that no earlier run is overwritten; try another {option}."
        )
