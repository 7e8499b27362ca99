"""Locust as a guest in our process: its signals, its logging and its look at our command line."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from typing import TYPE_CHECKING

import gevent
import gevent.hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Ctrl-C outside `signals` reaches main(), which says so: gevent's hub must not print it too.
gevent.hub.Hub.NOT_ERROR = (*gevent.hub.Hub.NOT_ERROR, KeyboardInterrupt)


@contextlib.contextmanager
def signals(interrupt: Callable[[], None]) -> Iterator[None]:
    """Call `interrupt` on SIGINT and SIGTERM, in a greenlet of its own.

    Python's own handler would raise inside whichever greenlet happens to run, the reader's perhaps.
    """
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    watchers = [gevent.signal_handler(kind, interrupt) for kind in kinds]
    try:
        yield
    finally:
        for watcher in watchers:
            watcher.cancel()
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No chatter from Locust, and no reading of our command line by its web UI.

    Locust's page asks its own parser about sys.argv, which holds options it does not know.
    """
    locust, root, argv = logging.getLogger("locust"), logging.getLogger(), sys.argv
    level = locust.level
    locust.setLevel(logging.ERROR)
    root.addFilter(_not_cpu)
    sys.argv = argv[:1]
    try:
        yield
    finally:
        sys.argv = argv
        root.removeFilter(_not_cpu)
        locust.setLevel(level)


def _not_cpu(record: logging.LogRecord) -> bool:
    """Locust's CPU warning: the client's load is in our figures."""
    return "CPU usage above" not in record.getMessage()
