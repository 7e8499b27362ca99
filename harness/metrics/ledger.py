"""The ledger holds recent records, ended and open: live decisions read them.

Its memory is bounded: records that ended long before the current level are dropped (the run folder
keeps them), requests take REQUEST_BYTES, tokens four to five bytes each, or none once nobody asks.
Many requests of a long level wait on disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from harness.core.arrays import between
from harness.core.freed_memory import give_back
from harness.metrics.column_file import ColumnFile
from harness.metrics.metrics import failed_requests
from harness.metrics.record_source import PackedTable
from harness.records.record_table import OPEN, RecordTable, concat_tables, keep_three_events
from harness.records.request_record import (
    ARRAYS,
    Outcome,
    RequestRecord,
    SeenNumbers,
    split_by_events,
)
from harness.units import SECOND

KEEP_NS: Final = 30 * SECOND  # kept before the start of the last window asked for
# Fresh records are packed together when they have this many events or requests.
PACK_EVENTS: Final = 1 << 16
PACK_REQUESTS: Final = 1 << 13
REQUESTS_IN_MEMORY: Final = 1 << 16  # without tokens: 4 to 7 MB (decision 39)


class Ledger:
    """A RecordSink. `put` takes records and parts in any order; a whole record replaces its parts.

    Parts of one request are distinguished by their `done_ns`. `total` counts the whole records ever
    taken, `twice` the duplicates. Missing records are counted by those who know the numbers that
    were assigned: the transport, and the reader of a run folder.
    """

    def __init__(self, tokens_ns: int | None = None, folder: Path | None = None) -> None:
        """`tokens_ns`: how long tokens are kept after a request ended; None: as long as it.

        `folder`: where requests whose tokens are gone may wait, if there are many.
        """
        self.total = 0
        self.twice = 0
        # A level that is held for a time is judged at its end, from its records: until then only a
        # live view reads its tokens (decision 11).
        self._tokens_ns = tokens_ns
        self._kept_from_ns: int | None = None
        self._packed: list[PackedTable] = []  # the oldest first, and without tokens
        self._disk = None if folder is None else ColumnFile(folder)
        self._fresh: list[RecordTable] = []
        self._open: dict[tuple[int, int], _Open] = {}
        self._seen = SeenNumbers()

    def put(self, records: Sequence[RequestRecord]) -> None:
        """Take whole records and parts; a key that has ended already is dropped."""
        whole = []
        for record in records:
            if record.outcome == Outcome.open:
                if record.key not in self._seen:
                    self._extend(record)
            elif self._seen.add(record.key):
                self._open.pop(record.key, None)
                whole.append(record)
            else:
                self.twice += 1
        if whole:
            self.total += len(whole)
            self._fresh.append(RecordTable.from_records(whole))
            events = sum(len(table.at_ns) for table in self._fresh)
            requests = sum(len(table) for table in self._fresh)
            if events >= PACK_EVENTS or requests >= PACK_REQUESTS:
                self._pack()

    def close(self) -> None:
        """Nothing to flush: what waits on disk is still read."""

    @property
    def in_flight(self) -> int:
        """Requests that have not ended, as far as is known."""
        return len(self._open)

    def in_flight_of(self, until_ns: int) -> int:
        """How many of the requests sent up to `until_ns` have not ended, as far as is known."""
        sent_ns = [under_way.record.sent_ns for under_way in self._open.values()]
        return sum(0 <= at_ns <= until_ns for at_ns in sent_ns)

    def keep_from(self, from_ns: int | None) -> None:
        """Requests that ended from here on are not dropped, whatever is asked; None: as usual."""
        self._kept_from_ns = from_ns

    @property
    def tokens_from_ns(self) -> int:
        """Of every request that ended from here on there are all tokens."""
        without_tokens = [p.last_ns for p in self._packed if p.events is None]
        return max(without_tokens, default=-1) + 1

    def table(self, from_ns: int, horizon_ns: int) -> LedgerView:
        """Requests that ended after `from_ns` or are open, as known at `horizon_ns`.

        `from_ns` may be at most KEEP_NS before any earlier `from_ns`: older records are dropped.
        """
        oldest = from_ns - KEEP_NS
        if self._kept_from_ns is not None:
            oldest = min(oldest, self._kept_from_ns)
        self._packed = [p for p in self._packed if p.last_ns >= oldest]
        self._fresh = [t.select(t.done_ns >= oldest) for t in self._fresh]
        return self.look(from_ns, horizon_ns)

    def look(self, from_ns: int, horizon_ns: int) -> LedgerView:
        """As `table`, but drop nothing: a live page asks for less than a judge still needs."""
        if len(self._fresh) > 1:  # join once, not in every view
            self._fresh = [concat_tables(self._fresh)]
        packed = (p for p in self._packed if p.last_ns >= from_ns)
        opened = [o.record for o in self._open.values()]
        return LedgerView([*packed, *self._fresh], opened, from_ns, horizon_ns)

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed); `from_ns` as in `table`.

        Cheaper than a table, as no token is read, and of requests only those at the two ends.
        """
        ended = 0
        failed = 0
        tables = list(self._fresh)
        for packed in self._packed:
            if from_ns <= packed.first_ns and packed.last_ns <= horizon_ns:
                ended += packed.requests
                failed += packed.failed
            elif from_ns <= packed.last_ns and packed.first_ns <= horizon_ns:
                tables.append(packed.table)
        for table in tables:
            inside = between(table.done_ns, from_ns, horizon_ns)
            ended += int(inside.sum())
            failed += int((inside & failed_requests(table)).sum())
        return ended, failed

    def _pack(self) -> None:
        self._packed.append(PackedTable.of(concat_tables(self._fresh)))
        self._fresh = []
        if self._tokens_ns is not None:
            oldest_ns = self._packed[-1].last_ns - self._tokens_ns
            n_old = sum(packed.last_ns < oldest_ns for packed in self._packed)
            for number, packed in enumerate(self._packed[:n_old]):
                self._packed[number] = replace(packed, events=None)
            self._store(n_old)

    def _store(self, n_old: int) -> None:
        """Write the oldest tables to disk once there are many in memory."""
        if self._disk is None or not self._disk.is_usable:
            return
        waiting = [i for i in range(n_old) if not self._packed[i].is_stored]
        if sum(self._packed[i].requests for i in waiting) < REQUESTS_IN_MEMORY:
            return
        for i in waiting:
            self._packed[i] = self._packed[i].stored_in(self._disk)
        give_back()

    def _extend(self, part: RequestRecord) -> None:
        under_way = self._open.get(part.key)
        if under_way is None:
            record = _with_arrays(part, part, copy=True)
            self._open[part.key] = _Open(record, {part.done_ns})
        else:
            under_way.join(part)


