"""A run folder as Arrow tables and pandas frames; docs/run-folder.md says what each column is.

No number stands for "none": what is not there is null, and what failed took for ever. pandas takes
half a second to import, so that only who asks for a frame does.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness.measure.metrics import Observed, e2e, inner_events, itl, tpot, ttfot, ttft
from harness.measure.records import Outcome
from harness.measure.samples import GpuSample
from harness.measure.table import OUTCOMES, concat
from harness.measure.typed import to_json
from harness.runfolder import names
from harness.runfolder.columns import Columns
from harness.runfolder.damage import Damage
from harness.runfolder.jsonfiles import flat
from harness.runfolder.parquet import WINDOW, Levels, held
from harness.runfolder.reader import check_folder, read_gpu, read_pieces, read_result, read_server
from harness.runfolder.serverlines import NUMBERS
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from harness.measure.result import Result
    from harness.measure.table import RecordTable
    from harness.runfolder.columns import Piece

    Floats = NDArray[np.float64]

COUNTS: Final = ("planned_tokens", "prompt_tokens", "output_tokens", "cached_tokens")
LEVELS: Final = {  # the first columns of `levels`, and what steps.jsonl calls them
    "level": "index", "users": "users", "purpose": "purpose",
    "started_at": "chosen_ns", "settled_at": "settled_ns", "ended_at": "end_ns",
}  # fmt: skip
READINGS: Final = tuple(f.name for f in fields(GpuSample) if f.name != "at_ns")


@dataclass(frozen=True)
class RunFrames:
    """One run folder; each frame is read when it is first asked for."""

    path: Path

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row per request; from the records where a run that was killed has no parquet file."""
        file = self.path / names.PARQUET
        if file.exists():
            return _frame(pq.read_table(file))
        return self._joined(lambda piece, levels: requests_of([piece], levels))

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """One row per token-bearing event, and per token that a failed request owes."""
        return self._joined(lambda piece, levels: tokens_of(piece.table, levels))

    @cached_property
    def levels(self) -> pd.DataFrame:
        """One row per held level, with its figures of the result."""
        known = self._figures()
        rows = [
            {name: step.get(key) for name, key in LEVELS.items()}
            | {
                key: {None: nan, "inf": inf}.get(value, value)
                for key, value in flat(known.get(step["index"], {})).items()
                if key not in (*LEVELS.values(), *WINDOW, "start_ns")
            }
            for step in held(self.path)
        ]
        return _timed(rows, LEVELS, ("started_at", "settled_at", "ended_at"))

    @cached_property
    def server(self) -> pd.DataFrame:
        """One row per scrape of the server's metrics."""
        return _timed([
            {"at": s.at_ns} | {n: getattr(s, n) for n in NUMBERS} | flat({"finished": s.finished})
            for s in read_server(self.path, Damage())
        ], ("at", *NUMBERS))  # fmt: skip

    @cached_property
    def gpu(self) -> pd.DataFrame:
        """One row per reading of one GPU."""
        samples = read_gpu(self.path, Damage())
        rows = [{"at": s.at_ns} | flat({n: getattr(s, n) for n in READINGS}) for s in samples]
        return _timed(rows, ("at", *READINGS))

    @cached_property
    def result(self) -> Result | None:
        """What the run found; None where it was killed before that. Raises RunFolderError."""
        return read_result(self.path)

    def _figures(self) -> dict[int, dict[str, Any]]:
        """The result's levels by their index."""
        return {level.index: to_json(level) for level in self.result.levels} if self.result else {}

    def _joined(self, of: Callable[[Piece, Levels], pa.Table]) -> pd.DataFrame:
        levels, pieces = Levels(self.path), read_pieces(self.path, Damage())
        tables = [of(piece, levels) for piece in (Columns().piece(), *pieces)]
        return _frame(pa.concat_tables(tables))


def open_run(path: Path | str) -> RunFrames:
    """Raises RunFolderError where it is no run folder."""
    check_folder(Path(path))
    return RunFrames(Path(path))


