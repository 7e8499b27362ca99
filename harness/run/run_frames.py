"""A run folder as Arrow tables and pandas frames; docs/run-folder.md describes the columns.

Missing values are null, never a special number, and a failed request's latencies are infinite.
Importing pandas takes half a second, so it is imported when the first frame is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


IDENTITY: Final = ("worker", "number", "user", "session", "turn", "mix_row")
COUNTS: Final = (
    "planned_tokens",
    "planned_prompt",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
)
LEVELS: Final = {  # the first columns of `levels`, and what levels.jsonl calls them
    "level": "index",
    "users": "users",
    "purpose": "purpose",
    "started_at": "chosen_ns",
    "settled_at": "settled_ns",
    "ended_at": "end_ns",
}
WINDOW_FIELDS: Final = ("index", "users", "chosen_ns", "settled_ns", "end_ns", "judged_ns")
# of a level of result.json: what `levels` has under another name
NOT_FIGURES: Final = frozenset((*LEVELS.values(), *WINDOW_FIELDS, "start_ns"))
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
        figures_of = self._figures()
        rows = []
        for line in level_rows(self.path):
            row = {column: line.get(key) for column, key in LEVELS.items()}
            for key, value in figures_of.get(line["index"], {}).items():
                if key not in NOT_FIGURES:
                    row[key] = _number_of_json(value)
            rows.append(row)
        return _timed(rows, LEVELS, ("started_at", "settled_at", "ended_at"))

    @cached_property
    def server(self) -> pd.DataFrame:
        rows = []
        for sample in read_server(self.path, Damage()):
            row: dict[str, Any] = {"at": sample.at_ns}
            row |= {name: getattr(sample, name) for name in NUMBER_FIELDS}
            row |= flat({"finished": sample.finished})
            rows.append(row)
        return _timed(rows, ("at", *NUMBER_FIELDS))

    @cached_property
    def gpu(self) -> pd.DataFrame:
        rows = []
        for sample in read_gpu(self.path, Damage()):
            readings = {name: getattr(sample, name) for name in READINGS}
            rows.append({"at": sample.at_ns} | flat(readings))
        return _timed(rows, ("at", *READINGS))

    @cached_property
    def result(self) -> Result | None:
        """The result; None if the run was killed before it was written. Raises RunFolderError."""
        return read_result(self.path)

    def _figures(self) -> dict[int, dict[str, Any]]:
        """The figures of result.json by the number of the level; {} without a result."""
        if self.result is None:
            return {}
        figures = {}
        for level in self.result.levels:
            figures[level.index] = flat(to_json(level))
        return figures

    def _joined(self, build: Callable[[TablePart, Levels], pa.Table]) -> pd.DataFrame:
        """The rows of all record files. The empty piece first gives the columns without any."""
        levels = Levels(self.path)
        empty = TableBuilder().piece()
        pieces = (empty, *read_pieces(self.path, Damage()))
        tables = [build(piece, levels) for piece in pieces]
        return _frame(pa.concat_tables(tables))


def open_run(path: Path | str) -> RunFrames:
    """Open a run folder. Raises RunFolderError if it is none."""
    check_folder(Path(path))
    return RunFrames(Path(path))


def requests_of(pieces: Sequence[TablePart], levels: Levels) -> pa.Table:
    """Build the table of requests.parquet, one row per request."""
    table = concat_tables([piece.table for piece in pieces])
    columns: dict[str, Any] = {name: getattr(table, name) for name in IDENTITY}
    columns["name"] = [name for piece in pieces for name in piece.names]
    columns |= levels.place(table.sent_ns)
    columns |= _instants(table)
    columns |= _latencies(table)
    columns |= _endings(table, pieces)
    columns |= {name: getattr(table, name) for name in COUNTS}
    columns |= _event_lists(table)
    return _table(columns)


def _instants(table: RecordTable) -> dict[str, Ints]:
    """When a request was due, sent, answered and done; -1 where that has not happened."""
    has_tokens = table.counts > 0
    # One more instant keeps the index of a request without tokens inside the array.
    at_ns = np.append(table.at_ns, -1)
    first_ns = at_ns[table.offsets[:-1]]
    last_ns = at_ns[table.offsets[1:] - 1]
    return {
        "scheduled_at": table.scheduled_ns,
        "sent_at": table.sent_ns,
        "first_token_at": np.where(has_tokens, first_ns, -1),
        "last_token_at": np.where(has_tokens, last_ns, -1),
        "done_at": np.where(table.is_open, -1, table.done_ns),
    }


def _latencies(table: RecordTable) -> dict[str, Floats]:
    """The latencies of which a request has one at most, in ns."""
    columns: dict[str, Floats] = {}
    for key, latency in LATENCIES.items():
        if key not in GAPS:
            observed = latency.observe(table)
            columns[latency.field] = _latency(observed, table, age=latency.at_age)
    columns["think_ms"] = np.where(table.think_ns > 0, table.think_ns, nan)
    columns["connect_ms"] = np.where(table.connect_ns > 0, table.connect_ns, nan)
    return columns


def _endings(table: RecordTable, pieces: Sequence[TablePart]) -> dict[str, Any]:
    """How a request ended; one that is open has no error."""
    outcomes = np.array(OUTCOMES)[table.outcome]
    recorded_errors: list[str] = []
    reasons: list[str] = []
    for piece in pieces:
        recorded_errors += piece.errors
        reasons += piece.reasons
    by_request = zip(table.is_open, recorded_errors, strict=True)
    errors = ["" if is_open else error for is_open, error in by_request]
    return {
        "outcome": np.where(table.is_open, Outcome.open, outcomes),
        "error": errors,
        "finish_reason": reasons,
        "status": np.where(table.status > 0, table.status, -1),
    }


def _event_lists(table: RecordTable) -> dict[str, pa.Array]:
    """Lists with an item for each token-bearing event; instants are since the request was sent."""
    offsets = _all(pa.int32(), table.offsets.astype(np.int32))
    sent_ns = np.repeat(table.sent_ns, table.counts)

    def lists(values: Ints) -> pa.Array:
        items = _all(pa.int64(), values)
        return pa.ListArray.from_arrays(offsets, items)

    return {
        "token_at_ns": lists(table.at_ns - sent_ns),
        "token_not_before_ns": lists(table.not_before_ns - sent_ns),
        "tokens": lists(table.tokens),
    }


def tokens_of(table: RecordTable, levels: Levels) -> pa.Table:
    """Build one row per event, then one, infinitely late, per token not delivered."""
    # `gaps` has the gaps between events first, then an infinite one for each token that a failed
    # request did not deliver.
    gaps = itl(table)
    gap_ends = event_gaps(table).end
    n_gaps = len(gap_ends)
    # A request's first event ends no gap.
    event_gap_ns = np.full(len(table.at_ns), nan)
    event_gap_ns[gap_ends] = gaps.ns[:n_gaps]
    at_ns = np.append(table.at_ns, gaps.at_ns[n_gaps:])
    row = np.append(table.request_of_event, gaps.row[n_gaps:])
    n_lost = len(gaps.row) - n_gaps
    columns: dict[str, Any] = {"worker": table.worker[row], "number": table.number[row]}
    columns |= levels.place(at_ns)
    columns["at"] = at_ns
    columns["gap_ms"] = np.append(event_gap_ns, gaps.ns[n_gaps:])
    columns["tokens"] = np.append(table.tokens, np.zeros(n_lost, np.int64))
    columns["exact"] = _exact(table, n_lost)
    return _table(columns)


def _exact(table: RecordTable, n_lost: int) -> pa.Array:
    """Whether the stamp of an event is exact; null for the tokens that never came."""
    lost = np.zeros(n_lost, bool)
    exact = np.append(table.at_ns == table.not_before_ns, lost)
    is_event = np.append(np.ones(len(table.at_ns), bool), lost)
    return _array(pa.bool_(), np.packbits(exact, bitorder="little"), is_event)


def _latency(observed: Observations, table: RecordTable, *, age: bool = False) -> Floats:
    """Return whole ns by row; NaN: undefined, or only the age of an unfinished request is known.

    `age`: an age counts too.
    """
    observed_ns = observed.ns
    if not age:
        observed_ns = np.where(observed.only_age, nan, observed_ns)
    ns = np.full(len(table), nan)
    ns[observed.row] = observed_ns
    return np.asarray(np.rint(ns))


def _table(columns: Mapping[str, Any]) -> pa.Table:
    """Build a table; negative numbers, NaN and "" become null. `..._ms` columns are given in ns."""
    return pa.table({name: _column(name, values) for name, values in columns.items()})


def _column(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if name.endswith("_ms"):
        return _array(pa.float64(), values / MS, ~np.isnan(values))
    if isinstance(values, list) or values.dtype.kind == "U":
        return _texts([str(text) for text in values])
    kind = pa.timestamp("ns", "UTC") if name.endswith("at") else pa.int64()
    return _array(kind, values.astype(np.int64), values >= 0)


def _texts(texts: Sequence[str], known: Bools | None = None) -> pa.Array:
    """A column of texts that is null where not `known`; without it, where a text is empty."""
    encoded = [text.encode() for text in texts]
    if known is None:
        known = np.array([bool(text) for text in encoded], bool)
    ends = np.cumsum([0, *map(len, encoded)])
    return _array(pa.string(), ends.astype(np.int32), known, b"".join(encoded))


def _all(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """Build an array without a null."""
    return _array(kind, values, np.ones(len(values), bool))


def _array(kind: pa.DataType, values: NDArray[Any], known: Bools, *text: bytes) -> pa.Array:
    """Build an array that is null where not `known`.

    `values` must have the memory layout of `kind`; for text they are its offsets, and `text` is its
    bytes.
    """
    # Not `pa.array`: it imports pandas (half a second) to check for types of pandas.
    bits = None
    if not known.all():
        bits = pa.py_buffer(np.packbits(known, bitorder="little"))
    contents = (np.ascontiguousarray(values), *text)
    buffers = [pa.py_buffer(content) for content in contents]
    return pa.Array.from_buffers(kind, len(known), [bits, *buffers])


def _frame(table: pa.Table) -> pd.DataFrame:
    # pandas' nullable types: with the default ones, integers with a null become floats
    import pandas as pd  # noqa: PLC0415 - as above

    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=kinds.get)


def _number_of_json(value: Any) -> Any:
    """The number that JSON has as null or as "inf"; what is no number stays."""
    if value is None:
        return nan
    return inf if value == "inf" else value


def _timed(
    rows: list[dict[str, Any]], first: Iterable[str], times: Sequence[str] = ("at",)
) -> pd.DataFrame:
    """Build a frame that has the columns `first` even without rows."""
    import pandas as pd  # noqa: PLC0415 - as above

    frame = pd.DataFrame(rows)
    columns = dict.fromkeys([*first, *frame.columns])
    frame = frame.reindex(columns=[*columns])
    for name in times:
        instants = pd.to_datetime(frame[name], utc=True)
        frame[name] = instants.astype("datetime64[ns, UTC]")
    return frame


ROW_GROUP_EVENTS: Final = 1 << 17  # events per row group, about: 3 MB
EVENT_LISTS: Final = ("token_at_ns", "token_not_before_ns")
EVENT_INSTANTS: Final = tuple(f"{name}.list.element" for name in EVENT_LISTS)


class Phase(StrEnum):
    """The phase of a level in which a request was sent or a token arrived."""

    warm_up = "warm-up"
    measured = "measured"
    drain = "drain"


class _Span(NamedTuple):
    """From when on requests belong to a phase of a level; -1 and "": to none."""

    begin_ns: int
    level: int
    users: int
    phase: str


NO_LEVEL: Final = _Span(-1, -1, -1, "")


class Levels:
    """The levels of a run folder by time, and their phases."""

    def __init__(self, path: Path) -> None:
        spans: list[_Span] = [NO_LEVEL]
        last_ns = -1
        for line in level_rows(path):
            begins_ns = (line["chosen_ns"], line["settled_ns"], line["end_ns"] + 1)
            for begin_ns, phase in zip(begins_ns, Phase, strict=True):
                spans.append(_Span(begin_ns, line["index"], line["users"], phase))
            last_ns = line["judged_ns"]
        ended = read_json(path / names.ENDED) or {}
        if not ended.get("status"):
            # A level that was still warming up when the run was stopped has no line: what was sent
            # after the last line belongs to no level.
            spans.append(NO_LEVEL._replace(begin_ns=last_ns + 1))
        begins = np.array([span.begin_ns for span in spans])
        self._begins_ns = np.maximum.accumulate(begins)
        self._columns = {
            "level": np.array([span.level for span in spans]),
            "users": np.array([span.users for span in spans]),
            "phase": np.array([span.phase for span in spans]),
        }

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
    cells = {key: [row.get(key) for row in rows] for key in columns}
    table = pa.table({key: _of_cells(column) for key, column in cells.items()})
    with folder.replacing(names.LEVELS_PARQUET) as file:
        # A few hundred columns of a few rows: all that a file says of a column is larger than it.
        plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
        pq.write_table(table, file, **plain)


def _of_cells(cells: list[Any]) -> pa.Array:
    """A column of JSON's scalars: text, numbers ("inf" is one), truths; None is null."""
    values = [inf if cell == "inf" else cell for cell in cells]
    known = np.array([value is not None for value in values], bool)
    kinds = {type(value) for value in values if value is not None}
    if str in kinds:
        return _texts(["" if value is None else str(value) for value in values], known)
    if kinds == {bool}:
        bits = np.packbits([bool(value) for value in values], bitorder="little")
        return _array(pa.bool_(), bits, known)
    numbers = [value or 0 for value in values]
    if kinds == {int}:
        return _array(pa.int64(), np.array(numbers, np.int64), known)
    return _array(pa.float64(), np.array(numbers, np.float64), known)


