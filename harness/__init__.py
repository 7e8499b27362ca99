"""Find how many concurrent requests a vLLM deployment holds, and say how sure that is.

Public: the names below, those of `harness.locust` and of `harness.extend` (docs/api.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from harness.errors import ConfigError, HarnessError, RunFolderError
    from harness.run.run_frames import RunFrames

__all__ = [
    "ConfigError",
    "HarnessError",
    "RunFolderError",
    "RunFrames",
    "__version__",
    "open_run",
]

__version__ = "0.1.0"


def open_run(path: Path | str) -> RunFrames:
    """A run folder as pandas frames (docs/run-folder.md). Raises RunFolderError."""
    from harness.run import run_frames as frames  # noqa: PLC0415 - `import harness` stays instant

    return frames.open_run(path)


def __getattr__(name: str) -> Any:
    """Import it when it is asked for, as above."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "harness.run.run_frames" if name == "RunFrames" else "harness.errors"
    return getattr(import_module(module), name)
