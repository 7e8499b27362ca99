"""What is heavy is named as text, and imported only once all that is light has been checked.

So `--help` and a refusal answer at once, and a module that does heavy work has its imports at its
top. A test looks each name up (docs/design.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from harness.core.held_signals import signals_held


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """`call("harness.cli.start:start_study", wanted)`: what the function returns."""
    module_name, _, function = name.partition(":")
    # An exception inside an import (gevent replaces locks there, numpy and pandas catch all that
    # their parts raise) is lost, or ends in tracebacks of the import's own locks.
    with signals_held():
        entry_points = import_module("harness.core.entry_points")  # is heavy for `--help`, too
        with entry_points.entry_points_read_once():
            module = import_module(module_name)
    return getattr(module, function)(*arguments, **options)
