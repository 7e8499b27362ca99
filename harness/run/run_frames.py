"""A run folder as Arrow tables and pandas frames; docs/run-folder.md describes the columns.

Missing values are null, never a special number, and a failed request's latencies are infinite.
Importing pandas takes half a second, so it is imported when the first frame is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.core.typed_json import to_json
from harness.metrics.event_gaps import event_gaps
from harness.metrics.metrics import GAPS, LATENCIES, Observations, itl
from harness.metrics.result import read_result
from harness.records import names
from harness.records.folder_reader import (
    NUMBER_FIELDS,
    check_folder,
    read_gpu,
    read_pieces,
    read_server,
)
from harness.records.json_files import flat, read_json, read_lines
from harness.records.record_table import OUTCOMES, RecordTable, concat_tables
from harness.records.record_tables import Damage, TableBuilder, TablePart
from harness.records.request_record import Outcome
from harness.records.samples import GpuSample
from harness.units import MS

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from harness.core.arrays import Bools, Floats, Ints
    from harness.metrics.result import Result
    from harness.records.folder_writer import RunFolder


COUNTS: Final = (
    "planned_tokens",
    "planned_prompt",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
)
LEVELS: Final = {  # the first columns of `levels`, and what levels.jsonl calls them
    "level": "index", "users": "users", "purpose": "purpose",
    "started_at": "chosen_ns", "settled_at": "settled_ns", "ended_at": "end_ns",
}  # fmt: skip
READINGS: Final = tuple(f.name for f in fields(GpuSample) if f.name != "at_ns")


@dataclass(frozen=True)
class RunFrames:
    """One run folder; each frame is read on first access."""

    path: Path

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request; from the records if a killed run left no parquet file."""
        file = self.path / names.PARQUET
        if file.exists():
            return _frame(pq.read_table(file))
        return self._joined(lambda piece, levels: requests_of([piece], levels))

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per token-bearing event, and per token that a failed request did not deliver."""
        return self._joined(lambda piece, levels: tokens_of(piece.table, levels))

    @cached_property
    def levels(self) -> pd.DataFrame:
        known = self._figures()
        rows = [
            {name: step.get(key) for name, key in LEVELS.items()}
            | {
                key: {None: nan, "inf": inf}.get(value, value)
                for key, value in flat(known.get(step["index"], {})).items()
                if key not in (*LEVELS.values(), *WINDOW_FIELDS, "start_ns")
            }
            for step in level_rows(self.path)
        ]
        return _timed(rows, LEVELS, ("started_at", "settled_at", "ended_at"))

    @cached_property
    def server(self) -> pd.DataFrame:
        return _timed(
            [
                {"at": s.at_ns}
                | {n: getattr(s, n) for n in NUMBER_FIELDS}
                | flat({"finished": s.finished})
                for s in read_server(self.path, Damage())
            ],
            ("at", *NUMBER_FIELDS),
        )

    @cached_property
    def gpu(self) -> pd.DataFrame:
        samples = read_gpu(self.path, Damage())
        rows = [{"at": s.at_ns} | flat({n: getattr(s, n) for n in READINGS}) for s in samples]
        return _timed(rows, ("at", *READINGS))

    @cached_property
    def result(self) -> Result | None:
        """The result; None if the run was killed before it was written. Raises RunFolderError."""
        return read_result(self.path)

    def _figures(self) -> dict[int, dict[str, Any]]:
        return {level.index: to_json(level) for level in self.result.levels} if self.result else {}

    def _joined(self, of: Callable[[TablePart, Levels], pa.Table]) -> pd.DataFrame:
        levels, pieces = Levels(self.path), read_pieces(self.path, Damage())
        tables = [of(piece, levels) for piece in (TableBuilder().piece(), *pieces)]
        return _frame(pa.concat_tables(tables))


def open_run(path: Path | str) -> RunFrames:
    """Open a run folder. Raises RunFolderError if it is none."""
    check_folder(Path(path))
    return RunFrames(Path(path))


def requests_of(pieces: Sequence[TablePart], levels: Levels) -> pa.Table:
    """Build the table of requests.parquet, one row per request."""
    table = concat_tables([piece.table for piece in pieces])
    is_open, some, at = table.is_open, table.counts > 0, np.append(table.at_ns, -1)
    errors = [error for piece in pieces for error in piece.errors]
    sent = np.repeat(table.sent_ns, table.counts)
    offsets = _all(pa.int32(), table.offsets.astype(np.int32))

    def lists(values: Ints) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, _all(pa.int64(), values))

    return _table(
        {
            **{
                name: getattr(table, name)
                for name in ("worker", "number", "user", "session", "turn", "mix_row")
            },
            **levels.place(table.sent_ns),
            "scheduled_at": table.scheduled_ns,
            "sent_at": table.sent_ns,
            "first_token_at": np.where(some, at[table.offsets[:-1]], -1),
            "last_token_at": np.where(some, at[table.offsets[1:] - 1], -1),
            "done_at": np.where(is_open, -1, table.done_ns),
            **{
                row.field: _latency(row.observe(table), table, age=row.at_age)
                for key, row in LATENCIES.items()
                if key not in GAPS
            },
            "think_ms": np.where(table.think_ns > 0, table.think_ns, nan),
            "connect_ms": np.where(table.connect_ns > 0, table.connect_ns, nan),
            "outcome": np.where(is_open, Outcome.open, np.array(OUTCOMES)[table.outcome]),
            "error": ["" if cut else error for cut, error in zip(is_open, errors, strict=True)],
            "finish_reason": [reason for piece in pieces for reason in piece.reasons],
            "status": np.where(table.status > 0, table.status, -1),
            **{name: getattr(table, name) for name in COUNTS},
            "token_at_ns": lists(table.at_ns - sent),
            "token_not_before_ns": lists(table.not_before_ns - sent),
            "tokens": lists(table.tokens),
        }
    )


def tokens_of(table: RecordTable, levels: Levels) -> pa.Table:
    """Build one row per event, then one, infinitely late, per token not delivered."""
    # `gaps` has the gaps between events first (gap i ends at event `ends[i]`), then an infinite one
    # for each token that a failed request did not deliver. A request's first event ends no gap,
    # so the gaps are scattered into an array of NaN with a row for each event.
    gaps, ends = itl(table), event_gaps(table).end
    lost = gaps.row[len(ends) :]
    at, row = np.append(table.at_ns, gaps.at_ns[len(ends) :]), table.request_of_event
    gap_ns = np.append(np.full(len(table.at_ns), nan), gaps.ns[len(ends) :])
    gap_ns[ends] = gaps.ns[: len(ends)]
    exact = np.append(table.at_ns == table.not_before_ns, lost < 0)
    known = np.arange(len(exact)) < len(table.at_ns)
    return _table(
        {
            **{name: getattr(table, name)[np.append(row, lost)] for name in ("worker", "number")},
            **levels.place(at),
            "at": at,
            "gap_ms": gap_ns,
            "tokens": np.append(table.tokens, 0 * lost),
            "exact": _array(pa.bool_(), np.packbits(exact, bitorder="little"), known),
        }
    )


def _latency(seen: Observations, table: RecordTable, *, age: bool = False) -> Floats:
    """Return whole ns by row; NaN: undefined, or only the age of an unfinished request is known."""
    ns = np.full(len(table), nan)
    ns[seen.row] = np.where(seen.only_age & (not age), nan, seen.ns)
    return np.asarray(np.rint(ns))


def _table(columns: dict[str, Any]) -> pa.Table:
    """Build a table; negative numbers, NaN and "" become null. `..._ms` columns are given in ns."""
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, pa.Array):
            arrays[name] = values
        elif name.endswith("_ms"):
            arrays[name] = _array(pa.float64(), values / MS, ~np.isnan(values))
        elif isinstance(values, list) or values.dtype.kind == "U":
            texts = [str(text).encode() for text in values]
            ends = np.cumsum([0, *map(len, texts)])
            some = np.array([bool(text) for text in texts], bool)
            arrays[name] = _array(pa.string(), ends.astype(np.int32), some, b"".join(texts))
        else:
            kind = pa.timestamp("ns", "UTC") if name.endswith("at") else pa.int64()
            arrays[name] = _array(kind, values.astype(np.int64), values >= 0)
    return pa.table(arrays)


def _all(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    return _array(kind, values, np.ones(len(values), bool))


def _array(kind: pa.DataType, values: NDArray[Any], some: Bools, *rest: bytes) -> pa.Array:
    """Build an array that is null where not `some`.

    `values` must have the memory layout of `kind`; for text they are its offsets, and `rest` is the
    text's bytes.
    """
    # Not `pa.array`: it imports pandas (half a second) to check for types of pandas.
    there = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    buffers = [pa.py_buffer(each) for each in (np.ascontiguousarray(values), *rest)]
    return pa.Array.from_buffers(kind, len(some), [there, *buffers])


def _frame(table: pa.Table) -> pd.DataFrame:
    # pandas' nullable types: with the default ones, integers with a null become floats
    import pandas as pd  # noqa: PLC0415 - as above

    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=kinds.get)


def _timed(
    rows: list[dict[str, Any]], first: Iterable[str], times: Sequence[str] = ("at",)
) -> pd.DataFrame:
    """Build a frame that has the columns `first` even without rows."""
    import pandas as pd  # noqa: PLC0415 - as above

    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*dict.fromkeys([*first, *frame.columns])])
    for name in times:
        frame[name] = pd.to_datetime(frame[name], utc=True).astype("datetime64[ns, UTC]")
    return frame


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

    def place(self, at_ns: Ints) -> dict[str, NDArray[Any]]:
        """Return the columns for these instants; -1 and "" without a level."""
        span = np.searchsorted(self._begins_ns, at_ns, side="right") - 1
        return {name: column[span] for name, column in self._columns.items()}


def level_rows(path: Path) -> list[dict[str, Any]]:
    """The lines of levels.jsonl that name their window."""
    rows, _ = read_lines(path / names.levels_file(path))
    return [row for row in rows if {*WINDOW_FIELDS} <= row.keys()]


def write_levels(folder: RunFolder, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write levels.parquet: a row for each level, its columns in the order in which they come up.

    The cells are those of JSON. Raises RunFolderError if it cannot be written.
    """
    columns = dict.fromkeys(key for row in rows for key in row)
    table = pa.table({key: _of_cells([row.get(key) for row in rows]) for key in columns})
    with folder.replacing(names.LEVELS_PARQUET) as file:
        # A few hundred columns of a few rows: all that a file says of a column is larger than it.
        plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
        pq.write_table(table, file, **plain)


def _of_cells(cells: list[Any]) -> pa.Array:
    """A column of JSON's scalars: text, numbers ("inf" is one), truths; None is null."""
    cells = [inf if cell == "inf" else cell for cell in cells]
    some = np.array([cell is not None for cell in cells], bool)
    kinds = {type(cell) for cell in cells if cell is not None}
    if str in kinds:
        texts = [b"" if cell is None else str(cell).encode() for cell in cells]
        ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
        return _array(pa.string(), ends, some, b"".join(texts))
    if kinds == {bool}:
        truths = np.packbits([bool(cell) for cell in cells], bitorder="little")
        return _array(pa.bool_(), truths, some)
    kind = np.int64 if kinds == {int} else np.float64
    numbers = np.array([cell or 0 for cell in cells], kind)
    return _array(pa.int64() if kind is np.int64 else pa.float64(), numbers, some)


@contextmanager
def parquet_writer(folder: RunFolder) -> Iterator[Callable[[TablePart], None]]:
    """Yield a function that takes tables of records; requests.parquet exists when the block ends.

    Raises RunFolderError if it cannot be written.
    """
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
