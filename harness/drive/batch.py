"""What the reader tells the decoder, many streams at once, in as few Python objects as possible.

A batch is columns: one row of four integers for each read or notice, the reads' bytes in a list of
their own. It travels as one marshal message (the same Python is on both ends).
"""

from __future__ import annotations

import marshal
import struct
from array import array
from typing import Any, Final

LENGTH: Final = struct.Struct("!I")
NOTICE: Final = 2  # in a row's last column, where a read has 0 or 1 (exact)

# notices; every one names its stream in the row
OPENED: Final = "opened"  # (asked)
HEAD: Final = "head"  # (status, head_ns, content_type)
ENDED: Final = "ended"  # (outcome or "", error, done_ns); "" means judge by content
RESUMED: Final = "resumed"  # (asked, state)


class Batch:
    """Rows in order: (stream, at_ns, bound_ns, exact or NOTICE)."""

    __slots__ = ("bodies", "notices", "rows")

    def __init__(self) -> None:
        """Empty."""
        self.rows: list[int] = []  # flat, four to a row
        self.bodies: list[bytes] = []
        self.notices: list[tuple[Any, ...]] = []

    def read(self, stream: int, at_ns: int, bound_ns: int, exact: bool, body: bytes) -> None:
        """Body bytes of one read."""
        self.rows += (stream, at_ns, bound_ns, exact)
        self.bodies.append(body)

    def notice(self, stream: int, *values: Any) -> None:
        """One of the notices above with its values."""
        self.rows += (stream, 0, 0, NOTICE)
        self.notices.append(values)

    def latest_ns(self, first_row: int) -> int:
        """The latest arrival from row `first_row` on; 0: none."""
        return max(self.rows[first_row * 4 + 1 :: 4], default=0)

    def unsure(self, first_row: int, now_ns: int, *, latest_ns: int) -> None:
        """From row `first_row` on, reads stamped after `latest_ns` came at some time up to now."""
        rows = self.rows
        for i in range(first_row * 4, len(rows), 4):
            if rows[i + 3] != NOTICE and rows[i + 1] > latest_ns:
                rows[i + 1] = now_ns
                rows[i + 2] = min(rows[i + 2], now_ns)
                rows[i + 3] = 0

    def cut(self, rows: int) -> Batch:
        """The first so many rows leave as a batch of their own."""
        first = Batch()
        first.rows, self.rows = self.rows[: rows * 4], self.rows[rows * 4 :]
        notices = first.rows[3::4].count(NOTICE)
        bodies = len(first) - notices
        first.bodies, self.bodies = self.bodies[:bodies], self.bodies[bodies:]
        first.notices, self.notices = self.notices[:notices], self.notices[notices:]
        return first

    def __len__(self) -> int:
        """Rows."""
        return len(self.rows) // 4

    def values(self) -> tuple[Any, ...]:
        """For a message; the inverse of `rows_of`."""
        return array("q", self.rows).tobytes(), self.bodies, self.notices


def rows_of(packed: bytes) -> Any:
    """(stream, at_ns, bound_ns, exact or NOTICE) of each row."""
    flat: array[int] = array("q")
    flat.frombytes(packed)
    column = iter(flat)
    return zip(column, column, column, column, strict=True)


def pack(message: Any) -> bytes:
    """One message with its length."""
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body
