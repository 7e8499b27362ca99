"""The server's own figures, once a second, as seen from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import gevent

from harness.drive.clock import CLOCK
from harness.errors import ServerUnreachable
from harness.server.exchange import Line
from harness.wire.prometheus_text import parse
from harness.wire.vllm_series import server_sample, wanted_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.samples import ServerSample
    from harness.server.access import Access

PERIOD_S: Final = 1.0
GIVE_UP: Final = 3  # scrapes without one figure of vLLM's: this server has none


class Scraper:
    """Reads /metrics in a greenlet of its own. A server without it gives no samples."""

    def __init__(
        self, access: Access, on_sample: Callable[[ServerSample], None] | None = None
    ) -> None:
        """`on_sample` is given each sample as it comes."""
        self._line = Line(access)  # kept open: a connection a second would cost the server more
        self._on_sample = on_sample
        self._latest: ServerSample | None = None
        self._greenlet: gevent.Greenlet | None = None
        self.failed = 0  # scrapes without an answer

    def latest(self) -> ServerSample | None:
        """The newest sample; None when there was none yet."""
        return self._latest

    def start(self) -> None:
        """Begin. The first sample is there within a second."""
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End; harmless when it did not start."""
        if self._greenlet is not None:
            self._greenlet.kill()
        self._line.close()

    def _loop(self) -> None:
        empty = 0
        due = CLOCK.now_ns()
        while self._latest is not None or empty < GIVE_UP:
            empty = 0 if self.once() else empty + 1
            due += round(PERIOD_S * 1e9)
            gevent.sleep(max((due - CLOCK.now_ns()) / 1e9, 0.05))

    def once(self) -> bool:
        """Scrape now; whether there was a sample."""
        sample = self._scrape()
        if sample is not None:
            self._latest = sample
            if self._on_sample is not None:
                self._on_sample(sample)
        return sample is not None

    def _scrape(self) -> ServerSample | None:
        """One reading, stamped with the middle of the exchange."""
        begun = CLOCK.now_ns()
        try:
            answer = self._line.ask("/metrics")
        except ServerUnreachable:
            self.failed += 1
            return None
        if answer.status != 200:  # noqa: PLR2004 - HTTP
            return None
        return server_sample(values_by_name(answer.body), (begun + CLOCK.now_ns()) // 2)


def values_by_name(text: bytes) -> dict[str, list[float]]:
    """The series that we read, one value per label set.

    A vLLM says some 1,500 lines, most of them buckets: lines that cannot count are not parsed.
    """
    lines = (line for line in text.split(b"\n") if line[:4] == b"vllm" and b"_bucket{" not in line)
    wanted = wanted_names()
    values: dict[str, list[float]] = {}
    for sample in parse(b"\n".join(lines)):
        if sample.name in wanted:
            values.setdefault(sample.name, []).append(sample.value)
    return values
