"""Recorded requests for computation: the requests in memory, their tokens only in chunks.

    recorded.table      every request; its events may be thinned out to three (`keep_three_events`)
    recorded.chunks()   the same requests with all their events, a chunk at a time, repeatable

Figures per request (TTFT, TPOT, outcomes, Little's law) come from the table; figures that need each
token (gaps, tokens that arrived in a window) go through the chunks. A million tokens would take 24
MB as a table and 40 MB more as gaps; thinned out, in answers of 256 tokens, they take 0.9 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.records.record_table import RecordTable


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
        """All requests, as known then."""
        return self._cut(self.recorded.table)

    def chunks(self) -> Iterator[RecordTable]:
        """The same requests with all their events."""
        return map(self._cut, self.recorded.chunks())

    def _cut(self, table: RecordTable) -> RecordTable:
        return table.select(table.done_ns >= self.from_ns).until(self.horizon_ns)


def keep_three_events(table: RecordTable) -> RecordTable:
    """The same requests with at most three events each: the first, the answer's first, the last.

    An event takes over the tokens of the dropped events before it. So the tokens of the first event
    and their sum stay the same, and with them every figure that has one value per request.
    """
    n, begin = table.counts, table.offsets[:-1]
    some = n > 0
    # The answer's first event is a third one if it is neither the first nor the last.
    has_middle = (table.answer_index > 0) & (table.answer_index < n - 1)
    kept = np.minimum(n, 2) + has_middle
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    # For each kept event its index among all events: the last, the answer's first, the first.
    flat = np.zeros(int(offsets[-1]), np.int64)
    flat[offsets[1:][some] - 1] = table.offsets[1:][some] - 1
    flat[offsets[:-1][has_middle] + 1] = (begin + table.answer_index)[has_middle]
    flat[offsets[:-1][some]] = begin[some]
    # One running sum over the tokens of all requests: its difference between two kept events is
    # what arrived since the earlier one. A request's first event has only its own tokens.
    tokens = np.diff(np.cumsum(table.tokens)[flat], prepend=0)
    first = offsets[:-1][some]
    tokens[first] = table.tokens[flat[first]]
    # A table may have been cut before the answer's first event (`until`): the index stays as far
    # beyond the last event as it was. Else it is the first, the middle (1) or the last (kept - 1).
    place = np.select(
        [table.answer_index <= 0, table.answer_index >= n, has_middle],
        [table.answer_index, table.answer_index - n + kept, 1],
        kept - 1,
    )
    return replace(
        table,
        answer_index=place,
        offsets=offsets,
        at_ns=table.at_ns[flat],
        not_before_ns=table.not_before_ns[flat],
        tokens=tokens,
        whole=False,
    )
