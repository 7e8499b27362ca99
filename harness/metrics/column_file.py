"""Columns that wait on disk until they are read: the requests of a level that is held for long."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Packed = NDArray[np.signedinteger[Any]]
    PackedColumn = tuple[int, int, Packed]  # see `record_source.pack`


class ColumnFile:
    """A file without a name in a folder: it takes columns, and is gone with the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self._size = 0
        self.is_usable = True  # until the disk takes no more

    def store(self, columns: dict[str, PackedColumn]) -> StoredColumns | dict[str, PackedColumn]:
        """Where they lie now; these columns themselves where the disk takes no more."""
        if not self.is_usable:
            return columns
        rows = []
        for name, (n, first, steps) in columns.items():
            rows.append((name, n, first, steps.dtype.str, steps.tobytes()))
        packed: bytes = msgpack.packb(rows)
        try:
            written = os.pwrite(self._opened(), packed, self._size)
        except OSError:
            written = 0
        if written < len(packed):
            self.is_usable = False
            return columns
        stored = StoredColumns(self, self._size, len(packed))
        self._size += len(packed)
        return stored

    def read(self, begin: int, size: int) -> bytes:
        """Raises OSError."""
        stored = os.pread(self._opened(), size, begin)
        if len(stored) < size:
            raise OSError(errno.EIO, "a part of the stored columns is gone")
        return stored

    def _opened(self) -> int:
        if self._descriptor is None:
            file = TemporaryFile(buffering=0, dir=self._folder)  # noqa: SIM115 - closed below
            # Columns may be read as long as anything refers to them, and so to this file.
            weakref.finalize(self, file.close)
            self._descriptor = file.fileno()
        return self._descriptor


@dataclass(frozen=True, slots=True)
class StoredColumns:
    """Where some columns lie in their file."""

    file: ColumnFile
    begin: int
    size: int

    def items(self) -> Iterator[tuple[str, PackedColumn]]:
        """Those of the mapping that was stored. Raises OSError."""
        for name, n, first, kind, raw in msgpack.unpackb(self.file.read(self.begin, self.size)):
            yield name, (n, first, np.frombuffer(raw, kind))