@contextmanager
def parquet_writer(folder: RunFolder) -> Iterator[Callable[[TablePart], None]]:
    """Yield a function that takes tables of records; requests.parquet exists when the block ends.

    Raises RunFolderError if it cannot be written.
    """
    levels = Levels(folder.path)
    empty = requests_of([TableBuilder().piece()], levels)
    # Dictionary encoding only for columns with repeated values: instants hardly ever repeat, and
    # building a dictionary of them takes twice the time and saves nothing. Those of events grow by
    # a gap each: stored as differences they take two thirds of the time, and less space.
    repeating = [f.name for f in empty.schema if str(f.type) in ("int64", "string")]
    repeating.append("tokens.list.element")
    differences = dict.fromkeys(EVENT_INSTANTS, "DELTA_BINARY_PACKED")
    with (
        folder.replacing(names.PARQUET) as file,
        pq.ParquetWriter(
            file,
            empty.schema,
            compression="zstd",
            use_dictionary=repeating,
            column_encoding=differences,
            # Those of an event's instant help nobody to skip a row group.
            write_statistics=[name for name in empty.schema.names if name not in EVENT_LISTS],
        ) as writer,
        ThreadPoolExecutor(1) as thread,
    ):
        group: list[TablePart] = []
        pending: Future[None] = Future()
        pending.set_result(None)  # nothing is being written yet

        def write(rows: pa.Table) -> None:
            # In a thread, as pyarrow works without Python's lock; one group at a time, which bounds
            # the memory.
            nonlocal pending
            pending.result()
            pending = thread.submit(writer.write_table, rows)

        def add(piece: TablePart) -> None:
            group.append(piece)
            n_events = sum(len(part.table.at_ns) for part in group)
            if n_events >= ROW_GROUP_EVENTS:
                write(requests_of(group, levels))
                group.clear()

        yield add
        write(requests_of(group, levels) if group else empty)
        pending.result()
    pa.default_memory_pool().release_unused()
