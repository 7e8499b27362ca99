"""Ctrl-C for the `locust` command: KeyboardInterrupt in its main greenlet, and once."""

from __future__ import annotations

import signal
from types import FrameType

import gevent


def interrupt_main_greenlet() -> None:
    """From now on SIGINT raises KeyboardInterrupt in the main greenlet, whichever of them runs.

    Python raises it in the one that runs. Where that one's result is awaited, each greenlet that
    waits for it fails with it in turn, and gevent tells the main greenlet of every failure: the
    second came while Locust was shutting down, and ended the process without its results.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _on_sigint)


def _on_sigint(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - as `signal` calls it
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub.parent:
        raise KeyboardInterrupt
    # Threadsafe also means that it wakes a loop that has begun to wait.
    hub.loop.run_callback_threadsafe(hub.parent.throw, KeyboardInterrupt)
