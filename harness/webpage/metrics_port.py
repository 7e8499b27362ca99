"""A run's metrics on a port of their own, served by a thread that the kernel schedules.

Locust patches threads into greenlets, and a greenlet answers only when the loop is free: not while
a step is judged or the knee computed. This one answers at any time, with the page that it was
given last.
"""

from __future__ import annotations

import sys
import time
from typing import Final

import gevent
from gevent.monkey import get_original

from harness.errors import ConfigError
from harness.export.metrics_server import MetricsServer

FLAG: Final = "--metrics-port"
WAIT_S: Final = 0.01
SWITCH_S: Final = 0.001  # Python's 5 ms at each of a scrape's system calls add up to more than 50


class MetricsPort:
    """Serves `body`, from `start` to `close`."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.body = b""
        self._wanted = port
        self._pages: MetricsServer | None = None
        self._error: ConfigError | None = None
        self._running = False
        self._switch_s: float | None = None  # what the process had; None: left as it is

    @property
    def port(self) -> int:
        if self._pages is None:
            return self._wanted
        return self._pages.port

    def start(self) -> None:
        """Returns when the port is open. Raises ConfigError."""
        self._running = True
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        get_original("_thread", "start_new_thread")(self._serve, ())
        while self._running and self._pages is None:
            gevent.sleep(WAIT_S)
        if self._error is not None:
            self.close()
            raise self._error

    def _serve(self) -> None:
        """The thread: its sockets are made here, for gevent binds each to its thread's loop."""
        try:
            self._pages = MetricsServer(self.host, self._wanted, lambda: self.body, FLAG)
            self._pages.serve()
        except ConfigError as error:
            self._error = error
        finally:
            self._running = False

    def linger(self, most_s: float) -> None:
        """Wait until what `body` holds now was scraped, where somebody scrapes at all."""
        if self._pages is None or not self._pages.scrapes:
            return
        scrapes_before = self._pages.scrapes
        until_s = time.monotonic() + most_s
        while self._pages.scrapes == scrapes_before and time.monotonic() < until_s:
            gevent.sleep(WAIT_S)

    def close(self) -> None:
        """Nothing listens any more when this returns; harmless when repeated."""
        if self._pages is not None:
            self._pages.stop()
        while self._running:
            gevent.sleep(WAIT_S)
        if self._switch_s is not None:
            sys.setswitchinterval(self._switch_s)
            self._switch_s = None
