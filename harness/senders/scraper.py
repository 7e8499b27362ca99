"""The server's own figures and its GPUs' readings, once a second, as seen from here.

All replicas are read at once and become one sample. If one of them does not answer there is none:
a sum over the others would look like a drop. Those that do answer are told apart, one by one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from gevent.hub import get_hub
from gevent.pool import Group
from gevent.threadpool import ThreadPool

from harness.errors import ServerUnreachable
from harness.reader.clock import CLOCK
from harness.records.samples import ServerSample
from harness.server.scraping import MetricsScraper, without_metrics
from harness.units import SECOND
from harness.wire.vllm_metrics import sum_samples

if TYPE_CHECKING:
    from harness.records.samples import GpuSample
    from harness.server.access import TargetAccess
    from harness.server.gpu import GpuSource

GIVE_UP: Final = 3  # scrapes without one figure of vLLM's: this server has none
LEAST_PAUSE_S: Final = 0.05  # between two readings
FIRST_S: Final = 2.0  # the load waits as long for the first scrape, no longer


def once_a_second(read: Callable[[], object]) -> Iterator[object]:
    """What `read` returns, None where it fails: whatever that is, the next may do better."""
    due_ns = CLOCK.now_ns()
    while True:
        result = None
        try:
            result = read()
        except Exception:  # noqa: BLE001 - one that fails must not be the last
            get_hub().handle_error(read, *sys.exc_info())
        yield result
        # From when it was due, not from now: readings would drift by what each of them takes. But
        # what was missed is not caught up with: a server that hung would get all of it at once.
        now_ns = CLOCK.now_ns()
        due_ns = max(due_ns + SECOND, now_ns)
        left_s = (due_ns - now_ns) / SECOND
        # A moment even where it is late: others must have their turn.
        gevent.sleep(max(left_s, LEAST_PAUSE_S))


class Scraper:
    """Reads /metrics in a greenlet of its own. A server without it gives no samples."""

    def __init__(
        self,
        replicas: Mapping[str, TargetAccess],
        on_sample: Callable[[ServerSample], None] | None = None,
        on_some: Callable[[ServerSample], None] | None = None,
        model: str = "",
        prefill: Mapping[str, TargetAccess] | None = None,
    ) -> None:
        """`on_sample` is given each sample as it comes, of one model or, "", of all.

        `prefill`: the servers that only prefill; `replicas` are then those that decode.

        `on_some` is given what some replicas answered where others did not: a sample whose
        `replicas` are those, and which has no figure of its own.
        """
        self._model = model
        self._scrapes: dict[str, MetricsScraper] = {}
        self._prefill = prefill or {}
        for name, access in {**replicas, **self._prefill}.items():
            self._scrapes[name] = MetricsScraper(access, CLOCK.now_ns, model)
        self._on_sample = on_sample
        self._on_some = on_some
        self._latest: ServerSample | None = None
        self._greenlet: gevent.Greenlet | None = None
        self._tried = Event()
        self.failed: Counter[str] = Counter()  # pages without figures, by URL and reason
        self.unread: list[str] = []  # the URLs of those that failed last time

    def latest(self) -> ServerSample | None:
        return self._latest

    def start(self) -> None:
        """Begin, and wait: the first scrape is of the server as it is before any load."""
        self._greenlet = gevent.spawn(self._loop)
        self._tried.wait(FIRST_S)

    def finish(self) -> None:
        """End with a scrape of the server as the load leaves it."""
        self.stop()
        if self._latest is not None:
            self.once()

    def stop(self) -> None:
        """End; harmless when it did not start."""
        if self._greenlet is not None:
            self._greenlet.kill()
        for scrape in self._scrapes.values():
            scrape.close()

    def figures(self) -> dict[str, Any]:
        """Scrapes that failed, as in ended.json; of a server without metrics, none count."""
        if not self._latest or not self.failed:
            return {}
        return {"scrapes_failed": dict(self.failed)}

    def _loop(self) -> None:
        n_empty = 0  # one after another
        for has_sample in once_a_second(self.once):
            n_empty = 0 if has_sample else n_empty + 1
            self._tried.set()
            if self._latest is None and n_empty >= GIVE_UP:
                break

    def once(self) -> bool:
        """Scrape now; whether there was a sample."""
        answers = Group().map(self._read, self._scrapes)  # all at once
        by_name = zip(self._scrapes, answers, strict=True)
        samples = {name: sample for name, sample in by_name if sample}
        self.unread = [name for name in self._scrapes if name not in samples]
        if self.unread:
            answered = {name: one for name, one in samples.items() if name not in self._prefill}
            if answered and self._on_some is not None:
                self._on_some(ServerSample(CLOCK.now_ns(), replicas=answered))
            return False
        apart = {name: samples.pop(name) for name in self._prefill}
        self._latest = sum_samples(samples)
        if apart:
            self._latest = replace(self._latest, prefill=sum_samples(apart))
        if self._on_sample is not None:
            self._on_sample(self._latest)
        return True

    def _read(self, name: str) -> ServerSample | None:
        try:
            answer, sample, _ = self._scrapes[name]()
        except ServerUnreachable as error:
            self.failed[f"{name}: {error}"] += 1
            return None
        if sample is None:
            self.failed[without_metrics(name, answer, self._model)] += 1
        return sample


class GpuSampler:
    """Reads in a greenlet of its own; a source that blocks is asked in a thread of its own."""

    def __init__(self, source: GpuSource, on_sample: Callable[[GpuSample], None]) -> None:
        """`on_sample` is given each sample as it comes."""
        self._source = source
        self._on_sample = on_sample
        # Not gevent's own pool: there a driver that hangs would hold up the look-up of names.
        self._thread = ThreadPool(1) if source.blocking else None
        self._greenlet = gevent.spawn(self._loop)

    def stop(self) -> None:
        """End; the source is closed too."""
        self._greenlet.kill()
        if self._thread is not None:
            self._thread.kill()
        self._source.close()

    def _loop(self) -> None:
        for _ in once_a_second(self._read):
            pass

    def _read(self) -> None:
        now_ns = CLOCK.now_ns()
        samples: list[GpuSample]
        if self._thread is None:
            samples = self._source.read(now_ns)
        else:
            # Only this greenlet waits for the thread; the samples are handed on here, not there.
            samples = self._thread.apply(self._source.read, (now_ns,))
        for sample in samples:
            self._on_sample(sample)
