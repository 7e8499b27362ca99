"""Reads a run folder, whatever happened to it, and counts what could not be read; server.jsonl."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from harness.core.typed_json import from_json
from harness.errors import RunFolderError
from harness.records import names
from harness.records.histogram import Histogram
from harness.records.json_files import number, read_json, read_lines
from harness.records.record_table import RecordTable, concat_tables, keep_three_events
from harness.records.record_tables import Damage, TablePart, read_tables
from harness.records.request_record import SeenNumbers
from harness.records.samples import (
    ClientSample,
    GpuSample,
    HostSample,
    ServerSample,
    summed_fields,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder: its requests and samples in memory, its tokens on disk (`RecordSource`).

    Rows of `table` and entries of `errors` and `finishes` are the same requests, ordered by worker
    and number.
    """

    path: Path
    info: dict[str, Any]  # run.json; {} if it is missing
    table: RecordTable  # thin: at most three events of each request
    errors: list[str]  # "": no error text
    levels: list[dict[str, Any]]
    server: list[ServerSample]
    client: list[ClientSample]
    gpu: list[GpuSample]
    damage: Damage
    events: list[dict[str, Any]] = field(default_factory=list)  # of a drill
    host: list[HostSample] = field(default_factory=list)  # the client's machine
    finishes: list[str] = field(default_factory=list)  # finish_reason; "": none came
    some: list[ServerSample] = field(default_factory=list)  # where not all replicas answered

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
    table, errors, finishes = read_requests(path, damage, also)
    info = read_json(path / names.RUN)
    if info is None:
        damage.unreadable.append(names.RUN)
    return Run(
        path=path,
        info=info or {},
        table=table,
        errors=errors,
        finishes=finishes,
        levels=_lines(path, names.levels_file(path), damage),
        server=read_server(path, damage),
        some=read_server(path, damage, names.REPLICAS),
        client=sorted(_each(path, names.CLIENT, ClientSample, damage), key=lambda each: each.at_ns),
        gpu=read_gpu(path, damage),
        events=_lines(path, names.EVENTS, damage),
        host=sorted(_each(path, names.HOST, HostSample, damage), key=lambda each: each.at_ns),
        damage=damage,
    )


def read_requests(
    path: Path, damage: Damage, also: Callable[[TablePart], None] | None = None
) -> tuple[RecordTable, list[str], list[str]]:
    """Read each request once, thin, its error and its finish_reason, by worker and number.

    Counts losses.
    """
    read_tables: list[RecordTable] = []
    errors: list[str] = []
    finishes: list[str] = []
    for piece in read_pieces(path, damage):
        if also is not None:
            also(piece)
        read_tables.append(keep_three_events(piece.table))
        errors += piece.errors
        finishes += map(sys.intern, piece.reasons)
    whole = concat_tables(read_tables)
    order = np.lexsort((whole.number, whole.worker))
    return whole.ordered(order), [errors[i] for i in order], [finishes[i] for i in order]


def read_pieces(path: Path, damage: Damage) -> Iterator[TablePart]:
    """Yield each request once, from all record files in turn; counts losses in `damage`."""
    seen = SeenNumbers()
    for file in names.record_files(path):
        try:
            with file.open("rb") as opened:
                yield from read_tables(opened, seen, damage)
        except OSError:
            damage.unreadable.append(file.name)
    damage.missing = seen.missing(read_sends(path))


def read_sends(path: Path) -> dict[int, int]:
    """How many requests each worker had begun, as its journal says."""
    begun: dict[int, int] = {}
    for worker, file in names.send_files(path):
        with contextlib.suppress(OSError, ValueError):
            begun[worker] = max(begun.get(worker, 0), int(file.read_text()))
    return begun


def read_server(path: Path, damage: Damage, name: str = names.SERVER) -> list[ServerSample]:
    """Read the server's samples in time order; fields missing from a line are NaN."""
    samples, bad = from_rows(_lines(path, name, damage))
    damage.bad_lines += bad
    return sorted(samples, key=lambda sample: sample.at_ns)


def read_gpu(path: Path, damage: Damage) -> list[GpuSample]:
    """Read the GPUs' samples in time order; fields missing from a line are NaN."""
    return sorted(_each(path, names.GPU, GpuSample, damage), key=lambda sample: sample.at_ns)


