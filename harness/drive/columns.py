"""A batch by streams: what the decoder does for each stream, not for each token.

A batch's rows are in the order of time. Only the order within a stream matters, so they are sorted
by stream, and a stream's tokens that follow one another are one run: a slice of each column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.drive.batch import COLUMNS, EXACT, NOTICE, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.drive.batch import Message


class Columns:
    """The rows of one message, sorted by stream. An index is a row's, in this order."""

    def __init__(self, message: Message) -> None:
        """Sort them."""
        rows = np.frombuffer(message.rows, np.int64).reshape(-1, COLUMNS)
        kind, value = rows[:, 3], rows[:, 4]
        sizes = np.where(kind < NOTICE, value, 0)
        order = np.argsort(rows[:, 0], kind="stable")
        self._blob = message.blob
        self._notices: list[tuple[Any, ...]] = message.notices
        # of a read: where its bytes begin; of a notice: how many came before it
        begin = np.where(kind < NOTICE, np.cumsum(sizes) - sizes, np.cumsum(kind == NOTICE) - 1)
        self._begin: list[int] = begin[order].tolist()
        self._stream, self._at, self._bound, kind, value = rows[order].T.copy()
        self._kinds: list[int] = kind.tolist()
        self._values: list[int] = value.tolist()
        low = np.where(kind & EXACT, self._at, self._bound)
        self._at_bytes, self._low_bytes = memoryview(self._at).cast("B"), memoryview(low).cast("B")
        self._exact = [0, *np.cumsum(low == self._at).tolist()]
        step = np.diff(value, prepend=0)
        self._uneven = np.cumsum((step != 1) & ((step != 0) | (value != -1))).tolist()
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
        """Its values."""
        return self._notices[self._begin[row]]

    def read(self, row: int) -> tuple[bytes, int, int, int]:
        """For `StreamDecoder.feed`."""
        begin = self._begin[row]
        body = bytes(self._blob[begin : begin + self._values[row]])
        return body, int(self._at[row]), int(self._bound[row]), self._kinds[row]

    def tokens(self, first: int, last: int) -> tuple[memoryview, memoryview, list[int], bool, int]:
        """For `StreamDecoder.tokens`."""
        part = slice(first * 8, last * 8)
        return (
            self._at_bytes[part],
            self._low_bytes[part],
            self._values[first:last],
            self._uneven[last - 1] == self._uneven[first],
            self._exact[last] - self._exact[first],
        )
