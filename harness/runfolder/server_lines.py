"""Converts a ServerSample to a line of server.jsonl and back.

A line contains only the values that the server reported. Histograms are `[sum, counts]`, one count
per bucket (not cumulative), without empty buckets at the end; the bounds of the buckets are in the
first line, and again in a line where they change.
"""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from harness.measure.histogram import Histogram
from harness.measure.records.samples import ServerSample, summed_fields
from harness.runfolder.json_files import number

if TYPE_CHECKING:
    from collections.abc import Iterable

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