def requests_of(pieces: Sequence[Piece], levels: Levels) -> pa.Table:
    """One row per request: requests.parquet."""
    table = concat([piece.table for piece in pieces])
    is_open, some, at = table.is_open, table.counts > 0, np.append(table.at_ns, -1)
    errors = [error for piece in pieces for error in piece.errors]
    sent = np.repeat(table.sent_ns, table.counts)
    offsets = _all(pa.int32(), table.offsets.astype(np.int32))

    def lists(values: NDArray[np.int64]) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, _all(pa.int64(), values))

    return _table({
        **{name: getattr(table, name) for name in ("worker", "number", "user")},
        **levels.place(table.sent_ns),
        "scheduled_at": table.scheduled_ns,
        "sent_at": table.sent_ns,
        "first_token_at": np.where(some, at[table.offsets[:-1]], -1),
        "last_token_at": np.where(some, at[table.offsets[1:] - 1], -1),
        "done_at": np.where(is_open, -1, table.done_ns),
        "ttft_ms": _latency(ttft(table), table),
        "ttfot_ms": _latency(ttfot(table), table),
        "tpot_ms": _latency(tpot(table), table),
        "e2e_ms": _latency(e2e(table), table, age=True),
        "connect_ms": np.where(table.connect_ns > 0, table.connect_ns, nan),
        "outcome": np.where(is_open, Outcome.open, np.array(OUTCOMES)[table.outcome]),
        "error": ["" if cut else error for cut, error in zip(is_open, errors, strict=True)],
        "finish_reason": [reason for piece in pieces for reason in piece.reasons],
        "status": np.where(table.status > 0, table.status, -1),
        **{name: getattr(table, name) for name in COUNTS},
        "token_at_ns": lists(table.at_ns - sent),
        "token_not_before_ns": lists(table.not_before_ns - sent),
        "tokens": lists(table.tokens),
    })  # fmt: skip


def tokens_of(table: RecordTable, levels: Levels) -> pa.Table:
    """One row per event; then one, infinitely late, per token that a failed request owes."""
    gaps, ends = itl(table), inner_events(table)
    lost = gaps.row[len(ends) :]  # these stand at the end
    at, row = np.append(table.at_ns, gaps.at_ns[len(ends) :]), table.request_of_event
    gap_ns = np.append(np.full(len(table.at_ns), nan), gaps.ns[len(ends) :])
    gap_ns[ends] = gaps.ns[: len(ends)]
    exact = np.append(table.at_ns == table.not_before_ns, lost < 0)
    known = np.arange(len(exact)) < len(table.at_ns)
    return _table({
        **{name: getattr(table, name)[np.append(row, lost)] for name in ("worker", "number")},
        **levels.place(at),
        "at": at,
        "gap_ms": gap_ns,
        "tokens": np.append(table.tokens, 0 * lost),
        "exact": _array(pa.bool_(), np.packbits(exact, bitorder="little"), known),
    })  # fmt: skip


def _latency(seen: Observed, table: RecordTable, *, age: bool = False) -> Floats:
    """To the nanosecond; NaN where it is undefined, or not known but for the request's age."""
    ns = np.full(len(table), nan)
    ns[seen.row] = np.where(seen.only_age & (not age), nan, seen.ns)
    return np.asarray(np.rint(ns))


def _table(columns: dict[str, Any]) -> pa.Table:
    """Below zero, NaN and "" become null; `..._ms` comes in ns, and so does every instant."""
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
    """None of them null."""
    return _array(kind, values, np.ones(len(values), bool))


def _array(
    kind: pa.DataType, values: NDArray[Any], some: NDArray[np.bool_], *rest: bytes
) -> pa.Array:
    """As `pa.array`, null where not `some`; that one imports pandas to see whether these are its.

    Values are of `kind` as they are in memory; of text its ends, and `rest` is the text.
    """
    there = None if some.all() else pa.py_buffer(np.packbits(some, bitorder="little"))
    buffers = [pa.py_buffer(each) for each in (np.ascontiguousarray(values), *rest)]
    return pa.Array.from_buffers(kind, len(some), [there, *buffers])


def _frame(table: pa.Table) -> pd.DataFrame:
    """Integers stay integers where some are null."""
    import pandas as pd  # noqa: PLC0415 - as above

    kinds = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    return table.to_pandas(types_mapper=kinds.get)


def _timed(
    rows: list[dict[str, Any]], first: Iterable[str], times: Sequence[str] = ("at",)
) -> pd.DataFrame:
    """A frame that has these columns first, also without a row."""
    import pandas as pd  # noqa: PLC0415 - as above

    frame = pd.DataFrame(rows)
    frame = frame.reindex(columns=[*dict.fromkeys([*first, *frame.columns])])
    for name in times:
        frame[name] = pd.to_datetime(frame[name], utc=True).astype("datetime64[ns, UTC]")
    return frame
