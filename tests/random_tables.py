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
    sent = int(draw.integers(0, 20_000) * MS)
    spread = draw.choice([0.0, 0.001, 0.5])  # all gaps alike, nearly so, or not at all
    gaps = gap_ms * MS * draw.lognormal(0, spread, n)
    gaps[: min(n, 1)] *= 5
    at = sent + np.cumsum(gaps).astype(np.int64)
    low = at - np.where(draw.random(n) < 0.1, (gaps * draw.random(n)).astype(np.int64), 0)
    done = int(at[-1] if n else sent) + int(draw.integers(0, 3)) * MS
    return RequestRecord(
        worker=number % 3,
        number=number,
        user=number % 7,
        sent_ns=sent,
        done_ns=done,
        outcome=KINDS[draw.integers(len(KINDS))],
        planned_tokens=int(draw.integers(0, 80)),
        answer_index=int(draw.integers(-1, n)) if n else -1,
        at_ns=ns_array(at.tolist()),
        not_before_ns=ns_array(low.tolist()),
        tokens=ns_array(draw.integers(1, 4, n).tolist()),
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
