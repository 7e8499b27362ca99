"""Columns that wait on disk until they are read: the requests of a level that is held for long."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import msgpack
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Packed = NDArray[np.signedinteger[Any]]
    PackedColumn = tuple[int, int, Packed]  # see `record_source.pack`


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Where some columns lie in the file."""

    file: BinaryIO
    begin: int
    size: int

    def items(self) -> Iterator[tuple[str, PackedColumn]]:
        """As those of the mapping that was stored. Raises OSError."""
        stored = os.pread(self.file.fileno(), self.size, self.begin)
        for name, n, first, kind, raw in msgpack.unpackb(stored):
            yield name, (n, first, np.frombuffer(raw, kind))


class ColumnFile:
    """A file without a name in a folder: it takes columns, and ends with the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: BinaryIO | None = None
        self._size = 0
        self._is_usable = True

    def store(self, columns: dict[str, PackedColumn]) -> StoredColumns | dict[str, PackedColumn]:
        """Where they lie now; these columns themselves where the disk takes no more."""
        if not self._is_usable:
            return columns
        rows = []
        for name, (n, first, steps) in columns.items():
            rows.append((name, n, first, steps.dtype.str, steps.tobytes()))
        packed: bytes = msgpack.packb(rows)
        try:
            if self._file is None:
                self._file = TemporaryFile(buffering=0, dir=self._folder)
            written = os.pwrite(self._file.fileno(), packed, self._size)
        except OSError:
            written = 0
        if self._file is None or written < len(packed):
            self._is_usable = False
            return columns
        stored = StoredColumns(self._file, self._size, len(packed))
        self._size += len(packed)
        return stored

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