def _each(path: Path, name: str, kind: type[T], damage: Damage) -> list[T]:
    """The dataclass of each line; lines that are none are counted as bad."""
    items = []
    for row in _lines(path, name, damage):
        try:
            items.append(from_json(kind, row))
        except ValueError:
            damage.bad_lines += 1
    return items


def _lines(path: Path, name: str, damage: Damage) -> list[dict[str, Any]]:
    rows, bad = read_lines(path / name)
    damage.bad_lines += bad
    return rows


# A line of server.jsonl contains only the values that the server reported. Histograms are `[sum,
# counts]`, one count per bucket (not cumulative), without empty buckets at the end; the bounds of
# the buckets are in the first line, and again in a line where they change.
Bounds = dict[str, tuple[float, ...]]
OTHER_FIELDS: Final = ("at_ns", "finished", "histograms", "replicas")
NUMBER_FIELDS: Final = tuple(f.name for f in fields(ServerSample) if f.name not in OTHER_FIELDS)


def to_row(sample: ServerSample, known: Bounds) -> dict[str, Any]:
    """Return one line; `known` has the bounds written in earlier lines, and is updated."""
    row: dict[str, Any] = {"at_ns": sample.at_ns}
    values = {name: getattr(sample, name) for name in NUMBER_FIELDS}
    # fields that `summed_fields` derives from the histograms when the line is read
    repeated = {f"{k}_{part}" for k in sample.histograms for part in ("sum_s", "count")}
    row |= {k: _short(v) for k, v in values.items() if k not in repeated and not math.isnan(v)}
    if sample.finished:
        row["finished"] = {reason: _short(count) for reason, count in sample.finished.items()}
    if sample.replicas:
        row["replicas"] = {name: to_row(one, {}) for name, one in sample.replicas.items()}
    if sample.histograms:
        row["histograms"] = {key: _packed(each) for key, each in sample.histograms.items()}
        fresh = {k: h.bounds for k, h in sample.histograms.items() if known.get(k) != h.bounds}
        if fresh:
            row["bounds"] = {key: bounds[:-1] for key, bounds in fresh.items()}  # JSON has no +inf
            known |= fresh
    return row


def from_row(row: dict[str, Any], known: Bounds) -> ServerSample:
    """Return the sample of a line. Raises KeyError, TypeError, ValueError for an invalid one."""
    for key, bounds in (row.get("bounds") or {}).items():
        known[key] = (*map(float, bounds), math.inf)
    packed = (row.get("histograms") or {}).items()
    histograms = {k: _unpacked(each, known[k]) for k, each in packed if k in known}
    read: dict[str, Any] = {name: number(row[name]) for name in NUMBER_FIELDS if name in row}
    read["finished"] = {str(k): number(v) for k, v in (row.get("finished") or {}).items()}
    read["replicas"] = {str(k): from_row(v, {}) for k, v in (row.get("replicas") or {}).items()}
    read |= summed_fields(histograms)
    return ServerSample(int(row["at_ns"]), **read, histograms=histograms)


def from_rows(rows: Iterable[dict[str, Any]]) -> tuple[list[ServerSample], int]:
    """Return the samples in the order of their lines, and the number of invalid lines."""
    known: Bounds = {}
    samples, bad = [], 0
    for row in rows:
        try:
            samples.append(from_row(row, known))
        except (AttributeError, KeyError, TypeError, ValueError):
            bad += 1
    return samples, bad


def _packed(histogram: Histogram) -> list[Any]:
    counts = histogram.counts
    each = [b - a for a, b in zip((0.0, *counts), counts, strict=False)]
    while each and not each[-1]:
        each.pop()
    return [histogram.sum, [_short(count) for count in each]]


def _unpacked(packed: Any, bounds: tuple[float, ...]) -> Histogram:
    total, each = packed
    counts = list(accumulate(map(number, each)))
    counts += [counts[-1] if counts else 0.0] * (len(bounds) - len(counts))
    return Histogram(bounds, tuple(counts), number(total))


def _short(value: float) -> float:
    # 3 instead of 3.0: a third of the bytes
    return int(value) if math.isfinite(value) and value == int(value) else value
