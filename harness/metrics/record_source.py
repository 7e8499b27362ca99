"""Recorded requests for computation: the requests in memory, their tokens only in chunks.

    recorded.table      every request; its events may be thinned out to three (`keep_three_events`)
    recorded.chunks()   the same requests with all their events, a chunk at a time, repeatable

Figures per request (TTFT, TPOT, outcomes, Little's law) come from the table; figures that need each
token (gaps, tokens that arrived in a window) go through the chunks. A million tokens would take 24
MB as a table and 40 MB more as gaps; thinned out, in answers of 256 tokens, they take 0.9 MB, and
packed (`PackedTable`), for records that are read again soon, four to five bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from harness.metrics.metrics import failed_requests
from harness.records.record_table import RecordTable, keep_three_events

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.core.arrays import Ints

    Packed = NDArray[np.signedinteger[Any]]
    PackedColumn = tuple[int, int, Packed]

REQUEST_BYTES: Final = 60  # about: packed, without tokens, of answers below 2 s; else up to 100


class RecordSource(Protocol):
    """A run folder, a live ledger, or a RecordTable that holds everything."""

    @property
    def table(self) -> RecordTable:
        """All requests; their events may be thinned out."""

    def chunks(self) -> Iterator[RecordTable]:
        """All requests, each once, in any order, with every event."""


@dataclass(frozen=True)
class RecordsAsOf:
    """The records as known at `horizon_ns` of the requests that ended at `from_ns` or later.

    `RecordTable.until` says what is cut.
    """

    recorded: RecordSource
    from_ns: int
    horizon_ns: int

    @cached_property
    def table(self) -> RecordTable:
        return self._cut(self.recorded.table)

    def chunks(self) -> Iterator[RecordTable]:
        return map(self._cut, self.recorded.chunks())

    def _cut(self, table: RecordTable) -> RecordTable:
        return table.select(table.done_ns >= self.from_ns).until(self.horizon_ns)


class PackedEvents(NamedTuple):
    """What restores the events that `keep_three_events` has left out."""

    offsets: Ints  # of the whole table's events
    answer_index: Ints  # into the whole table's events
    gaps_ns: Packed  # since the previous event; a request's first event is in the thin table
    inexact: Packed  # flat indices of the events whose stamp is not exact
    lags_ns: Packed  # how much earlier each of these may have arrived
    tokens: PackedColumn

    @classmethod
    def of(cls, table: RecordTable) -> PackedEvents:
        gaps = np.diff(table.at_ns, prepend=0)
        gaps[table.offsets[:-1][table.counts > 0]] = 0
        lags = table.at_ns - table.not_before_ns
        inexact = np.flatnonzero(lags)
        late = narrowest(inexact), narrowest(lags[inexact])
        return cls(table.offsets, table.answer_index, narrowest(gaps), *late, pack(table.tokens))

    def restore(self, thin: RecordTable) -> RecordTable:
        offsets, lengths = self.offsets, np.diff(self.offsets)
        some = lengths > 0
        at = np.cumsum(self.gaps_ns, dtype=np.int64)
        # One running sum over the gaps of all requests (m,). Each request is then shifted to start
        # at its own first event, which the thin table keeps.
        begins = at[offsets[:-1][some]]
        firsts = thin.at_ns[thin.offsets[:-1][some]]
        at += np.repeat(firsts - begins, lengths[some])
        low = at.copy()
        low[self.inexact] -= self.lags_ns
        return replace(
            thin,
            answer_index=self.answer_index,
            offsets=offsets,
            at_ns=at,
            not_before_ns=low,
            tokens=unpack(*self.tokens),
            whole=True,
        )


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table of one request at least, thin (`keep_three_events`), and what restores the rest."""

    columns: dict[str, PackedColumn]
    requests: int
    failed: int
    first_ns: int  # when the first of them ended
    last_ns: int
    events: PackedEvents | None  # None: let go

    @classmethod
    def of(cls, table: RecordTable) -> PackedTable:
        thin, done_ns = keep_three_events(table), table.done_ns
        columns = {f.name: pack(getattr(thin, f.name)) for f in fields(thin) if f.name != "whole"}
        failed, ends = int(failed_requests(table).sum()), (int(done_ns.min()), int(done_ns.max()))
        return cls(columns, len(table), failed, *ends, PackedEvents.of(table))

    @property
    def table(self) -> RecordTable:
        return RecordTable(**{k: unpack(*v) for k, v in self.columns.items()}, whole=False)

    def chunks(self) -> Iterator[RecordTable]:
        """All events, as `RecordSource` has them; raises ValueError if they were let go."""
        return iter([self.events.restore(self.table)]) if self.events else self.table.chunks()


def pack(values: Ints) -> PackedColumn:
    """The length, the first, and the differences of neighbors: one of them where all are alike."""
    steps = np.diff(values)
    alike = len(steps) > 0 and (steps == steps[0]).all()
    return len(values), int(values[:1].sum()), narrowest(steps[:1] if alike else steps)


def unpack(n: int, first: int, steps: Packed) -> Ints:
    values = np.full(n, first, np.int64)
    values[1:] = steps
    return values.cumsum()


def narrowest(values: Ints) -> Packed:
    """The same integers in the smallest signed type that holds them all."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
