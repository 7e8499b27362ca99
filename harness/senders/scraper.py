"""The server's own figures, once a second, as seen from here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import gevent
from gevent.hub import get_hub

from harness.errors import ServerUnreachable
from harness.reader.clock import CLOCK
from harness.server.scraping import MetricsScraper

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records.samples import ServerSample
    from harness.server.access import TargetAccess

PERIOD_S: Final = 1.0
GIVE_UP: Final = 3  # scrapes without one figure of vLLM's: this server has none


class Scraper:
    """Reads /metrics in a greenlet of its own. A server without it gives no samples."""

    def __init__(
        self, access: TargetAccess, on_sample: Callable[[ServerSample], None] | None = None
    ) -> None:
        """`on_sample` is given each sample as it comes."""
        self._scrape = MetricsScraper(access, CLOCK.now_ns)
        self._on_sample = on_sample
        self._latest: ServerSample | None = None
        self._greenlet: gevent.Greenlet | None = None
        self.failed = 0  # scrapes without an answer

    def latest(self) -> ServerSample | None:
        """The newest sample; None when there was none yet."""
        return self._latest

    def start(self) -> None:
        """Begin, at once: the first scrape is of the server as it is before any load."""
        self._greenlet = gevent.spawn(self._loop)

    def finish(self) -> None:
        """End with a scrape of the server as the load leaves it."""
        self.stop()
        if self._latest is not None:
            self.once()

    def stop(self) -> None:
        """End; harmless when it did not start."""
        if self._greenlet is not None:
            self._greenlet.kill()
        self._scrape.close()

    def _loop(self) -> None:
        empty = 0
        due = CLOCK.now_ns()
        while self._latest is not None or empty < GIVE_UP:
            empty = 0 if self._once_more() else empty + 1
            due += round(PERIOD_S * 1e9)
            gevent.sleep(max((due - CLOCK.now_ns()) / 1e9, 0.05))

    def _once_more(self) -> bool:
        """One that fails must not be the last."""
        try:
            return self.once()
        except Exception:  # noqa: BLE001 - whatever it is, the next may do better
            get_hub().handle_error(self.once, *sys.exc_info())
            return False

    def once(self) -> bool:
        """Scrape now; whether there was a sample."""
        try:
            sample = self._scrape().sample
        except ServerUnreachable:
            self.failed += 1
            return False
        if sample is not None:
            self._latest = sample
            if self._on_sample is not None:
                self._on_sample(sample)
        return sample is not None
