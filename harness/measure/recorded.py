"""What was recorded, for those who compute: requests in memory, their tokens only piece by piece.

    recorded.table      every request; its events may be thinned out to three (`thin`)
    recorded.chunks()   the same requests with all their events, some at a time, as often as asked

What is said per request (TTFT, TPOT, outcomes, Little's law) comes from the table; what needs each
token (gaps, tokens that arrived in a window) goes through the chunks. A million tokens would take
24 MB as a table and 40 MB more as gaps; thin, in answers of 256 tokens, they take 0.9 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.table import RecordTable


class Recorded(Protocol):
    """A run folder, a live ledger, or a RecordTable that holds everything."""

    @property
    def table(self) -> RecordTable:
        """All requests, their events perhaps thinned out."""

    def chunks(self) -> Iterator[RecordTable]:
        """All requests once, in any order, with every event."""


@dataclass(frozen=True)
class Known:
    """What was known at `horizon_ns` of the requests that ended at `from_ns` or later.

    What was cut is as `RecordTable.until` says.
    """

    recorded: Recorded
    from_ns: int
    horizon_ns: int

    @cached_property
    def table(self) -> RecordTable:
        """The requests."""
        return self._cut(self.recorded.table)

    def chunks(self) -> Iterator[RecordTable]:
        """Their events."""
        return map(self._cut, self.recorded.chunks())

    def _cut(self, table: RecordTable) -> RecordTable:
        return table.select(table.done_ns >= self.from_ns).until(self.horizon_ns)


def thin(table: RecordTable) -> RecordTable:
    """The same requests with three events each at most: the first, the answer's first, the last.

    An event takes over the tokens of those left out before it. So the first event's tokens, those
    after it and their sum stay, and with them every figure that is one per request.
    """
    n, begin = table.counts, table.offsets[:-1]
    some = n > 0
    amid = (table.answer_index > 0) & (table.answer_index < n - 1)
    kept = np.minimum(n, 2) + amid
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    flat = np.zeros(int(offsets[-1]), np.int64)
    flat[offsets[1:][some] - 1] = table.offsets[1:][some] - 1
    flat[offsets[:-1][amid] + 1] = (begin + table.answer_index)[amid]
    flat[offsets[:-1][some]] = begin[some]
    upto = np.cumsum(table.tokens)[flat]
    tokens = np.diff(upto, prepend=0)
    first = offsets[:-1][some]
    tokens[first] = table.tokens[flat[first]]
    late = table.answer_index >= n  # a table that was cut before it: still not reached
    place = np.select(
        [table.answer_index <= 0, late, amid],
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
