"""A record table packed into four to five bytes per event, for records that are read again soon.

Gaps between events take the fewest bytes that hold the longest one (int32 up to 2.1 s). Only stamps
that are not exact are stored with their uncertainty, and token counts only if one differs from 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.records.record_source import keep_three_events

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from harness.measure.records.record_table import RecordTable

    Ints = NDArray[np.int64]
    Packed = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, slots=True)
class PackedTable:
    """A table reduced to three events per request, and what restores the others."""

    table: RecordTable
    offsets: Ints  # of the whole table's events
    answer_index: Ints  # into the whole table's events
    gaps_ns: Packed  # since the previous event; a request's first event is in `table`
    inexact: Packed  # flat indices of the events whose stamp is not exact
    lags_ns: Packed  # how much earlier each of these may have arrived
    tokens: Packed | None  # None: one per event

    @classmethod
    def of(cls, table: RecordTable) -> PackedTable:
        """Pack a whole table."""
        gaps = np.diff(table.at_ns, prepend=0)
        gaps[table.offsets[:-1][table.counts > 0]] = 0
        lags = table.at_ns - table.not_before_ns
        inexact = np.flatnonzero(lags)
        plain = bool((table.tokens == 1).all())
        return cls(
            keep_three_events(table),
            table.offsets,
            table.answer_index,
            narrowest(gaps),
            narrowest(inexact),
            narrowest(lags[inexact]),
            None if plain else narrowest(table.tokens),
        )

    def chunks(self) -> Iterator[RecordTable]:
        """All events, as `Recorded`."""
        yield self.whole()

    def whole(self) -> RecordTable:
        """The table that was packed."""
        offsets, lengths = self.offsets, np.diff(self.offsets)
        some = lengths > 0
        at = np.cumsum(self.gaps_ns, dtype=np.int64)
        # One running sum over the gaps of all requests (m,). Each request is then shifted to start
        # at its own first event, which the reduced table keeps.
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


def narrowest(values: Ints) -> Packed:
    """The same integers in the smallest signed type that holds them all."""
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return values.astype(kind)
    return values
