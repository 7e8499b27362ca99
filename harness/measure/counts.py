"""RunCounts: what a run has shown so far, as Prometheus counts: the same live and offline.

A RecordSink. Whole records alone (a run folder's) or with their parts before them (live): the
counters end equal, because each event is counted once, when its part or its record comes. Cost: no
Python object per token; a batch's events are joined and counted by numpy.

One difference from METRICS remains on purpose: a TTFT is counted when the first token arrives, so
that a dashboard sees it now; a request that fails after it is +Inf in e2e, TPOT and ITL only. One
that the harness itself cut off adds what had come by then, its outcome, and no failure.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.buckets import BUCKETS_S, Counts
from harness.measure.records import Outcome
from harness.measure.seen import Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from harness.measure.records import RequestRecord
    from harness.measure.slo import Slo

    Ints = NDArray[np.int64]

PER_REQUEST: Final = {"itl": "tpot"}  # what one request is judged by, where a gap is promised


@dataclass(slots=True)
class _Open:
    """What was counted of a request under way."""

    events: int = 0
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0
    first_tokens: int = 0
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
        self.latency = {key: Counts(bounds) for key, bounds in BUCKETS_S.items()}
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        del self.outcomes[Outcome.open]
        self.output_tokens = self.prompt_tokens = self.good = 0
        self.observed = [0] * len(self.slos)
        self.missed = [0] * len(self.slos)
        self._open: dict[tuple[int, int], _Open] = {}
        self._ended = Seen()

    def put(self, records: Iterable[RequestRecord]) -> None:
        """Take records and parts; what came before is left out."""
        batch = _Batch()
        whole: list[tuple[RequestRecord, _Open]] = []
        for record in records:
            if record.outcome is Outcome.open:
                if record.key not in self._ended:
                    now = self._open.setdefault(record.key, _Open())
                    if record.done_ns > now.known_ns:
                        batch.take(record, now, 0)
                        now.known_ns = record.done_ns
            elif self._ended.add(record.key):
                now = self._open.pop(record.key, _Open())
                batch.take(record, now, now.events)
                whole.append((record, now))
        self._add("ttft", batch.first_after_ns())
        self._add("itl", batch.gaps_ns())
        self.output_tokens += batch.count_tokens()
        if whole:
            self._ends(whole)

    def close(self) -> None:
        """Keep everything: the last scrape comes later."""

    def _add(self, key: str, ns: NDArray[np.float64] | Ints) -> None:
        if key in self.latency:
            self.latency[key].add(ns)
        if self.tap is not None:
            self.tap(key, ns)
        for i, slo in enumerate(self.slos):
            if slo.metric == key:
                self.observed[i] += len(ns)
                self.missed[i] += int((ns > slo.limit_ns).sum())

    def _ends(self, whole: Sequence[tuple[RequestRecord, _Open]]) -> None:
        """What is known when a request has ended."""
        rows = [_figures(record, now) for record, now in whole]
        for key in ("e2e", "tpot", "ttfot", "schedule_lag"):
            self._add(key, np.array([row[key] for row in rows if key in row]))
        never = sum(not now.events and r.outcome is not Outcome.cancelled for r, now in whole)
        self._add("ttft", np.full(never, inf))
        self._add("itl", np.full(sum(map(_owed, whole)), inf))
        for (record, _), row in zip(whole, rows, strict=True):
            self.outcomes[record.outcome] += 1
            self.prompt_tokens += max(record.prompt_tokens, 0)
            self.good += record.outcome is Outcome.ok and all(
                row.get(PER_REQUEST.get(slo.metric, slo.metric), 0) <= slo.limit_ns
                for slo in self.slos
            )


class _Batch:
    """The new events of some records, end to end; before each run of them the event they follow."""

    def __init__(self) -> None:
        self._at: list[memoryview | bytes] = []
        self._tokens: list[memoryview] = []
        self._starts: list[int] = []  # of runs, in events of `_at`
        self._length = 0
        self._first: list[int] = []
        self._runs: list[tuple[_Open, int, int]] = []  # (request, its place in the tokens, length)
        self._new = 0

    def take(self, record: RequestRecord, now: _Open, skip: int) -> None:
        """Its events from `skip` on are new."""
        new = len(record.at_ns) - skip
        if new <= 0:
            return
        self._starts.append(self._length)
        if now.events:
            self._at.append(now.last_ns.to_bytes(8, sys.byteorder))
            self._length += 1
        else:
            now.first_ns = record.at_ns[skip]
            now.first_tokens = record.tokens[skip]
            self._first.append(now.first_ns - record.sent_ns)
        self._at.append(memoryview(record.at_ns)[skip:])
        self._tokens.append(memoryview(record.tokens)[skip:])
        self._runs.append((now, self._new, new))
        self._length += new
        self._new += new
        now.events += new
        now.last_ns = record.at_ns[-1]

    def first_after_ns(self) -> Ints:
        """From sent to the first token, of the requests whose first it is."""
        return np.array(self._first, np.int64)

    def gaps_ns(self) -> Ints:
        """Between neighbours of one request."""
        if not self._starts:
            return np.zeros(0, np.int64)
        at: Ints = np.frombuffer(b"".join(self._at), np.int64)
        gaps = at[1:] - at[:-1]
        inside = np.ones(len(gaps), bool)
        inside[np.array(self._starts[1:], np.int64) - 1] = False
        return gaps[inside]

    def count_tokens(self) -> int:
        """Tokens that the events carried; each request is told its own."""
        if not self._runs:
            return 0
        flat = np.frombuffer(b"".join(self._tokens), np.int64)
        sums = np.add.reduceat(flat, [place for _, place, _ in self._runs])
        for (now, _, _), tokens in zip(self._runs, sums.tolist(), strict=True):
            now.tokens += tokens
        return int(sums.sum())


def _figures(record: RequestRecord, now: _Open) -> dict[str, float]:
    """Of one ended request, in ns: what METRICS says of it; a key it does not have is missing."""
    figures: dict[str, float] = {}
    if record.scheduled_ns >= 0 and record.outcome is not Outcome.dropped:
        figures["schedule_lag"] = record.sent_ns - record.scheduled_ns
    if record.outcome is Outcome.cancelled:  # what it did not have by then is not known
        return figures
    ok = record.outcome is Outcome.ok
    figures["e2e"] = record.done_ns - record.sent_ns if ok else inf
    figures["ttft"] = now.first_ns - record.sent_ns if ok and now.events else inf
    reached = ok and 0 <= record.answer_index < len(record.at_ns)
    figures["ttfot"] = record.at_ns[record.answer_index] - record.sent_ns if reached else inf
    if not ok:
        figures["tpot"] = inf
    elif now.events > 1:
        tokens = max(now.tokens - now.first_tokens, 1)
        figures["tpot"] = (now.last_ns - now.first_ns) / tokens
    return figures


def _owed(ended: tuple[RequestRecord, _Open]) -> int:
    """Planned tokens that a failed request did not deliver."""
    record, now = ended
    if record.outcome in (Outcome.ok, Outcome.cancelled):
        return 0
    return max(record.planned_tokens - max(now.tokens, 1), 0)
