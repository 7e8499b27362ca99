"""RunCounts: what a run has shown so far, as Prometheus counts: the same live and offline.

A RecordSink. Whole records alone (a run folder's) or with their parts before them (live): the
counters end equal, because each event is counted once, when its part or its record comes. Each
latency is computed by its row of METRICS: of the new events while a request is under way, of the
whole record when it has ended. No Python object per token.

A TTFT is counted when the first token arrives, so that a dashboard sees it now: a request that
fails after it is +Inf in e2e, TPOT and ITL only. One that the harness itself cut off adds what had
come by then, its outcome, and no failure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.histogram import Counts
from harness.measure.metrics import (
    ALL_LATENCIES,
    GAPS,
    HISTOGRAMS,
    LATENCIES,
    good_requests,
    lost_gaps,
)
from harness.measure.records import Outcome
from harness.measure.seen import Seen
from harness.measure.table import OUTCOMES, RecordTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from harness.measure.records import RequestRecord
    from harness.measure.slo import Slo

    Ints = NDArray[np.int64]


@dataclass(slots=True)
class _Open:
    """What was counted of a request under way."""

    events: int = 0
    last_ns: int = 0  # when the last of them came
    known_ns: int = -1  # until when its parts told


class RunCounts:
    """Counters and histograms since the run's start."""

    def __init__(
        self,
        slos: Sequence[Slo] = (),
        tap: Callable[[str, NDArray[np.float64] | Ints], None] | None = None,
    ) -> None:
        """`slos` judge what is good; `tap` is given each latency's new values in ns."""
        self.slos = tuple(slos)
        self.tap = tap
        self.latency = {key: Counts(row.buckets_s) for key, row in HISTOGRAMS.items()}
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        del self.outcomes[Outcome.open]
        self.output_tokens = self.prompt_tokens = self.good = 0
        self.observed = [0] * len(self.slos)
        self.missed = [0] * len(self.slos)
        self._open: dict[tuple[int, int], _Open] = {}
        self._ended = Seen()

    def put(self, records: Iterable[RequestRecord]) -> None:
        """Take records and parts; what came before is left out."""
        fresh = _Fresh()
        whole: list[RequestRecord] = []
        for record in records:
            if record.outcome is Outcome.open:
                if record.key not in self._ended:
                    now = self._open.setdefault(record.key, _Open())
                    if record.done_ns > now.known_ns:
                        fresh.take(record, now, 0)
                        now.known_ns = record.done_ns
            elif self._ended.add(record.key):
                now = self._open.pop(record.key, _Open())
                fresh.take(record, now, now.events)
                whole.append(record)
        fresh.join()
        for key, row in LATENCIES.items():
            if row.early:
                self._add(key, np.array(fresh.first_after_ns, np.int64))
        for key, gaps in GAPS.items():
            self._add(key, gaps(fresh).ns)
        self.output_tokens += int(fresh.tokens.sum())
        if whole:
            self._ends(RecordTable.from_records(whole))

    def close(self) -> None:
        """Keep everything: the last scrape comes later."""

    def _add(self, key: str, ns: NDArray[np.float64] | Ints) -> None:
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
        """What is known when requests have ended; `table`: these, whole."""
        for key, row in ALL_LATENCIES.items():
            if row.gaps is not None:
                self._add(key, np.full(int(lost_gaps(table)[1].sum()), inf))
                continue
            seen = row.observe(table)
            # of what was cut off only what had come counts; an early one has been counted already
            new = ~seen.only_age & ~(row.early & (table.counts[seen.row] > 0))
            self._add(key, seen.ns[new])
        ended = np.bincount(table.outcome, minlength=len(OUTCOMES)).tolist()
        for outcome, count in zip(OUTCOMES, ended, strict=True):
            if count:
                self.outcomes[outcome] += count
        self.prompt_tokens += int(table.prompt_tokens.clip(min=0).sum())
        self.good += int(good_requests(table, self.slos).sum())


class _Fresh:
    """The new events of some records, end to end, as `metrics.Events`.

    Before the new events of a request stands the last one that was counted, without its tokens: so
    the gap to it is one of the gaps between neighbours, and nothing is counted twice.
    """

    def __init__(self) -> None:
        self.first_after_ns: list[int] = []  # from sent to the first token, where that is new
        self._at: list[memoryview | bytes] = []
        self._tokens: list[memoryview | bytes] = []
        self._ends = [0]

    def take(self, record: RequestRecord, now: _Open, skip: int) -> None:
        """Its events from `skip` on are new."""
        new = len(record.at_ns) - skip
        if new <= 0:
            return
        if now.events:
            self._at.append(now.last_ns.to_bytes(8, sys.byteorder))
            self._tokens.append(bytes(8))
        else:
            self.first_after_ns.append(record.at_ns[skip] - record.sent_ns)
        self._at.append(memoryview(record.at_ns)[skip:])
        self._tokens.append(memoryview(record.tokens)[skip:])
        self._ends.append(self._ends[-1] + new + (now.events > 0))
        now.events += new
        now.last_ns = record.at_ns[-1]

    def join(self) -> None:
        """After the last one was taken."""
        self.offsets: Ints = np.array(self._ends, np.int64)
        self.at_ns: Ints = np.frombuffer(b"".join(self._at), np.int64)
        self.not_before_ns = self.at_ns
        self.tokens: Ints = np.frombuffer(b"".join(self._tokens), np.int64)
