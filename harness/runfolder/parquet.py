"""Writes requests.parquet: one row per request, its events as lists, for pandas, DuckDB, ..."""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.runfolder import names
from harness.runfolder.json_files import read_json, read_lines
from harness.runfolder.record_tables import TableBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from harness.runfolder.folder_writer import RunFolder
    from harness.runfolder.record_tables import TablePart

ROW_GROUP_EVENTS: Final = 1 << 17  # events per row group, about: 3 MB
WINDOW_FIELDS: Final = ("index", "users", "chosen_ns", "settled_ns", "end_ns", "judged_ns")


class Phase(StrEnum):
    """The phase of a level in which a request was sent or a token arrived."""

    warm_up = "warm-up"
    measured = "measured"
    drain = "drain"


class Levels:
    """The levels of a run folder by time, and their phases."""

    def __init__(self, path: Path) -> None:
        spans = [(-1, -1, -1, "")]
        last_ns = -1
        for step in level_rows(path):
            level, users, chosen_ns, settled_ns, end_ns, last_ns = (
                step[key] for key in WINDOW_FIELDS
            )
            begins = zip((chosen_ns, settled_ns, end_ns + 1), Phase, strict=True)
            spans += [(at_ns, level, users, phase) for at_ns, phase in begins]
        if not (read_json(path / names.ENDED) or {}).get("status"):
            # A level that was still warming up when the run was stopped has no line: what was sent
            # after the last line belongs to no level.
            spans.append((last_ns + 1, -1, -1, ""))
        begins_ns, *columns = (np.array(column) for column in zip(*spans, strict=True))
        self._begins_ns = np.maximum.accumulate(begins_ns)
        self._columns = dict(zip(("level", "users", "phase"), columns, strict=True))

    def place(self, at_ns: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the columns for these instants; -1 and "" without a level."""
        span = np.searchsorted(self._begins_ns, at_ns, side="right") - 1
        return {name: column[span] for name, column in self._columns.items()}


def level_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of levels.jsonl that name their window."""
    return [
        row
        for row in read_lines(path / names.levels_file(path))[0]
        if {*WINDOW_FIELDS} <= row.keys()
    ]


@contextmanager
def parquet_writer(folder: RunFolder) -> Iterator[Callable[[TablePart], None]]:
    """Yield a function that takes tables of records; requests.parquet exists when the block ends.

    Raises RunFolderError if it cannot be written.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - 0.2 s, and only needed here

    from harness.runfolder.run_frames import requests_of  # noqa: PLC0415 - as above

    levels = Levels(folder.path)
    empty = requests_of([TableBuilder().piece()], levels)
    # Dictionary encoding only for columns with repeated values: instants hardly ever repeat, and
    # building a dictionary of them takes twice the time and saves nothing.
    words = [f.name for f in empty.schema if str(f.type) in ("int64", "string")]
    words.append("tokens.list.element")
    with (
        folder.replacing(names.PARQUET) as file,
        pq.ParquetWriter(file, empty.schema, compression="zstd", use_dictionary=words) as writer,
    ):
        group: list[TablePart] = []

        def add(piece: TablePart) -> None:
            group.append(piece)
            if sum(len(each.table.at_ns) for each in group) >= ROW_GROUP_EVENTS:
                writer.write_table(requests_of(group, levels))
                group.clear()

        yield add
        writer.write_table(requests_of(group, levels) if group else empty)
