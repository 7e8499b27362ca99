"""Reads a record file into tables of some thousand tokens: no file is ever in memory as a whole.

`codec.decode` makes objects; here frames go straight into columns, usual ones in C, many at a time.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import numpy as np

from harness.core.arrays import totals_before
from harness.records.codec import (
    HEADER_BYTES,
    INVALID_PAYLOAD,
    NUMBER_FIELDS,
    OPTIONAL_NUMBERS,
    WHY_PYTHON,
    RecordRow,
    read_blocks,
)
from harness.records.python_arrays import unpack_values
from harness.records.record_table import OUTCOME_CODE, OUTCOMES, RecordTable

if not WHY_PYTHON:
    from harness.records._arrays import ROW_CELLS, events, rows

if TYPE_CHECKING:
    from harness.core.arrays import Ints
    from harness.records.request_record import SeenNumbers


MAX_TABLE_EVENTS: Final = 1 << 17  # per table, about: 3 MB
MAX_TABLE_REQUESTS: Final = 1 << 13  # per table, at most

# A row of `_arrays.rows` has these cells, then where its packed arrays lie.
_NUMBERS: Final = (*NUMBER_FIELDS, *OPTIONAL_NUMBERS)
_OUTCOME: Final = len(_NUMBERS)
_EVENTS: Final = _OUTCOME + 1
# of a text: where it begins in the data; its length is the cell behind
_ERROR: Final = _EVENTS + 1
_REASON: Final = _ERROR + 2
_NAME: Final = _REASON + 2
_OUTCOME_BYTES: Final = tuple(outcome.value.encode() for outcome in OUTCOMES)


@dataclass(slots=True)
class Damage:
    """What a folder lost. All zero or empty: nothing is lost."""

    torn_bytes: int = 0  # in unfinished last frames: a process was killed while writing
    damaged_bytes: int = 0  # skipped inside the record files
    duplicates: int = 0  # records that came twice; dropped, no loss
    bad_lines: int = 0  # of the JSON-lines files
    missing: dict[int, int] = field(default_factory=dict)  # worker: requests without a record
    unreadable: list[str] = field(default_factory=list)  # files that should be there and are not

    def sentences(self) -> list[str]:
        """Return a sentence for each loss; duplicates are not a loss."""
        sentences = []
        if self.torn_bytes:
            sentences.append(f"{self.torn_bytes} bytes of an unfinished last record were cut off")
        if self.damaged_bytes:
            sentences.append(f"{self.damaged_bytes} damaged bytes of records were skipped")
        if self.bad_lines:
            sentences.append(f"{self.bad_lines} unreadable lines of steps or samples were skipped")
        if self.unreadable:
            sentences.append(f"missing or unreadable: {', '.join(self.unreadable)}")
        if lost := sum(self.missing.values()):
            sentences.append(f"{lost} requests have no record (by worker: {self.missing})")
        return sentences


class TablePart(NamedTuple):
    """Some requests, and three texts for each, "" if there is none."""

    table: RecordTable
    errors: list[str]
    reasons: list[str]  # why the server stopped: finish_reason
    names: list[str]  # that a locustfile gave them


def read_tables(
    file: BinaryIO, seen: SeenNumbers, damage: Damage, names: dict[str, int]
) -> Iterator[TablePart]:
    """Yield a file's requests that were not `seen` yet, in its order. Raises OSError.

    `names` has the number of each name, and gets those that are new.
    """
    columns = TableBuilder(names)
    size = os.fstat(file.fileno()).st_size
    cells = np.empty((0, 0), np.int64)
    if not WHY_PYTHON:
        cells = np.empty((MAX_TABLE_REQUESTS, ROW_CELLS), np.int64)
    take = partial(UsualFrames.take, cells)
    for frame in read_blocks(file, size, damage, take):
        if isinstance(frame, UsualFrames):
            if columns.rows:
                yield columns.piece()
                columns = TableBuilder(names)
            fresh = frame.unseen(seen, damage)
            if len(fresh.rows):
                yield fresh.piece(names)
            continue
        try:
            row = RecordRow.read(frame[HEADER_BYTES:])
        except INVALID_PAYLOAD:
            damage.damaged_bytes += len(frame)
            continue
        worker = row.numbers[0]
        number = row.numbers[1]
        if not seen.add((worker, number)):
            damage.duplicates += 1
            continue
        columns.add(row)
        if columns.events >= MAX_TABLE_EVENTS or len(columns.rows) >= MAX_TABLE_REQUESTS:
            yield columns.piece()
            columns = TableBuilder(names)
    if columns.rows:
        yield columns.piece()


@dataclass(frozen=True, slots=True)
class UsualFrames:
    """Frames as this version writes them, one after another, as rows of integers."""

    data: bytes  # that has them
    rows: Ints  # (n, ROW_CELLS), see `_arrays.c`

    @classmethod
    def take(cls, cells: Ints, data: bytes, at: int) -> tuple[UsualFrames | None, int]:
        """As `read_blocks` wants it; `cells`: room for as many rows as it may take."""
        if WHY_PYTHON:
            return None, at
        n, end = rows(data, at, zlib.crc32, _OUTCOME_BYTES, MAX_TABLE_EVENTS, cells)
        if not n:
            return None, at
        return cls(data, cells[:n].copy()), end

    def unseen(self, seen: SeenNumbers, damage: Damage) -> UsualFrames:
        """Those whose request is new; the others are counted as duplicates."""
        keys = self.rows[:, :2].tolist()
        is_new = [seen.add((worker, number)) for worker, number in keys]
        n_old = is_new.count(False)
        if not n_old:
            return self
        damage.duplicates += n_old
        return UsualFrames(self.data, self.rows[is_new])

    def piece(self, names: dict[str, int]) -> TablePart:
        by_cell = self.rows.T.copy()  # contiguous columns
        lengths = by_cell[_EVENTS]
        offsets = totals_before(lengths)
        at_ns, not_before_ns, tokens = np.empty((3, offsets[-1]), np.int64)
        events(self.data, self.rows, at_ns, not_before_ns, tokens)
        own_names = self._texts(by_cell, _NAME)
        table = RecordTable(
            **dict(zip(_NUMBERS, by_cell, strict=False)),
            outcome=by_cell[_OUTCOME],
            name=name_numbers(own_names, names),
            offsets=offsets,
            at_ns=at_ns,
            not_before_ns=not_before_ns,
            tokens=tokens,
            whole=True,
        )
        errors = self._texts(by_cell, _ERROR)
        reasons = self._texts(by_cell, _REASON)
        return TablePart(table, errors, reasons, own_names)

    def _texts(self, by_cell: Ints, cell: int) -> list[str]:
        lengths = by_cell[cell + 1]
        texts = [""] * len(lengths)
        known: dict[bytes, str] = {}
        for row in np.flatnonzero(lengths).tolist():
            begin = int(by_cell[cell, row])
            raw = self.data[begin : begin + int(lengths[row])]
            texts[row] = known.setdefault(raw, raw.decode())
        return texts


def name_numbers(texts: list[str], names: dict[str, int]) -> Ints:
    """The number of each request's name, -1 where it has none; `names` gets those that are new."""
    numbers = np.full(len(texts), -1)
    for row, text in enumerate(texts):
        if text:
            numbers[row] = names.setdefault(text, len(names))
    return numbers


