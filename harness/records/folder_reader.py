"""Reads a run folder, whatever happened to it, and counts what could not be read; server.jsonl."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from harness.core.freed_memory import give_back
from harness.core.typed_json import from_json
from harness.errors import RunFolderError
from harness.records import names
from harness.records.histogram import Histogram
from harness.records.json_files import number, read_json, read_lines
from harness.records.record_table import (
    RecordTable,
    concat_tables,
    constants_once,
    keep_three_events,
)
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
# Thin tables are joined when there are so many: small arrays that lie between what was freed keep
# that from being given back, three times their own size.
JOINED_TABLES: Final = 64


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
    names: dict[str, int] = field(default_factory=dict)  # of requests; `table` has the numbers

    def chunks(self) -> Iterator[RecordTable]:
        """Read all requests with all events from the record files again."""
        return (piece.table for piece in read_pieces(self.path, Damage(), self.names))


def check_folder(path: Path) -> None:
    """Raises RunFolderError where it is no run folder at all."""
    if not path.is_dir() or not _has_files_of_run(path):
        raise RunFolderError(
            f"{path} is not a run folder: expected a directory with {names.RUN}, as `vllm-harness "
            "knee` or `run` write it; try one under reports/."
        )


def _has_files_of_run(path: Path) -> bool:
    if names.record_files(path):
        return True
    files = (names.RUN, names.levels_file(path), names.SERVER, names.RESULT)
    return any((path / name).exists() for name in files)


def read_run(path: Path | str, also: Callable[[TablePart], None] | None = None) -> Run:
    """Read everything in a run folder. Raises RunFolderError only if it is no run folder.

    `also` is called with the requests and all their tokens while they are read, which saves its
    caller a second pass over the files.
    """
    path = Path(path)
    check_folder(path)
    damage = Damage()
    request_names: dict[str, int] = {}
    table, errors, finishes = read_requests(path, damage, also, request_names)
    info = read_json(path / names.RUN)
    if info is None:
        damage.unreadable.append(names.RUN)
    client = _dataclasses(path, names.CLIENT, ClientSample, damage)
    host = _dataclasses(path, names.HOST, HostSample, damage)
    return Run(
        path=path,
        info=info or {},
        table=table,
        errors=errors,
        finishes=finishes,
        levels=_lines(path, names.levels_file(path), damage),
        server=read_server(path, damage),
        some=read_server(path, damage, names.REPLICAS),
        client=sorted(client, key=_at_ns),
        gpu=read_gpu(path, damage),
        events=_lines(path, names.EVENTS, damage),
        host=sorted(host, key=_at_ns),
        names=request_names,
        damage=damage,
    )


def read_requests(
    path: Path,
    damage: Damage,
    also: Callable[[TablePart], None] | None = None,
    request_names: dict[str, int] | None = None,
) -> tuple[RecordTable, list[str], list[str]]:
    """Read each request once, thin, its error and its finish_reason, by worker and number.

    Counts losses. `request_names`: as in `read_tables`.
    """
    thin_tables: list[RecordTable] = []
    joined_tables: list[RecordTable] = []
    errors: list[str] = []
    finishes: list[str] = []
    for piece in read_pieces(path, damage, request_names):
        if also is not None:
            also(piece)
        thin_tables.append(constants_once(keep_three_events(piece.table)))
        errors += piece.errors
        finishes += map(sys.intern, piece.reasons)  # a few words, repeated for every request
        if len(thin_tables) == JOINED_TABLES:
            joined_tables.append(concat_tables(thin_tables))
            thin_tables.clear()
            give_back()
    table = concat_tables([*joined_tables, *thin_tables])
    del joined_tables, thin_tables
    give_back()
    # The last key is the first that np.lexsort sorts by.
    order = np.lexsort((table.number, table.worker))
    ordered_errors = [errors[row] for row in order]
    ordered_finishes = [finishes[row] for row in order]
    return table.ordered(order), ordered_errors, ordered_finishes


def read_pieces(
    path: Path, damage: Damage, request_names: dict[str, int] | None = None
) -> Iterator[TablePart]:
    """Yield each request once, from all record files in turn; counts losses in `damage`.

    `request_names`: as in `read_tables`.
    """
    numbers = SeenNumbers()
    if request_names is None:
        request_names = {}
    for file in names.record_files(path):
        try:
            with file.open("rb") as opened:
                yield from read_tables(opened, numbers, damage, request_names)
        except OSError:
            damage.unreadable.append(file.name)
    damage.missing = numbers.missing(read_sends(path))


def read_sends(path: Path) -> dict[int, int]:
    """How many requests each worker had begun, as its journal says."""
    begun: dict[int, int] = {}
    for worker, file in names.send_files(path):
        with contextlib.suppress(OSError, ValueError):
            n_sent = int(file.read_text())
            begun[worker] = max(begun.get(worker, 0), n_sent)
    return begun


def read_server(path: Path, damage: Damage, name: str = names.SERVER) -> list[ServerSample]:
    """Read the server's samples in time order; fields missing from a line are NaN."""
    samples, bad = from_rows(_lines(path, name, damage))
    damage.bad_lines += bad
    return sorted(samples, key=_at_ns)


