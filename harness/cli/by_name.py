"""What is heavy is named as text, and imported only once all that is light has been checked.

So `--help` and a refusal answer at once, and a module that does heavy work has its imports at its
top. A test looks each name up (docs/design.md).
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def call(name: str, *arguments: Any, **options: Any) -> Any:
    """`call("harness.cli.start:start_study", wanted)`: what the function returns."""
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)(*arguments, **options)