@dataclass(slots=True)
class TableBuilder:
    """Collects rows and builds one table of them."""

    names: dict[str, int] = field(default_factory=dict)  # the number of each, from 0
    rows: list[RecordRow] = field(default_factory=list)
    events: int = 0

    def add(self, row: RecordRow) -> None:
        self.rows.append(row)
        self.events += row.n

    def piece(self) -> TablePart:
        rows = self.rows
        columns = self._number_columns()
        lengths = np.fromiter((row.n for row in rows), np.int64, len(rows))
        offsets = totals_before(lengths)
        at_ns = self._event_times(columns["sent_ns"], lengths, offsets)
        codes = (OUTCOME_CODE[row.outcome] for row in rows)
        own_names = [row.name for row in rows]
        table = RecordTable(
            **columns,
            outcome=np.fromiter(codes, np.int64, len(rows)),
            name=name_numbers(own_names, self.names),
            offsets=offsets,
            at_ns=at_ns,
            not_before_ns=at_ns - self._flat(1, offsets),
            tokens=self._flat(2, offsets),
            whole=True,
        )
        errors = [row.error for row in rows]
        finishes = [row.finish_reason for row in rows]
        return TablePart(table, errors, finishes, own_names)

    def _number_columns(self) -> dict[str, Ints]:
        flat = np.frombuffer(b"".join(row.numbers for row in self.rows), np.int64)
        by_request = flat.reshape(-1, len(_NUMBERS))
        # transposed and copied: each column is contiguous in memory
        return dict(zip(_NUMBERS, by_request.T.copy(), strict=True))

    def _event_times(self, sent_ns: Ints, lengths: Ints, offsets: Ints) -> Ints:
        # A request's event times are cumulative sums of its gaps, starting at sent_ns. Instead of a
        # sum per request, one runs over the gaps of all; the value that it had reached before a
        # request's first gap is then subtracted from all events of that request.
        at_ns = np.cumsum(self._flat(0, offsets))
        reached_ns = np.concatenate([np.zeros(1, np.int64), at_ns])
        before_ns = reached_ns[offsets[:-1]]
        at_ns += np.repeat(sent_ns - before_ns, lengths)
        return at_ns

    def _flat(self, array: int, offsets: Ints) -> Ints:
        """The values of all requests in one of their packed arrays, by its place in ARRAYS."""
        flat = np.empty(self.events, np.int64)
        for row, first in zip(self.rows, offsets.tolist(), strict=False):
            flat[first : first + row.n] = unpack_values(row.packed[array], row.n)
        return flat
