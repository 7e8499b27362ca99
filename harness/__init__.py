"""Find how many concurrent requests a vLLM deployment holds, and say how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from harness.run.run_frames import RunFrames

__all__ = ["__version__", "open_run"]

__version__ = "0.1.0"


def open_run(path: Path | str) -> RunFrames:
    """A run folder as pandas frames (docs/run-folder.md). Raises RunFolderError, MissingPackage."""
    from harness.core.extras import need_extra  # noqa: PLC0415 - `import harness` stays instant

    need_extra("pandas", "harness.open_run")
    from harness.run import run_frames as frames  # noqa: PLC0415 - as above

    return frames.open_run(path)
