"""A records file -> tables, some thousand tokens at a time: no file is ever in memory as a whole.

What `codec.decode` makes objects of goes straight into columns here, one frame after another.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import numpy as np

from harness.measure.table import OUTCOME_CODE, RecordTable
from harness.runfolder.codec import HEADER_BYTES, LATER, NO_RECORD, NUMBERS, Row, next_frame
from harness.runfolder.plainarrays import values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from harness.measure.seen import Seen

    Ints = NDArray[np.int64]

READ: Final = 1 << 19  # bytes at a time
EVENTS: Final = 1 << 16  # of a table, about: two megabytes, and ten while it is worked on
REQUESTS: Final = 1 << 13  # of a table


@dataclass(slots=True)
class Damage:
    """What a folder lost. All zero or empty: nothing."""

    torn_bytes: int = 0  # of unfinished last frames: a process was killed while writing
    damaged_bytes: int = 0  # skipped inside the record files
    duplicates: int = 0  # records that came twice; dropped, no loss
    bad_lines: int = 0  # of the JSON-lines files
    missing: dict[int, int] = field(default_factory=dict)  # worker: requests without a record
    unreadable: list[str] = field(default_factory=list)  # files that should be there and are not

    def sentences(self) -> list[str]:
        """What is lost, in words; duplicates are no loss. Empty: nothing."""
        told = [
            (self.torn_bytes, f"{self.torn_bytes} bytes of an unfinished last record were cut off"),
            (self.damaged_bytes, f"{self.damaged_bytes} damaged bytes of records were skipped"),
            (self.bad_lines, f"{self.bad_lines} unreadable lines of steps or samples were skipped"),
            (self.unreadable, f"missing or unreadable: {', '.join(self.unreadable)}"),
        ]
        lost = sum(self.missing.values())
        return [text for count, text in told if count] + (
            [f"{lost} requests have no record (by worker: {self.missing})"] if lost else []
        )


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
        except NO_RECORD:
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
    # What cannot begin a frame is dropped at once, and what a frame still lacks is read in one go:
    # neither bytes of anything else nor a damaged length make the buffer grow read by read, each
    # time copied and searched again.
    left = os.fstat(file.fileno()).st_size
    data, skipped, need = b"", 0, READ
    while left:
        fresh = file.read(min(need, left))
        left = left - len(fresh) if fresh else 0
        data += fresh
        at = 0
        while True:
            start, stop, whole = next_frame(data, at, left)
            skipped += start - at  # damaged, unless nothing whole comes after it
            if not whole:
                break
            damage.damaged_bytes += skipped
            skipped, at = 0, stop
            yield data[start + HEADER_BYTES : stop]
        need = max(READ, stop - len(data))
        data = data[start:]
    damage.torn_bytes += skipped + len(data)


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
        # (request, number) transposed and copied: each column lies in one piece of memory
        columns = dict(zip(names, flat.reshape(-1, len(names)).T.copy(), strict=True))
        lengths = np.fromiter((row.n for row in rows), np.int64, len(rows))
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        # A request's events are sums of its gaps from when it was sent. Instead of one sum for each
        # request there is one over the gaps of all: what it had reached before a request's first
        # gap is taken off again from all of that request's events.
        at = np.cumsum(self._flat(0, offsets))
        before = np.concatenate([np.zeros(1, np.int64), at])[offsets[:-1]]
        at += np.repeat(columns["sent_ns"] - before, lengths)
        codes = (OUTCOME_CODE[row.outcome] for row in rows)
        table = RecordTable(
            **columns,
            outcome=np.fromiter(codes, np.int64, len(rows)),
            offsets=offsets,
            at_ns=at,
            not_before_ns=at - self._flat(1, offsets),
            tokens=self._flat(2, offsets),
            whole=True,
        )
        return Piece(table, [row.error for row in rows], [row.finish_reason for row in rows])

    def _flat(self, array: int, offsets: Ints) -> Ints:
        """One of ARRAYS of all rows, one after another."""
        flat = np.empty(self.events, np.int64)
        for row, first in zip(self.rows, offsets.tolist(), strict=False):
            flat[first : first + row.n] = values(row.packed[array], row.n)
        return flat
