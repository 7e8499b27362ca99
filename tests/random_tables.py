"""Tables of requests of every kind, drawn from a seed, and the same ones in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from measure_tables import MS

from harness.records.record_table import RecordTable, keep_three_events
from harness.records.request_record import Outcome, RequestRecord, ns_array

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = (Outcome.ok,) * 6 + (Outcome.truncated, Outcome.timeout, Outcome.status, Outcome.open)


def random_table(seed: int, requests: int = 200, gap_ms: float = 20.0) -> RecordTable:
    """Some fail, some are open, some have no token or several an event, a tenth inexact stamps."""
    return RecordTable.from_records(random_records(seed, requests, gap_ms))


def random_records(seed: int, requests: int, gap_ms: float = 20.0) -> list[RequestRecord]:
    """The same as records."""
    draw = np.random.default_rng(seed)
    return [_request(draw, i, gap_ms) for i in range(requests)]


def _request(draw: np.random.Generator, number: int, gap_ms: float) -> RequestRecord:
    n = int(draw.choice([0, 1, 2, 3, 10, 60]))
    sent_ns = int(draw.integers(0, 20_000) * MS)
    spread = draw.choice([0.0, 0.001, 0.5])  # all gaps alike, nearly so, or not at all
    gaps_ns = gap_ms * MS * draw.lognormal(0, spread, n)
    gaps_ns[: min(n, 1)] *= 5
    at_ns = sent_ns + np.cumsum(gaps_ns).astype(np.int64)
    is_inexact = draw.random(n) < 0.1
    width_ns = (gaps_ns * draw.random(n)).astype(np.int64)
    not_before_ns = at_ns - np.where(is_inexact, width_ns, 0)
    last_ns = int(at_ns[-1]) if n else sent_ns
    done_ns = last_ns + int(draw.integers(0, 3)) * MS
    outcome = KINDS[draw.integers(len(KINDS))]
    planned_tokens = int(draw.integers(0, 80))
    answer_index = int(draw.integers(-1, n)) if n else -1
    tokens = draw.integers(1, 4, n)
    return RequestRecord(
        worker=number % 3,
        number=number,
        user=number % 7,
        sent_ns=sent_ns,
        done_ns=done_ns,
        outcome=outcome,
        planned_tokens=planned_tokens,
        answer_index=answer_index,
        at_ns=ns_array(at_ns.tolist()),
        not_before_ns=ns_array(not_before_ns.tolist()),
        tokens=ns_array(tokens.tolist()),
    )


@dataclass
class Pieces:
    """A table as a run folder has it: requests thin, events in pieces of so many requests."""

    whole: RecordTable
    requests: int = 17

    @property
    def table(self) -> RecordTable:
        """The requests."""
        return keep_three_events(self.whole)

    def chunks(self) -> Iterator[RecordTable]:
        """Their events."""
        rows = np.arange(len(self.whole))
        for first in range(0, len(rows), self.requests):
            yield self.whole.select((rows >= first) & (rows < first + self.requests))
