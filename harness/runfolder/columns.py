"""A records file -> tables, some thousand tokens at a time: no file is ever in memory as a whole.

What `codec.decode` makes objects of goes straight into columns here, one frame after another.
"""

from __future__ import annotations

import os
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import msgpack
import numpy as np

from harness.measure.records import Outcome
from harness.measure.table import OUTCOME_CODE, RecordTable
from harness.runfolder.codec import HEADER_BYTES, LATER, NUMBERS, frames
from harness.runfolder.plainarrays import values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harness.measure.seen import Seen
    from harness.runfolder.damage import Damage

    Ints = NDArray[np.int64]
    Packed = int | NDArray[np.signedinteger[Any]]  # an int: all values are alike

READ: Final = 1 << 19  # bytes at a time
EVENTS: Final = 1 << 16  # of a table, about: two megabytes, and ten while it is worked on
REQUESTS: Final = 1 << 13  # of a table
PLAIN: Final = len(NUMBERS)
_CODES: Final = {outcome.value: OUTCOME_CODE[outcome] for outcome in Outcome}


class Piece(NamedTuple):
    """Some requests, and two texts of each: "" where nothing was said."""

    table: RecordTable
    errors: list[str]
    reasons: list[str]  # why the server stopped: finish_reason


def tables(file: BinaryIO, seen: Seen, damage: Damage) -> Iterator[Piece]:
    """The requests of a file that were not `seen` yet, in its order. Raises OSError."""
    columns = Columns()
    for payload in payloads(file, damage):
        try:
            row = Row.read(payload)
        except (ValueError, TypeError, IndexError, KeyError, OverflowError):
            damage.damaged_bytes += HEADER_BYTES + len(payload)
            continue
        if not seen.add((row.numbers[0], row.numbers[1])):
            damage.duplicates += 1
            continue
        columns.add(row)
        if columns.events >= EVENTS or len(columns.rows) >= REQUESTS:
            yield columns.piece()
            columns = Columns()
    if columns.rows:
        yield columns.piece()


def payloads(file: BinaryIO, damage: Damage) -> Iterator[bytes]:
    """What whole frames hold, wherever the file was cut; the rest is counted as `decode` does."""
    left = os.fstat(file.fileno()).st_size
    data = b""
    while left:
        fresh = file.read(min(READ, left))
        left = left - len(fresh) if fresh else 0
        data += fresh
        end = 0
        for start, stop in frames(data, left):
            damage.damaged_bytes += start - end
            end = stop
            yield data[start + HEADER_BYTES : stop]
        data = data[end:]
    damage.torn_bytes += len(data)


@dataclass(frozen=True, slots=True)
class Row:
    """A record as it is on the disk."""

    numbers: array[int]  # NUMBERS, LATER
    outcome: int
    error: str
    reason: str
    n: int
    gaps: Packed
    lags: Packed
    tokens: Packed

    @classmethod
    def read(cls, payload: bytes) -> Row:
        """Raises ValueError, TypeError, KeyError, IndexError, OverflowError: it is no record."""
        values = msgpack.unpackb(payload)
        outcome, error, reason, n, *packed = values[PLAIN : PLAIN + 7]
        later = values[PLAIN + 7 : PLAIN + 7 + len(LATER)]
        unsaid = [-1] * (len(LATER) - len(later))  # by an older version
        if not (isinstance(error, str) and isinstance(reason, str)) or n < 0:
            raise ValueError(values)
        gaps, lags, tokens = (_unpack(one, n) for one in packed)
        numbers = array("q", [*values[:PLAIN], *later, *unsaid])
        return cls(numbers, _CODES[outcome], error, reason, n, gaps, lags, tokens)


def _unpack(packed: bytes, n: int) -> Packed:
    if n and packed[:1] == b"c" and len(packed) == 9:  # noqa: PLR2004 - a byte and an int64
        return int.from_bytes(packed[1:], "little", signed=True)
    return values(packed, n)


@dataclass(slots=True)
class Columns:
    """Rows that become one table."""

    rows: list[Row] = field(default_factory=list)
    events: int = 0

    def add(self, row: Row) -> None:
        """One more."""
        self.rows.append(row)
        self.events += row.n

    def piece(self) -> Piece:
        """The table and its texts."""
        rows = self.rows
        flat = np.frombuffer(b"".join(row.numbers for row in rows), np.int64)
        names = (*NUMBERS, *LATER)
        columns = dict(zip(names, flat.reshape(-1, len(names)).T.copy(), strict=True))
        lengths = np.fromiter((row.n for row in rows), np.int64, len(rows))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        # one sum over the gaps of all; each request then starts from when it was sent
        at = np.cumsum(self._flat("gaps", offsets))
        before = np.concatenate([np.zeros(1, np.int64), at])[offsets[:-1]]
        at += np.repeat(columns["sent_ns"] - before, lengths)
        table = RecordTable(
            **columns,
            outcome=np.fromiter((row.outcome for row in rows), np.int64, len(rows)),
            offsets=offsets,
            at_ns=at,
            not_before_ns=at - self._flat("lags", offsets),
            tokens=self._flat("tokens", offsets),
            whole=True,
        )
        return Piece(table, [row.error for row in rows], [row.reason for row in rows])

    def _flat(self, name: str, offsets: Ints) -> Ints:
        flat = np.empty(self.events, np.int64)
        for row, first in zip(self.rows, offsets.tolist(), strict=False):
            flat[first : first + row.n] = getattr(row, name)
        return flat
