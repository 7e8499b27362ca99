"""The metadata of installed packages read once, however often an import asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import Any


@contextmanager
def entry_points_read_once() -> Iterator[None]:
    """Let every `importlib.metadata.entry_points` in the block look into one list.

    gevent asks for plugins around each module that it patches, 25 times, and each time Python reads
    the metadata of all installed packages again: a third of the time that importing Locust takes.
    """
    before = metadata.entry_points
    read_all = cache(before)

    def look_up(**wanted: Any) -> Any:
        return read_all().select(**wanted)

    metadata.entry_points = look_up
    try:
        yield
    finally:
        metadata.entry_points = before
