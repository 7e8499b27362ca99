"""Recent records, whole and still open, as one table: where live decisions look.

Bounded: what ended long before the step under way is forgotten here (the run folder keeps it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.metrics import failed
from harness.measure.records import Outcome, RequestRecord, ns_array
from harness.measure.table import RecordTable, concat
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

KEEP_NS: Final = 30 * SECOND  # before the instant last asked for
_ARRAYS: Final = ("at_ns", "not_before_ns", "tokens")


class Ledger:
    """A RecordSink. `put` takes records and parts in any order; a whole record replaces its parts.

    `total` counts whole records ever taken, `twice` those that came again.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.total = 0
        self.twice = 0
        self._ended: list[RecordTable] = []
        self._open: dict[tuple[int, int], RequestRecord] = {}
        self._seen: dict[int, _Numbers] = {}

    def put(self, records: Sequence[RequestRecord]) -> None:
        """Take whole records and parts; a key that has ended before is dropped."""
        whole = []
        for record in records:
            seen = self._seen.setdefault(record.worker, _Numbers())
            if record.number in seen:
                self.twice += record.outcome != Outcome.open
            elif record.outcome == Outcome.open:
                self._extend(record)
            else:
                seen.add(record.number)
                self._open.pop(record.key, None)
                whole.append(record)
        if whole:
            self.total += len(whole)
            self._ended.append(RecordTable.from_records(whole))

    def close(self) -> None:
        """Nothing to flush."""

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """Requests that ended after `from_ns` or are open, as known at `horizon_ns`.

        `from_ns` may be at most KEEP_NS before any asked for earlier: what is older is forgotten.
        """
        self._ended = [t for t in self._ended if t.done_ns.max() >= from_ns - KEEP_NS]
        if len(self._ended) > 1:  # join once, not at each look
            self._ended = _compact(self._ended)
        return self.look(from_ns, horizon_ns)

    def look(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """The same table, and nothing is forgotten: a view looks at less than a judge needs."""
        parts = [t.select(t.done_ns >= from_ns) for t in self._ended]
        return concat([*parts, RecordTable.from_records(list(self._open.values()))]).until(
            horizon_ns
        )

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed); `from_ns` as in `table`.

        Cheaper than a table: no token is looked at.
        """
        count = bad = 0
        for table in self._ended:
            inside = (table.done_ns >= from_ns) & (table.done_ns <= horizon_ns)
            count += int(inside.sum())
            bad += int((inside & failed(table)).sum())
        return count, bad

    def open_count(self) -> int:
        """Requests under way, as far as is known."""
        return len(self._open)

    def _extend(self, part: RequestRecord) -> None:
        old = self._open.get(part.key)
        if old is not None:
            for name in _ARRAYS:
                getattr(old, name).extend(getattr(part, name))
            part = _joined(old, part)
        else:
            part = _joined(part, part, copy=True)
        self._open[part.key] = part


def _joined(arrays: RequestRecord, rest: RequestRecord, *, copy: bool = False) -> RequestRecord:
    """The scalars of `rest` with the arrays of `arrays` (copied: a caller may keep its own)."""
    fields = {name: getattr(rest, name) for name in RequestRecord.__slots__}
    for name in _ARRAYS:
        values = getattr(arrays, name)
        fields[name] = ns_array(values.tolist()) if copy else values
    return RequestRecord(**fields)


def _compact(tables: list[RecordTable]) -> list[RecordTable]:
    """Join small tables so that the list stays short: sizes at least double towards the front."""
    out: list[RecordTable] = []
    for table in tables:
        out.append(table)
        while len(out) > 1 and len(out[-2].at_ns) <= 2 * len(out[-1].at_ns):
            last = out.pop()
            out[-1] = concat([out[-1], last])
    return out


class _Numbers:
    """A set of counting numbers that arrive nearly in order: a watermark and the few beyond it."""

    def __init__(self) -> None:
        self._below = 0
        self._beyond: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._beyond

    def add(self, number: int) -> None:
        self._beyond.add(number)
        while self._below in self._beyond:
            self._beyond.discard(self._below)
            self._below += 1


def in_flight(table: RecordTable, start_ns: int, end_ns: int) -> float:
    """Mean number of requests under way between two instants."""
    low = np.maximum(table.sent_ns, start_ns)
    high = np.minimum(table.done_ns, end_ns)
    return float((high - low).clip(min=0).sum() / max(end_ns - start_ns, 1))