def read_gpu(path: Path, damage: Damage) -> list[GpuSample]:
    """Read the GPUs' samples in time order; fields missing from a line are NaN."""
    samples = _dataclasses(path, names.GPU, GpuSample, damage)
    return sorted(samples, key=_at_ns)


_at_ns: Final = attrgetter("at_ns")


def _dataclasses(path: Path, name: str, kind: type[T], damage: Damage) -> list[T]:
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
OTHER_FIELDS: Final = ("at_ns", "finished", "histograms", "replicas", "prefill")
NUMBER_FIELDS: Final = tuple(f.name for f in fields(ServerSample) if f.name not in OTHER_FIELDS)


def to_row(sample: ServerSample, known: Bounds) -> dict[str, Any]:
    """Return one line; `known` has the bounds written in earlier lines, and is updated."""
    row: dict[str, Any] = {"at_ns": sample.at_ns} | _reported_numbers(sample)
    finished = {reason: _short(count) for reason, count in sample.finished.items()}
    if finished:
        row["finished"] = finished
    replicas = {url: to_row(replica, {}) for url, replica in sample.replicas.items()}
    if replicas:
        row["replicas"] = replicas
    if sample.prefill is not None:
        row["prefill"] = to_row(_without_histograms(sample.prefill), {})
    histograms = {key: _packed(each) for key, each in sample.histograms.items()}
    if histograms:
        row["histograms"] = histograms
    changed: Bounds = {}
    for key, histogram in sample.histograms.items():
        if known.get(key) != histogram.bounds:
            changed[key] = histogram.bounds
    if changed:
        # The last bound is +inf, which JSON has no number for.
        row["bounds"] = {key: bounds[:-1] for key, bounds in changed.items()}
        known |= changed
    return row


def _without_histograms(sample: ServerSample) -> ServerSample:
    """The same with their sums and counts, which the fields repeat."""
    return replace(sample, histograms={})


def _reported_numbers(sample: ServerSample) -> dict[str, float]:
    """Its numbers, less those that `summed_fields` derives when the line is read."""
    derived = set()
    for key in sample.histograms:
        derived |= {f"{key}_sum_s", f"{key}_count"}
    numbers = {}
    for name in NUMBER_FIELDS:
        value = getattr(sample, name)
        if name not in derived and not math.isnan(value):
            numbers[name] = _short(value)
    return numbers


def from_row(row: dict[str, Any], known: Bounds) -> ServerSample:
    """Return the sample of a line. Raises KeyError, TypeError, ValueError for an invalid one."""
    for key, bounds in _object(row, "bounds"):
        known[key] = (*map(float, bounds), math.inf)
    histograms = {}
    for key, packed in _object(row, "histograms"):
        if key in known:
            histograms[key] = _unpacked(packed, known[key])
    numbers = {name: number(row[name]) for name in NUMBER_FIELDS if name in row}
    numbers |= summed_fields(histograms)
    finished = {str(reason): number(count) for reason, count in _object(row, "finished")}
    replicas = {str(url): from_row(own_row, {}) for url, own_row in _object(row, "replicas")}
    prefill = from_row(row["prefill"], {}) if row.get("prefill") else None
    return ServerSample(
        int(row["at_ns"]),
        **numbers,
        finished=finished,
        replicas=replicas,
        prefill=prefill,
        histograms=histograms,
    )


def _object(row: dict[str, Any], name: str) -> Iterable[tuple[Any, Any]]:
    """The (key, value) pairs of an object in a line, none if it is missing or null."""
    return (row.get(name) or {}).items()


def from_rows(rows: Iterable[dict[str, Any]]) -> tuple[list[ServerSample], int]:
    """Return the samples in the order of their lines, and the number of invalid lines."""
    known: Bounds = {}
    samples = []
    bad = 0
    for row in rows:
        try:
            samples.append(from_row(row, known))
        except (AttributeError, KeyError, TypeError, ValueError):
            bad += 1
    return samples, bad


def _packed(histogram: Histogram) -> list[Any]:
    counts = [upto - before for before, upto in pairwise((0.0, *histogram.counts))]
    while counts and not counts[-1]:
        counts.pop()
    return [histogram.sum, [_short(count) for count in counts]]


def _unpacked(packed: Any, bounds: tuple[float, ...]) -> Histogram:
    total, counts = packed
    cumulative = list(accumulate(map(number, counts)))
    last = cumulative[-1] if cumulative else 0.0
    cumulative += [last] * (len(bounds) - len(cumulative))  # the empty buckets at the end
    return Histogram(bounds, tuple(cumulative), number(total))


def _short(value: float) -> float:
    """3 instead of 3.0: a third of the bytes."""
    if math.isfinite(value) and value == int(value):
        return int(value)
    return value
