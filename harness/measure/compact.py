"""Requests with all their events in four to five bytes an event, for those who look again soon.

Gaps are int32 (2.1 s at most; a table with a longer one takes int64), stamps are exact unless their
place is noted, and tokens are one an event unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.recorded import thin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]
    Packed = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class Compact:
    """A table, thin, and what is needed to make it whole again."""

    table: RecordTable
    offsets: Ints  # of the whole table's events
    answer_index: Ints  # among them
    gaps_ns: Packed  # since the event before; a request's first event is in `table`
    inexact: Packed  # flat places of events whose stamp is not exact,
    lags_ns: Packed  # and how much earlier each may have come
    tokens: Packed | None  # None: one an event

    @classmethod
    def of(cls, table: RecordTable) -> Compact:
        """Pack a whole table."""
        gaps = np.diff(table.at_ns, prepend=0)
        gaps[table.offsets[:-1][table.counts > 0]] = 0
        lags = table.at_ns - table.not_before_ns
        inexact = np.flatnonzero(lags)
        plain = bool((table.tokens == 1).all())
        return cls(
            thin(table),
            table.offsets,
            table.answer_index,
            narrow(gaps),
            narrow(inexact),
            narrow(lags[inexact]),
            None if plain else narrow(table.tokens),
        )

    def chunks(self) -> Iterator[RecordTable]:
        """All events, as `Recorded`."""
        yield self.whole()

    def whole(self) -> RecordTable:
        """The table that was packed."""
        offsets, lengths = self.offsets, np.diff(self.offsets)
        some = lengths > 0
        at = np.cumsum(self.gaps_ns, dtype=np.int64)
        # one sum over the gaps of all; each request then starts from its own first event
        begins = at[offsets[:-1][some]]
        firsts = self.table.at_ns[self.table.offsets[:-1][some]]
        at += np.repeat(firsts - begins, lengths[some])
        low = at.copy()
        low[self.inexact] -= self.lags_ns
        ones = self.tokens is None
        return replace(
            self.table,
            answer_index=self.answer_index,
            offsets=offsets,
            at_ns=at,
            not_before_ns=low,
            tokens=np.ones(len(at), np.int64) if ones else np.asarray(self.tokens, np.int64),
            whole=True,
        )


def narrow(values: Ints) -> Packed:
    """The same integers in the fewest of 1, 2, 4 or 8 bytes each that hold them all."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
