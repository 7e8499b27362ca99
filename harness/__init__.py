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
    """A run folder as pandas frames (docs/run-folder.md).

    Raises RunFolderError, and ConfigError where pandas is not installed.
    """
    run: RunFrames = _frames("harness.open_run").open_run(path)
    return run


def _frames(asked: str) -> Any:
    """The module that takes pandas; `import harness` stays instant."""
    from harness.core.extras import need_extra  # noqa: PLC0415 - as above

    need_extra("pandas", asked)
    return import_module("harness.run.run_frames")


def __getattr__(name: str) -> Any:
    """Import it when it is asked for, as above."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "RunFrames":
        return _frames("harness.RunFrames").RunFrames
    return getattr(import_module("harness.errors"), name)
