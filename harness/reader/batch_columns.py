"""A batch by streams: what the decoder does for each stream, not for each token.

A batch's rows are in the order of time. Only the order within a stream matters, so they are sorted
by stream, and a stream's tokens that follow one another are one run: a slice of each column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.reader.raw_batch import COLUMNS, EXACT, NOTICE, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.reader.raw_batch import Message


# Strategy: everything that would be a loop over tokens is one numpy pass over the whole batch, done
# once in `__init__`, and what is asked later for a run of tokens is two look-ups in a running sum.
#
# - A stable sort by stream keeps each stream's rows in the order of time.
# - A running sum over a flag makes "how many of rows first .. last - 1 have it" a difference of two
#   of its entries (`_exact`), and "none after the first has it" an equality (`_uneven`).
# - Columns that are handed on whole stay numpy; those of which single values are asked become lists
#   once, for a numpy scalar costs ten times a list's item.
# - A slice of a column travels as a memoryview of its bytes: an array takes these in one copy
#   (`array.frombytes`), and no int is made for a time.


class Columns:
    """The rows of one message, sorted by stream. An index is a row's, in this order."""

    def __init__(self, message: Message) -> None:
        # (n, 5) int64: stream, at_ns, bound_ns, kind, value
        rows = np.frombuffer(message.rows, np.int64).reshape(-1, COLUMNS)
        kind, value = rows[:, 3], rows[:, 4]
        # a read's value is its size, and the reads' bytes lie one after another in the order that
        # they came: where each begins is known before the sort only
        sizes = np.where(kind < NOTICE, value, 0)
        order = np.argsort(rows[:, 0], kind="stable")
        self._blob = message.blob
        self._notices: list[tuple[Any, ...]] = message.notices
        # of a read: where its bytes begin; of a notice: how many came before it
        begin = np.where(kind < NOTICE, np.cumsum(sizes) - sizes, np.cumsum(kind == NOTICE) - 1)
        self._begin: list[int] = begin[order].tolist()
        # the copy after .T makes each column contiguous, which a cast to bytes needs
        self._stream, self._at, self._bound, kind, value = rows[order].T.copy()
        self._kinds: list[int] = kind.tolist()
        self._values: list[int] = value.tolist()
        # an exact stamp is its own lower bound; a token's bound may happen to be its stamp, and
        # then it is exact as well: so the times are compared, not the flag
        low = np.where(kind & EXACT, self._at, self._bound)
        self._at_bytes, self._low_bytes = memoryview(self._at).cast("B"), memoryview(low).cast("B")
        self._exact = [0, *np.cumsum(low == self._at).tolist()]
        # Tokens are even as long as each running count is one more than that before it, or all are
        # -1, "the server does not count". A row is uneven if its step is neither: not 1, and not 0
        # between two -1. A run is even when the sum has not grown after its first row, whose step
        # is from another stream's row and says nothing.
        step = np.diff(value, prepend=0)
        self._uneven = np.cumsum((step != 1) & ((step != 0) | (value != -1))).tolist()
        # A run begins where the stream changes (-1 is none's number, so the first row does), and
        # at each row but a token that follows a token of its stream.
        token = kind >= TOKEN
        new = np.diff(self._stream, prepend=-1) != 0
        new[1:] |= ~(token[1:] & token[:-1])
        self._first = np.flatnonzero(new)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """(stream, kind, first index, index after the last): tokens in one, others alone.

        The kind is the first one's, as in `batch`.
        """
        first = self._first.tolist()
        last = [*first[1:], len(self._kinds)] if first else []
        streams, kinds = self._stream[self._first].tolist(), map(self._kinds.__getitem__, first)
        return zip(streams, kinds, first, last, strict=True)

    def notice(self, row: int) -> tuple[Any, ...]:
        return self._notices[self._begin[row]]

    def read(self, row: int) -> tuple[bytes, int, int, int]:
        begin = self._begin[row]
        body = bytes(self._blob[begin : begin + self._values[row]])
        return body, int(self._at[row]), int(self._bound[row]), self._kinds[row]

    def tokens(self, first: int, last: int) -> tuple[memoryview, memoryview, list[int], bool, int]:
        """For `StreamDecoder.tokens`: the rows first .. last - 1, int64 times as bytes."""
        part = slice(first * 8, last * 8)
        return (
            self._at_bytes[part],
            self._low_bytes[part],
            self._values[first:last],
            self._uneven[last - 1] == self._uneven[first],
            self._exact[last] - self._exact[first],
        )
