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

from harness.metrics.column_file import StoredColumns
from harness.metrics.metrics import failed_requests
from harness.records.record_table import RecordTable, keep_three_events, repeated

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.core.arrays import Ints
    from harness.metrics.column_file import ColumnFile

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

    `RecordTable.until` says what is cut. `requests`: their table before it is cut, if there is one
    already; columns in which nothing is cut are then shared with it.
    """

    recorded: RecordSource
    from_ns: int
    horizon_ns: int
    requests: RecordTable | None = None

    @cached_property
    def table(self) -> RecordTable:
        return self._cut(self.recorded.table if self.requests is None else self.requests)

    def forget_table(self) -> None:
        """Let its memory go until somebody asks for it again."""
        self.__dict__.pop("table", None)

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
        gaps_ns = np.diff(table.at_ns, prepend=0)
        first_events = table.offsets[:-1][table.counts > 0]
        # The step from another request's last event means nothing, and would need all 64 bits.
        gaps_ns[first_events] = 0
        lags_ns = table.at_ns - table.not_before_ns
        inexact = np.flatnonzero(lags_ns)
        return cls(
            offsets=table.offsets,
            answer_index=table.answer_index,
            gaps_ns=narrowest(gaps_ns),
            inexact=narrowest(inexact),
            lags_ns=narrowest(lags_ns[inexact]),
            tokens=pack(table.tokens),
        )

    def restore(self, thin: RecordTable) -> RecordTable:
        events = np.diff(self.offsets)  # of each request
        has_events = events > 0
        # One running sum over the gaps of all requests (m,). Each request is then shifted to start
        # at its own first event, which the thin table keeps.
        at_ns = np.cumsum(self.gaps_ns, dtype=np.int64)
        begins_ns = at_ns[self.offsets[:-1][has_events]]
        firsts_ns = thin.at_ns[thin.offsets[:-1][has_events]]
        at_ns += np.repeat(firsts_ns - begins_ns, events[has_events])
        not_before_ns = at_ns.copy()
        not_before_ns[self.inexact] -= self.lags_ns
        return replace(
            thin,
            answer_index=self.answer_index,
            offsets=self.offsets,
            at_ns=at_ns,
            not_before_ns=not_before_ns,
            tokens=unpack(*self.tokens),
            whole=True,
        )


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table of one request at least, thin (`keep_three_events`), and what restores the rest."""

    columns: dict[str, PackedColumn] | StoredColumns
    requests: int
    failed: int
    first_ns: int  # when the first of them ended
    last_ns: int
    events: PackedEvents | None  # None: let go

    @classmethod
    def of(cls, table: RecordTable) -> PackedTable:
        thin = keep_three_events(table)
        names = [field.name for field in fields(thin) if field.name != "whole"]
        columns = {name: pack(getattr(thin, name)) for name in names}
        return cls(
            columns=columns,
            requests=len(table),
            failed=int(failed_requests(table).sum()),
            first_ns=int(table.done_ns.min()),
            last_ns=int(table.done_ns.max()),
            events=PackedEvents.of(table),
        )

    @property
    def is_stored(self) -> bool:
        """Whether it waits on disk."""
        return isinstance(self.columns, StoredColumns)

    def stored_in(self, file: ColumnFile) -> PackedTable:
        """The same without tokens, on disk where that is possible."""
        if isinstance(self.columns, StoredColumns):
            return self
        return replace(self, columns=file.store(self.columns), events=None)

    @property
    def table(self) -> RecordTable:
        columns = {name: unpack(*column) for name, column in self.columns.items()}
        return RecordTable(**columns, whole=False)

    def chunks(self) -> Iterator[RecordTable]:
        """All events, as `RecordSource` has them; raises ValueError if they were let go."""
        if self.events is None:
            return self.table.chunks()
        return iter([self.events.restore(self.table)])


def pack(values: Ints) -> PackedColumn:
    """The length, the first, and the differences of neighbors: one of them where all are alike."""
    # A request takes 60 to 100 bytes so, where its columns as they are take 270 (decision 11).
    steps = np.diff(values)
    if len(steps) > 0 and (steps == steps[0]).all():
        steps = steps[:1]
    first = int(values[0]) if len(values) else 0
    return len(values), first, narrowest(steps)


def unpack(n: int, first: int, steps: Packed) -> Ints:
    if len(steps) == 1 and steps[0] == 0:
        return repeated(first, n)
    values = np.full(n, first, np.int64)
    # One step, where all are equal, goes to every place.
    values[1:] = steps
    return values.cumsum()


def narrowest(values: Ints) -> Packed:
    """The same integers in the smallest signed type that holds them all."""
    low = int(values.min(initial=0))
    high = int(values.max(initial=0))
    for kind in (np.int8, np.int16, np.int32):
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return values.astype(kind)
    return values
