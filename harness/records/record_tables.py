"""Reads a record file into tables of some thousand tokens: no file is ever in memory as a whole.

`codec.decode` makes objects; here frames go straight into columns.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple

import numpy as np

from harness.core.arrays import totals_before
from harness.records.codec import (
    HEADER_BYTES,
    INVALID_PAYLOAD,
    NUMBER_FIELDS,
    OPTIONAL_NUMBERS,
    RecordRow,
    read_frames,
)
from harness.records.python_arrays import unpack_values
from harness.records.record_table import OUTCOME_CODE, RecordTable

if TYPE_CHECKING:
    from harness.core.arrays import Ints
    from harness.records.request_record import SeenNumbers


MAX_TABLE_EVENTS: Final = 1 << 16  # per table, about: 2 MB, and 10 MB while it is being built
MAX_TABLE_REQUESTS: Final = 1 << 13  # per table, at most


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
    for frame in read_frames(file, size, damage):
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
        table = RecordTable(
            **columns,
            outcome=np.fromiter(codes, np.int64, len(rows)),
            name=self._name_numbers(),
            offsets=offsets,
            at_ns=at_ns,
            not_before_ns=at_ns - self._flat(1, offsets),
            tokens=self._flat(2, offsets),
            whole=True,
        )
        errors = [row.error for row in rows]
        finishes = [row.finish_reason for row in rows]
        return TablePart(table, errors, finishes, [row.name for row in rows])

    def _name_numbers(self) -> Ints:
        numbers = np.full(len(self.rows), -1)
        for i, row in enumerate(self.rows):
            if row.name:
                numbers[i] = self.names.setdefault(row.name, len(self.names))
        return numbers

    def _number_columns(self) -> dict[str, Ints]:
        names = (*NUMBER_FIELDS, *OPTIONAL_NUMBERS)
        flat = np.frombuffer(b"".join(row.numbers for row in self.rows), np.int64)
        by_request = flat.reshape(-1, len(names))
        # transposed and copied: each column is contiguous in memory
        return dict(zip(names, by_request.T.copy(), strict=True))

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
