"""Reads a run folder, whatever happened to it, and counts what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from harness.errors import RunFolderError
from harness.measure.diagnosis.trace_split import RequestTrace
from harness.measure.records.record_source import keep_three_events
from harness.measure.records.record_table import concat_tables
from harness.measure.records.samples import ClientSample, GpuSample
from harness.measure.records.seen_numbers import SeenNumbers
from harness.measure.result import Result
from harness.measure.typed_json import from_json
from harness.runfolder import names
from harness.runfolder.json_files import number, read_json, read_lines
from harness.runfolder.record_tables import Damage, read_tables
from harness.runfolder.server_lines import from_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.measure.records.record_table import RecordTable
    from harness.measure.records.samples import ServerSample
    from harness.runfolder.record_tables import TablePart

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder: its requests and samples in memory, its tokens on disk (`Recorded`).

    Rows of `table` and entries of `errors` are the same requests, ordered by worker and number.
    """

    path: Path
    info: dict[str, Any]  # run.json; {} if it is missing
    table: RecordTable  # thin: at most three events of each request
    errors: list[str]  # "": no error text
    levels: list[dict[str, Any]]
    server: list[ServerSample]
    client: list[ClientSample]
    gpu: list[GpuSample]
    traces: list[RequestTrace]
    damage: Damage

    def chunks(self) -> Iterator[RecordTable]:
        """Read all requests with all events from the record files again."""
        return (piece.table for piece in read_pieces(self.path, Damage()))


def check_folder(path: Path) -> None:
    """Raises RunFolderError where it is no run folder at all."""
    known = (names.RUN, names.levels_file(path), names.SERVER, names.RESULT)
    if not path.is_dir() or not (
        names.record_files(path) or any((path / name).exists() for name in known)
    ):
        raise RunFolderError(
            f"{path} is not a run folder: expected a directory with {names.RUN}, as `vllm-harness "
            "knee` or `run` write it; try one under reports/."
        )


def read_run(path: Path | str, also: Callable[[TablePart], None] | None = None) -> Run:
    """Read everything in a run folder. Raises RunFolderError only if it is no run folder.

    `also` is called with the requests and all their tokens while they are read, which saves its
    caller a second pass over the files.
    """
    path = Path(path)
    check_folder(path)
    damage = Damage()
    table, errors = read_requests(path, damage, also)
    info = read_json(path / names.RUN)
    if info is None:
        damage.unreadable.append(names.RUN)
    return Run(
        path=path,
        info=info or {},
        table=table,
        errors=errors,
        levels=_lines(path, names.levels_file(path), damage),
        server=read_server(path, damage),
        client=read_client(path, damage),
        gpu=read_gpu(path, damage),
        traces=read_traces(path, damage),
        damage=damage,
    )


def read_result(path: Path) -> Result | None:
    """Read result.json; None if it is missing. Raises RunFolderError for an unknown format."""
    value = read_json(path / names.RESULT)
    if value is None:
        return None
    try:
        return from_json(Result, value)
    except ValueError as error:
        raise RunFolderError(
            f"{path / names.RESULT} cannot be read ({error}): expected what this version writes; "
            f"try `vllm-harness report {path}`, which writes it again."
        ) from None


def read_requests(
    path: Path, damage: Damage, also: Callable[[TablePart], None] | None = None
) -> tuple[RecordTable, list[str]]:
    """Read each request once, thin, and its error, by worker and number; counts losses."""
    read_tables, errors = [], []
    for piece in read_pieces(path, damage):
        if also is not None:
            also(piece)
        read_tables.append(keep_three_events(piece.table))
        errors += piece.errors
    whole = concat_tables(read_tables)
    order = np.lexsort((whole.number, whole.worker))
    return whole.ordered(order), [errors[i] for i in order]


def read_pieces(path: Path, damage: Damage) -> Iterator[TablePart]:
    """Yield each request once, from all record files in turn; counts losses in `damage`."""
    seen = SeenNumbers()
    for file in names.record_files(path):
        try:
            with file.open("rb") as opened:
                yield from read_tables(opened, seen, damage)
        except OSError:
            damage.unreadable.append(file.name)
    damage.missing = seen.missing()


def read_server(path: Path, damage: Damage) -> list[ServerSample]:
    """Read the server's samples in time order; fields missing from a line are NaN."""
    samples, bad = from_rows(_lines(path, names.SERVER, damage))
    damage.bad_lines += bad
    return sorted(samples, key=lambda sample: sample.at_ns)


def read_client(path: Path, damage: Damage) -> list[ClientSample]:
    """Read the samples of the load generator's processes in time order."""

    def sample(row: dict[str, Any]) -> ClientSample:
        seconds, lag_ms = number(row["cpu_s"]), number(row.get("loop_lag_ms", 0))
        counts = (int(row.get(name, 0)) for name in ("reads", "stamped_reads", "clock_steps"))
        return ClientSample(int(row["at_ns"]), str(row["process"]), seconds, lag_ms, *counts)

    return sorted(_each(path, names.CLIENT, sample, damage), key=lambda sample: sample.at_ns)


def read_gpu(path: Path, damage: Damage) -> list[GpuSample]:
    """Read the GPUs' samples in time order; fields missing from a line are NaN."""
    floats = {f.name for f in fields(GpuSample)} - {"at_ns", "gpu", "throttled"}

    def sample(row: dict[str, Any]) -> GpuSample:
        reasons = row.get("throttled")
        read = {name: number(row[name]) for name in floats & row.keys()}
        words = None if reasons is None else tuple(map(str, reasons))
        return GpuSample(int(row["at_ns"]), int(row["gpu"]), **read, throttled=words)

    return sorted(_each(path, names.GPU, sample, damage), key=lambda sample: sample.at_ns)


def read_traces(path: Path, damage: Damage) -> list[RequestTrace]:
    """Read the server's traces in the order of their arrival."""

    def trace(row: dict[str, Any]) -> RequestTrace:
        seconds = (number(row[name]) for name in ("ttft_s", "queue_s", "prefill_s"))
        return RequestTrace(str(row["request_id"]), *seconds)

    return _each(path, names.TRACES, trace, damage)


def _each(path: Path, name: str, read: Callable[[dict[str, Any]], T], damage: Damage) -> list[T]:
    """Apply `read` to each line; lines for which it raises are counted as bad."""
    items = []
    for row in _lines(path, name, damage):
        try:
            items.append(read(row))
        except (KeyError, TypeError, ValueError, OverflowError):
            damage.bad_lines += 1
    return items


def _lines(path: Path, name: str, damage: Damage) -> list[dict[str, Any]]:
    rows, bad = read_lines(path / name)
    damage.bad_lines += bad
    return rows
