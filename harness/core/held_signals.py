"""Ctrl-C and SIGTERM that wait until a step that must not be left half-way is over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the block is left.

    Python runs signal handlers in the main thread only, so other threads have nothing to hold.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def remember(number: int, _frame: object) -> None:
        came.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, remember)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
