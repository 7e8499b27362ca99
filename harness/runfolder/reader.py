"""Reading a run folder, whatever happened to it: what can be read, and what could not, counted."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import RunFolderError
from harness.measure.recorded import thin
from harness.measure.result import Result
from harness.measure.samples import ClientSample, GpuSample
from harness.measure.seen import Seen
from harness.measure.table import concat
from harness.measure.traces import Trace
from harness.measure.typed import from_json
from harness.runfolder import names
from harness.runfolder.columns import tables
from harness.runfolder.damage import Damage
from harness.runfolder.jsonfiles import number, read_json, read_lines
from harness.runfolder.serverlines import from_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable
    from harness.runfolder.columns import Piece


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder: its requests and samples in memory, its tokens on the disk (`Recorded`).

    Rows of `table` and entries of `errors` are the same requests, by worker, then number.
    """

    path: Path
    info: dict[str, Any]  # run.json; {} when there is none
    table: RecordTable  # thin: three events of a request at most
    errors: list[str]  # "" where nothing was said
    steps: list[dict[str, Any]]
    server: list[ServerSample]
    client: list[ClientSample]
    gpu: list[GpuSample]
    traces: list[Trace]
    damage: Damage

    def chunks(self) -> Iterator[RecordTable]:
        """All requests with all events, read from the record files again."""
        return (piece.table for piece in read_pieces(self.path, Damage()))


def check_folder(path: Path) -> None:
    """Raises RunFolderError where it is no run folder at all."""
    known = (names.RUN, names.STEPS, names.SERVER, names.RESULT)
    if not path.is_dir() or not (
        names.record_files(path) or any((path / name).exists() for name in known)
    ):
        raise RunFolderError(
            f"{path} is not a run folder: expected a directory with {names.RUN}, as `vllm-harness "
            "knee` or `run` write it; try one under reports/."
        )


def read_run(path: Path | str) -> Run:
    """Everything in a run folder. Raises RunFolderError only when it is none at all."""
    path = Path(path)
    check_folder(path)
    damage = Damage()
    table, errors = read_requests(path, damage)
    info = read_json(path / names.RUN)
    if info is None:
        damage.unreadable.append(names.RUN)
    return Run(
        path=path,
        info=info or {},
        table=table,
        errors=errors,
        steps=_lines(path, names.STEPS, damage),
        server=read_server(path, damage),
        client=read_client(path, damage),
        gpu=read_gpu(path, damage),
        traces=read_traces(path, damage),
        damage=damage,
    )


def read_result(path: Path) -> Result | None:
    """result.json; None where there is none. Raises RunFolderError when it is another's."""
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


def read_requests(path: Path, damage: Damage) -> tuple[RecordTable, list[str]]:
    """Each request once, thin, and its error, by worker and number; losses go to `damage`."""
    tables, errors = [], []
    for piece in read_pieces(path, damage):
        tables.append(thin(piece.table))
        errors += piece.errors
    whole = concat(tables)
    order = np.lexsort((whole.number, whole.worker))
    return whole.ordered(order), [errors[i] for i in order]


def read_pieces(path: Path, damage: Damage) -> Iterator[Piece]:
    """Each request once, by worker and number, from all record files; losses go to `damage`."""
    seen = Seen()
    for file in names.record_files(path):
        try:
            with file.open("rb") as opened:
                yield from tables(opened, seen, damage)
        except OSError:
            damage.unreadable.append(file.name)
    damage.missing = seen.missing()


def read_server(path: Path, damage: Damage) -> list[ServerSample]:
    """The server's samples in time order; figures that a line lacks are NaN."""
    samples, bad = from_rows(_lines(path, names.SERVER, damage))
    damage.bad_lines += bad
    return sorted(samples, key=lambda sample: sample.at_ns)


def read_client(path: Path, damage: Damage) -> list[ClientSample]:
    """What the load generator's processes said of themselves, in time order."""
    known = {f.name for f in fields(ClientSample)}
    samples = []
    for row in _lines(path, names.CLIENT, damage):
        try:
            samples.append(ClientSample(**{k: v for k, v in row.items() if k in known}))
        except TypeError:
            damage.bad_lines += 1
    return sorted(samples, key=lambda sample: sample.at_ns)


def read_gpu(path: Path, damage: Damage) -> list[GpuSample]:
    """The GPUs' samples in time order; figures that a line lacks are NaN."""
    floats = {f.name for f in fields(GpuSample)} - {"at_ns", "gpu", "throttled"}
    samples = []
    for row in _lines(path, names.GPU, damage):
        try:
            held = row.get("throttled")
            read = {name: number(row[name]) for name in floats & row.keys()}
            words = None if held is None else tuple(map(str, held))
            samples.append(GpuSample(int(row["at_ns"]), int(row["gpu"]), **read, throttled=words))
        except (KeyError, TypeError, ValueError):
            damage.bad_lines += 1
    return sorted(samples, key=lambda sample: sample.at_ns)


def read_traces(path: Path, damage: Damage) -> list[Trace]:
    """What the server's traces said of requests, in the order in which they came."""
    traces = []
    for row in _lines(path, names.TRACES, damage):
        try:
            seconds = (number(row[name]) for name in ("ttft_s", "queue_s", "prefill_s"))
            traces.append(Trace(str(row["request_id"]), *seconds))
        except (KeyError, TypeError, ValueError):
            damage.bad_lines += 1
    return traces


def _lines(path: Path, name: str, damage: Damage) -> list[dict[str, Any]]:
    rows, bad = read_lines(path / name)
    damage.bad_lines += bad
    return rows
