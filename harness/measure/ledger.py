"""Recent records, whole and still open: where live decisions look.

Bounded: what ended long before the step under way is forgotten here (the run folder keeps it), and
tokens take four to five bytes each, or none where nobody will ask for them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.compact import Compact
from harness.measure.metrics import failed
from harness.measure.recorded import thin
from harness.measure.records import ARRAYS, Outcome, RequestRecord, in_pieces
from harness.measure.seen import Seen
from harness.measure.table import OPEN, RecordTable, concat
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

KEEP_NS: Final = 30 * SECOND  # before the instant last asked for
EVENTS: Final = 1 << 16  # that are packed together, about,
REQUESTS: Final = 1 << 13  # or requests


class Ledger:
    """A RecordSink. `put` takes records and parts in any order; a whole record replaces its parts.

    Parts of one request are told apart by the instant that they are known until. `total` counts
    whole records ever taken, `twice` those that came again. What never came is counted where the
    numbers given out are known: by the transport, and by the reader of a run folder.
    """

    def __init__(self, tokens_ns: int | None = None) -> None:
        """`tokens_ns`: how long tokens are kept after a request ended; None: as long as itself."""
        self.total = 0
        self.twice = 0
        self._tokens_ns = tokens_ns
        self._thin: list[RecordTable] = []  # whose tokens were let go; then, in order of coming,
        self._packed: list[Compact] = []
        self._fresh: list[RecordTable] = []
        self._open: dict[tuple[int, int], _Open] = {}
        self._seen = Seen()

    def put(self, records: Sequence[RequestRecord]) -> None:
        """Take whole records and parts; a key that has ended before is dropped."""
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
            if events >= EVENTS or sum(map(len, self._fresh)) >= REQUESTS:
                self._pack()

    def close(self) -> None:
        """Nothing to flush."""

    def table(self, from_ns: int, horizon_ns: int) -> Look:
        """Requests that ended after `from_ns` or are open, as known at `horizon_ns`.

        `from_ns` may be at most KEEP_NS before any asked for earlier: what is older is forgotten.
        """
        oldest = from_ns - KEEP_NS
        self._thin = [t for t in self._thin if t.done_ns.max() >= oldest]
        self._packed = [p for p in self._packed if p.table.done_ns.max() >= oldest]
        self._fresh = [t.select(t.done_ns >= oldest) for t in self._fresh]
        return self.look(from_ns, horizon_ns)

    def look(self, from_ns: int, horizon_ns: int) -> Look:
        """The same, and nothing is forgotten: a view looks at less than a judge needs."""
        if len(self._fresh) > 1:  # join once, not at each look
            self._fresh = [concat(self._fresh)]
        ended: list[RecordTable | Compact] = [*self._thin, *self._packed, *self._fresh]
        return Look(ended, [o.record for o in self._open.values()], from_ns, horizon_ns)

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed); `from_ns` as in `table`.

        Cheaper than a table: no token is looked at.
        """
        count = bad = 0
        for table in chain(self._thin, (p.table for p in self._packed), self._fresh):
            inside = (table.done_ns >= from_ns) & (table.done_ns <= horizon_ns)
            count += int(inside.sum())
            bad += int((inside & failed(table)).sum())
        return count, bad

    def _pack(self) -> None:
        self._packed.append(Compact.of(concat(self._fresh)))
        self._fresh = []
        if self._tokens_ns is None:
            return
        old_ns = int(self._packed[-1].table.done_ns.max()) - self._tokens_ns
        while self._packed[0].table.done_ns.max() < old_ns:
            self._thin.append(self._packed.pop(0).table)

    def _extend(self, part: RequestRecord) -> None:
        under_way = self._open.get(part.key)
        if under_way is None:
            self._open[part.key] = _Open(_with_arrays(part, part, copy=True), {part.done_ns})
        else:
            under_way.join(part)


@dataclass(slots=True)
class _Open:
    """A request under way: its parts as one, and the instants that parts were known until."""

    record: RequestRecord
    told: set[int]

    def join(self, part: RequestRecord) -> None:
        """Take a part that may be late or come again; the newest one's scalars count."""
        if part.done_ns in self.told:
            return
        self.told.add(part.done_ns)
        at_ns = self.record.at_ns
        late = part.done_ns < self.record.done_ns
        place = bisect_right(at_ns, part.at_ns[0]) if late and part.at_ns else len(at_ns)
        for name in ARRAYS:
            getattr(self.record, name)[place:place] = getattr(part, name)
        if not late:
            self.record = _with_arrays(part, self.record)


def _with_arrays(
    rest: RequestRecord, arrays: RequestRecord, *, copy: bool = False
) -> RequestRecord:
    """The scalars of `rest` with the arrays of `arrays` (copied: a caller may keep its own)."""
    return replace(
        rest,
        **{name: getattr(arrays, name)[:] if copy else getattr(arrays, name) for name in ARRAYS},
    )


@dataclass(frozen=True)
class Look:
    """What a ledger knew at `horizon_ns` of what ended at `from_ns` or later: `Recorded`.

    To be looked at before anything more is put.
    """

    ended: Sequence[RecordTable | Compact]
    open: Sequence[RequestRecord]
    from_ns: int
    horizon_ns: int

    @cached_property
    def table(self) -> RecordTable:
        """The requests."""
        ended = (one.table for one in self.ended)
        return concat([self._cut(thin(table)) for table in chain(ended, self._open_tables())])

    def chunks(self) -> Iterator[RecordTable]:
        """Their events."""
        for one in self.ended:
            if one.table.done_ns.max(initial=self.from_ns - 1) >= self.from_ns:
                yield from map(self._cut, one.chunks())
        yield from map(self._cut, self._open_tables())

    def _cut(self, table: RecordTable) -> RecordTable:
        rows = (table.done_ns >= self.from_ns) | (table.outcome == OPEN)
        return table.select(rows).until(self.horizon_ns)

    def _open_tables(self) -> Iterator[RecordTable]:
        return map(RecordTable.from_records, in_pieces(self.open, EVENTS))


def in_flight(table: RecordTable, start_ns: int, end_ns: int) -> float:
    """Mean number of requests under way between two instants."""
    low = np.maximum(table.sent_ns, start_ns)
    high = np.minimum(table.done_ns, end_ns)
    return float((high - low).clip(min=0).sum() / max(end_ns - start_ns, 1))
