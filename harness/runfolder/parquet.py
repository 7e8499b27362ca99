"""requests.parquet: one row per request, its events as lists, for pandas, DuckDB and friends."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.runfolder import names
from harness.runfolder.columns import Columns
from harness.runfolder.damage import Damage
from harness.runfolder.jsonfiles import read_json, read_lines
from harness.runfolder.reader import read_pieces

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from harness.runfolder.columns import Piece
    from harness.runfolder.writer import RunFolder

GROUP: Final = 1 << 17  # events of a row group, about: three megabytes
WINDOW: Final = ("index", "users", "chosen_ns", "settled_ns", "end_ns", "judged_ns")


class Phase(StrEnum):
    """What a level was in when a request was sent, or a token came."""

    warm_up = "warm-up"
    measured = "measured"
    drain = "drain"


class Levels:
    """When which level was held in a run folder, and in which phase it was."""

    def __init__(self, path: Path) -> None:
        """As steps.jsonl says."""
        spans = [(-1, -1, -1, "")]
        last_ns = -1
        for step in held(path):
            level, users, chosen_ns, settled_ns, end_ns, last_ns = (step[key] for key in WINDOW)
            begins = zip((chosen_ns, settled_ns, end_ns + 1), Phase, strict=True)
            spans += [(at_ns, level, users, phase) for at_ns, phase in begins]
        if not (read_json(path / names.ENDED) or {}).get("status"):
            # a level that was still warming up when the run was stopped has no line
            spans.append((last_ns + 1, -1, -1, ""))
        begins_ns, *columns = (np.array(column) for column in zip(*spans, strict=True))
        self._begins_ns = np.maximum.accumulate(begins_ns)
        self._columns = dict(zip(("level", "users", "phase"), columns, strict=True))

    def place(self, at_ns: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Columns for these instants; -1 and "" without a level."""
        span = np.searchsorted(self._begins_ns, at_ns, side="right") - 1
        return {name: column[span] for name, column in self._columns.items()}


def held(path: Path) -> list[dict[str, Any]]:
    """The lines of steps.jsonl that name their window."""
    return [row for row in read_lines(path / names.STEPS)[0] if {*WINDOW} <= row.keys()]


def write_parquet(folder: RunFolder) -> None:
    """Write requests.parquet from the folder's records, some at a time, in their order.

    Raises RunFolderError when it cannot be written.
    """
    import pyarrow.parquet as pq  # noqa: PLC0415 - 0.2 s, and only needed here

    from harness.runfolder.frames import requests_of  # noqa: PLC0415 - as above

    levels = Levels(folder.path)
    empty = requests_of([Columns().piece()], levels)
    # instants hardly ever repeat: looking for repetitions takes twice the time and saves nothing
    words = [f.name for f in empty.schema if str(f.type) in ("int64", "string")]
    words.append("tokens.list.element")
    with (
        folder.replacing(names.PARQUET) as file,
        pq.ParquetWriter(file, empty.schema, compression="zstd", use_dictionary=words) as writer,
    ):
        some: list[Piece] = []
        for piece in read_pieces(folder.path, Damage()):
            some.append(piece)
            if sum(len(each.table.at_ns) for each in some) >= GROUP:
                writer.write_table(requests_of(some, levels))
                some = []
        writer.write_table(requests_of(some, levels) if some else empty)
