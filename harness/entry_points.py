"""What other installed packages add: the entry points of a group, by name.

[project.entry-points."vllm_harness.workloads"]
support = "my_package:SUPPORT"
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

WORKLOADS: Final = "vllm_harness.workloads"
METRICS: Final = "vllm_harness.metrics"


@cache
def entry_points_of(group: str) -> dict[str, EntryPoint]:
    """By name; nothing of them is imported."""
    if group not in _declared():
        return {}
    from importlib.metadata import entry_points  # noqa: PLC0415 - 0.1 s, and most have none

    return {point.name: point for point in entry_points(group=group)}


@cache
def _declared() -> frozenset[str]:
    """Our groups of which an installed package has an entry point."""
    found = set()
    for folder in dict.fromkeys(sys.path):
        for file in Path(folder or ".").glob("*-info/entry_points.txt"):
            text = file.read_text(errors="replace")
            found |= {group for group in (WORKLOADS, METRICS) if f"[{group}]" in text}
    return frozenset(found)


def load(group: str, name: str) -> Any:
    """The object that the entry point names. Raises ConfigError where that cannot be imported."""
    point = entry_points_of(group)[name]
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"{origin(group, name)} cannot be imported ({type(error).__name__}: {error}): expected "
            f"{point.value} to be there; try another version of that package, or remove it."
        ) from error


def origin(group: str, name: str) -> str:
    """`the entry point support of vllm_harness.workloads (package my-package 1.0)`."""
    package = entry_points_of(group)[name].dist
    whose = f" (package {package.name} {package.version})" if package is not None else ""
    return f"the entry point {name} of {group}{whose}"