@dataclass(slots=True)
class _Open:
    """An open request: its parts as one record, and their `done_ns`."""

    record: RequestRecord
    known_until: set[int]

    def join(self, part: RequestRecord) -> None:
        """Add a part, which may be late or a duplicate; the scalars of the newest part are kept."""
        if part.done_ns in self.known_until:
            return
        self.known_until.add(part.done_ns)
        place = len(self.record.at_ns)
        is_late = part.done_ns < self.record.done_ns
        if is_late and part.at_ns:
            # Parts do not overlap in time: the first event says where all of them belong.
            place = bisect_right(self.record.at_ns, part.at_ns[0])
        for name in ARRAYS:
            column = getattr(self.record, name)
            column[place:place] = getattr(part, name)
        if not is_late:
            self.record = _with_arrays(part, self.record)


def _with_arrays(
    rest: RequestRecord, arrays: RequestRecord, *, copy: bool = False
) -> RequestRecord:
    """The scalars of `rest` with the arrays of `arrays` (copied: a caller may keep its own)."""
    columns = {name: getattr(arrays, name) for name in ARRAYS}
    if copy:
        columns = {name: column[:] for name, column in columns.items()}
    return replace(rest, **columns)


@dataclass(frozen=True)
class LedgerView:
    """What a ledger knew at `horizon_ns` of the requests that ended at `from_ns` or later.

    It is a `RecordSource`, and valid until the next `put`.
    """

    ended: Sequence[RecordTable | PackedTable]
    open: Sequence[RequestRecord]
    from_ns: int
    horizon_ns: int

    @cached_property
    def table(self) -> RecordTable:
        ended = (source.table for source in self.ended)
        tables = chain(ended, self._open_tables())
        # Thinned out before they are joined, so that all events are never in memory together.
        thin = [keep_three_events(table) for table in tables]
        return concat_tables([self._cut(table) for table in thin])

    def chunks(self) -> Iterator[RecordTable]:
        for source in self.ended:
            yield from map(self._cut, source.chunks())
        yield from map(self._cut, self._open_tables())

    def _cut(self, table: RecordTable) -> RecordTable:
        rows = (table.done_ns >= self.from_ns) | (table.outcome == OPEN)
        return table.select(rows).until(self.horizon_ns)

    def _open_tables(self) -> Iterator[RecordTable]:
        return map(RecordTable.from_records, split_by_events(self.open, PACK_EVENTS))


def mean_in_flight(table: RecordTable, start_ns: int, end_ns: int) -> float:
    """Mean number of requests in flight between two instants."""
    from_ns = np.maximum(table.sent_ns, start_ns)
    until_ns = np.minimum(table.done_ns, end_ns)
    in_flight_ns = (until_ns - from_ns).clip(min=0)
    return float(in_flight_ns.sum() / max(end_ns - start_ns, 1))


def waiting_or_thinking(table: RecordTable, at_ns: int) -> tuple[int, float]:
    """(users with a request in flight or in their planned pause after it, mean of all pauses)."""
    think_ns = table.think_ns.clip(min=0)
    thinking = ~table.is_open & (table.done_ns + think_ns > at_ns)
    in_flight = (table.outcome == OPEN) & (table.sent_ns >= 0)
    mean_think_ns = float(think_ns.mean()) if len(table) else 0.0
    return int((in_flight | thinking).sum()), mean_think_ns
