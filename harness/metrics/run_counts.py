"""RunCounts: the counters and histograms of a run, as Prometheus counts; the same live and offline.

RunCounts is a RecordSink. It takes whole records only (from a run folder) or parts followed by the
whole record (live). The counters end up equal, because each event is counted once, when its part or
its record arrives. Each latency is computed by its row of METRICS: from the new events while a
request is open, from the whole record when it has ended. No Python object is made per token.

A TTFT is counted when the first token arrives, so that a dashboard shows it at once. A request that
fails after that is +Inf in e2e, TPOT and ITL only. A request that the harness itself cut off adds
what had arrived by then and its outcome, but no failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from harness.metrics.metrics import GAPS, HISTOGRAMS, LATENCIES, SLO_METRICS, lost_gaps
from harness.metrics.slo import good_requests
from harness.records.histogram import Histogram
from harness.records.record_table import OUTCOMES, RecordTable
from harness.records.request_record import Outcome, RequestRecord, SeenNumbers
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.metrics.slo import Slo


@dataclass(slots=True)
class _Open:
    """What has been counted of an open request."""

    events: int = 0
    last_ns: int = 0  # when the last of them arrived
    known_ns: int = -1  # `done_ns` of the newest part


class HistogramCounter:
    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """`bounds_s` end with +Inf."""
        self.bounds_s = bounds_s
        finite_bounds_ns = [bound_s * SECOND for bound_s in bounds_s[:-1]]
        self._bounds_ns = np.array(finite_bounds_ns).round()
        self._counts = np.zeros(len(bounds_s), np.int64)
        self._sum_ns = 0  # an integer, so that the sum does not depend on the order

    def add(self, ns: Floats | Ints) -> None:
        """Add observations, rounded to whole ns; +inf is counted but left out of the sum."""
        if not len(ns):
            return
        ns = np.rint(ns)
        # side "left": a value at a bound is in its bucket
        buckets = np.searchsorted(self._bounds_ns, ns, side="left")
        self._counts += np.bincount(buckets, minlength=len(self.bounds_s))
        self._sum_ns += int(ns.sum(where=np.isfinite(ns)))

    def histogram(self) -> Histogram:
        """As Prometheus has it: cumulative, in seconds."""
        counts = tuple(float(n) for n in self._counts.cumsum())
        return Histogram(self.bounds_s, counts, self._sum_ns / SECOND)


class RunCounts:
    """Counters and histograms since the run's start."""

    def __init__(
        self,
        slos: Sequence[Slo] = (),
        tap: Callable[[str, Floats | Ints], None] | None = None,
    ) -> None:
        """`slos` define a good request; `tap` is called with each latency's new values in ns."""
        self.slos = tuple(slos)
        self.tap = tap
        self.latency = {
            key: HistogramCounter(metric.buckets_s) for key, metric in HISTOGRAMS.items()
        }
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        del self.outcomes[Outcome.open]
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.good = 0
        self.observed = [0 for _ in self.slos]
        self.missed = [0 for _ in self.slos]
        self._open: dict[tuple[int, int], _Open] = {}
        self._ended = SeenNumbers()

    def put(self, records: Iterable[RequestRecord]) -> None:
        """Take records and parts; events that were counted before are skipped."""
        fresh = _Fresh()
        ended: list[RequestRecord] = []
        for record in records:
            if record.outcome is Outcome.open:
                self._take_part(record, fresh)
            elif self._ended.add(record.key):
                counted = self._open.pop(record.key, _Open())
                fresh.take(record, counted, counted.events)
                ended.append(record)
        fresh.join()
        for key, metric in LATENCIES.items():
            if metric.early:
                self._add(key, np.array(fresh.first_after_ns, np.int64))
        for key, gaps in GAPS.items():
            self._add(key, gaps(fresh).ns)
        self.output_tokens += int(fresh.tokens.sum())
        if ended:
            self._ends(RecordTable.from_records(ended))

    def _take_part(self, part: RequestRecord, fresh: _Fresh) -> None:
        """Take the events of a part, unless it is late: then they come with the whole record."""
        if part.key in self._ended:
            return
        counted = self._open.setdefault(part.key, _Open())
        if part.done_ns > counted.known_ns:
            fresh.take(part, counted, 0)
            counted.known_ns = part.done_ns

    def close(self) -> None:
        """Keep everything: the last scrape is still to come."""

    def _add(self, key: str, ns: Floats | Ints) -> None:
        if not len(ns):
            return
        if key in self.latency:
            self.latency[key].add(ns)
        if self.tap is not None:
            self.tap(key, ns)
        for i, slo in enumerate(self.slos):
            if slo.metric == key:
                self.observed[i] += len(ns)
                self.missed[i] += int((ns > slo.limit_ns).sum())

    def _ends(self, table: RecordTable) -> None:
        """Count what is known only when a request has ended; `table`: the whole records."""
        for key, metric in (SLO_METRICS | HISTOGRAMS).items():
            if metric.gaps is not None:
                _, lost = lost_gaps(table)
                n_lost = int(lost.sum())
                self._add(key, np.full(n_lost, inf))
                continue
            seen = metric.observe(table)
            # Of a request that was cut off only what had arrived counts.
            new = ~seen.only_age
            if metric.early:  # counted with the first token already
                new &= table.counts[seen.row] == 0
            self._add(key, seen.ns[new])
        counts = np.bincount(table.outcome, minlength=len(OUTCOMES)).tolist()
        for outcome, count in zip(OUTCOMES, counts, strict=True):
            if count:
                self.outcomes[outcome] += count
        self.prompt_tokens += int(table.prompt_tokens.clip(min=0).sum())
        self.good += int(good_requests(table, self.slos).sum())


class _Fresh:
    """The new events of some records, concatenated, as `metrics.Events`.

    The new events of a request are preceded by the last one that was counted, with 0 tokens. So the
    gap to it appears as a gap between neighbors, and nothing is counted twice.
    """

    def __init__(self) -> None:
        self.first_after_ns: list[int] = []  # from its beginning to the first token, where new
        self._at: list[memoryview | bytes] = []
        self._tokens: list[memoryview | bytes] = []
        self._ends = [0]

    def take(self, record: RequestRecord, counted: _Open, skip: int) -> None:
        """Add the events of `record` from index `skip` on."""
        new = len(record.at_ns) - skip
        if new <= 0:
            return
        added = new
        if counted.events:
            self._at.append(counted.last_ns.to_bytes(8, sys.byteorder))
            self._tokens.append(bytes(8))
            added += 1
        else:
            self.first_after_ns.append(record.at_ns[skip] - record.begun_ns)
        self._at.append(memoryview(record.at_ns)[skip:])
        self._tokens.append(memoryview(record.tokens)[skip:])
        self._ends.append(self._ends[-1] + added)
        counted.events += new
        counted.last_ns = record.at_ns[-1]

    def join(self) -> None:
        """Make the arrays, after the last `take`."""
        self.offsets: Ints = np.array(self._ends, np.int64)
        self.at_ns: Ints = np.frombuffer(b"".join(self._at), np.int64)
        # Live counts go by the stamps: their bounds matter for the result alone.
        self.not_before_ns = self.at_ns
        self.tokens: Ints = np.frombuffer(b"".join(self._tokens), np.int64)
