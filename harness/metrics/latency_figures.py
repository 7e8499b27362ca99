"""The statistics of one latency: n, mean, and quantiles with their two intervals, for JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.core.arrays import between
from harness.metrics.evidence import MIN_BLOCKS, lifetime_ns
from harness.metrics.metrics import ALL_LATENCIES, GAPS, Observations
from harness.metrics.slo import per_second
from harness.metrics.statistics import (
    MAX_BLOCKS,
    QUANTILES,
    RankInterval,
    block_count,
    block_of,
    design_effect,
    interval_ranks,
    rank_of,
    tail_of,
)
from harness.records.record_table import CANCELLED, RecordTable
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints


Json = dict[str, Any]
BOUND_COLUMNS: Final = ("ns", "lo_ns", "hi_ns")  # of `Observations`
# A speed is the inverse of a time per token, so its quantile is that time's opposite quantile.
SPEED_QUANTILES: Final = {"p50": 0.5, "p10": 0.9, "p5": 0.95, "p1": 0.99}
# Request lifetimes per block at most; intervals of shorter blocks cover too rarely.
MAX_LIFETIMES_PER_BLOCK: Final = 6


def json_ms(ns: float | None) -> float | str | None:
    """Milliseconds for JSON: "inf" for a failure, None if not known."""
    if ns is None or math.isnan(ns):
        return None
    return "inf" if math.isinf(ns) else round(ns / MS, 6)


def time_block_ns(table: RecordTable, start_ns: int, end_ns: int) -> int:
    """Length of the window's time blocks: 4 to 24 of them, of up to six mean lifetimes."""
    length_ns = max(end_ns - start_ns, 1)
    lifetimes = length_ns / max(lifetime_ns(table), 1)
    blocks = max(int(block_count(lifetimes, MAX_LIFETIMES_PER_BLOCK)), MIN_BLOCKS)
    return -(-length_ns // blocks)  # rounded up


def in_window(
    seen: Observations, table: RecordTable, key: str, start: int, end: int
) -> Observations:
    """The observations in a window: requests by when they were sent, gaps by when they ended.

    Requests that the harness cut off before their first token have no TTFT and are left out. Their
    e2e latency is their age, as in requests.parquet.
    """
    at_ns = seen.at_ns if key in GAPS else table.sent_ns[seen.row]
    keep = between(at_ns, start, end)
    if not ALL_LATENCIES[key].at_age:
        was_cut_off = table.outcome[seen.row] == CANCELLED
        keep &= ~(seen.only_age & was_cut_off)
    if keep.all():
        return replace(seen, at_ns=at_ns)
    return Observations(
        ns=seen.ns[keep],
        lo_ns=seen.lo_ns[keep],
        hi_ns=seen.hi_ns[keep],
        at_ns=at_ns[keep],
        row=seen.row[keep],
    )


class BlockedWindow(NamedTuple):
    start_ns: int
    end_ns: int
    block_ns: int

    @property
    def blocks(self) -> int:
        length_ns = self.end_ns - self.start_ns + 1  # both ends lie in it
        return -(-length_ns // self.block_ns)  # rounded up


class LatencyFigures(ABC):
    """Observations of one latency in ns, by block of time; a failure is +inf."""

    finite: int  # observations that did not fail
    n_failed: int  # observations that failed
    sum_ns: float  # sum of the finite ones
    max_ns: float  # largest finite one

    @abstractmethod
    def value_at(self, rank: int, column: str = "ns") -> float:
        """The observation (or its lower or upper bound) with this rank, counted from 0.

        `column`: one of BOUND_COLUMNS.
        """

    @property
    @abstractmethod
    def block_sizes(self) -> Floats | Ints:
        """The number of observations of each block that has any."""

    @abstractmethod
    def effect(self, q: float) -> float:
        """Design effect of the observations above a quantile."""

    @property
    def n(self) -> int:
        """Observations, failed ones included."""
        return self.finite + self.n_failed

    @property
    def mean_ns(self) -> float:
        """Mean of the finite observations; NaN without any."""
        return self.sum_ns / self.finite if self.finite else math.nan

    @property
    def longest_ns(self) -> float:
        """Largest finite observation; NaN without any."""
        return float(self.max_ns) if self.finite else math.nan

    def quantile(self, q: float, column: str = "ns") -> float:
        """The q-quantile; NaN without observations."""
        if not self.n:
            return math.nan
        return self.value_at(rank_of(self.n, q), column)

    def interval(self, q: float) -> RankInterval | None:
        """The quantile's sampling interval; None without observations."""
        if not self.n:
            return None
        blocks = len(self.block_sizes)
        lo_rank, hi_rank = interval_ranks(self.n, q, self.effect(q), blocks)
        hi = None if hi_rank is None else self.value_at(hi_rank)
        return RankInterval(self.value_at(lo_rank), hi)

    def instrument(self, q: float) -> tuple[float, float]:
        """Bounds of the quantile from the uncertainty of the time stamps."""
        value = self.quantile(q)
        # With binned gaps the mean of a bin's bounds may lie on the wrong side of its values' mean.
        low = min(self.quantile(q, "lo_ns"), value)
        high = max(self.quantile(q, "hi_ns"), value)
        return low, high


class SampleFigures(LatencyFigures):
    """Observations held in memory."""

    def __init__(self, seen: Observations, blocks: Ints) -> None:
        """`blocks`: the time block of each observation."""
        self.seen = seen
        self.blocks = blocks
        sizes = np.bincount(blocks)
        has_any = sizes > 0
        self._sizes = sizes[has_any]
        number = np.cumsum(has_any) - 1  # of each block among those that have any
        self._block = number[blocks]
        finite_ns = seen.ns[np.isfinite(seen.ns)]
        self.finite = len(finite_ns)
        self.n_failed = len(seen.ns) - len(finite_ns)
        self.sum_ns = float(finite_ns.sum())
        self.max_ns = float(finite_ns.max(initial=-1))
        # Each bound in its own order: a quantile of the lower bounds is a lower bound of the
        # quantile.
        self._ordered = {column: np.sort(getattr(seen, column)) for column in BOUND_COLUMNS}

    def value_at(self, rank: int, column: str = "ns") -> float:
        return float(self._ordered[column][rank])

    @property
    def block_sizes(self) -> Ints:
        return self._sizes

    def effect(self, q: float) -> float:
        in_tail = tail_of(self.seen.ns, q)
        return design_effect(self._sizes, np.bincount(self._block, in_tail))


def blocked_windows(table: RecordTable, windows: Sequence[tuple[int, int]]) -> list[BlockedWindow]:
    return [BlockedWindow(*window, time_block_ns(table, *window)) for window in windows]


def sample_figures(table: RecordTable, key: str, spans: Sequence[BlockedWindow]) -> SampleFigures:
    """One latency over several windows, their blocks side by side."""
    observed = ALL_LATENCIES[key].observe(table)
    parts = []
    blocks = []
    blocks_before = 0
    for start_ns, end_ns, block_ns in spans:
        part = in_window(observed, table, key, start_ns, end_ns)
        parts.append(part)
        blocks.append(block_of(part.at_ns, start_ns, block_ns) + blocks_before)
        blocks_before += MAX_BLOCKS + 1  # more than a window has, so none is of two windows
    del observed  # of all requests: as much memory as the figures take
    return SampleFigures(_joined(parts), np.concatenate(blocks))


def _joined(parts: Sequence[Observations]) -> Observations:
    if len(parts) == 1:
        return parts[0]
    columns = {}
    for field in fields(Observations):
        pieces = [getattr(part, field.name) for part in parts]
        columns[field.name] = np.concatenate(pieces)
    return Observations(**columns)


def speed_json(figures: SampleFigures) -> Json:
    """The same for an output speed in tokens/s: 0 for a failed request, lower quantiles."""
    all_ns = figures.seen.ns
    finite_ns = all_ns[np.isfinite(all_ns)]
    mean = None
    if len(finite_ns):
        speeds = SECOND / finite_ns.clip(min=1)
        mean = round(float(speeds.mean()), 3)
    block: Json = {**_counts(figures), "mean": mean}
    for name, q in SPEED_QUANTILES.items():
        block |= _speed_quantile(figures, name, q)
    return block


def _speed_quantile(figures: SampleFigures, name: str, q: float) -> Json:
    """A speed's quantile; the ends of its intervals change places, as a longer time is slower."""
    interval = figures.interval(q)
    if interval is None:
        return {name: None, f"{name}_ci95": None, f"{name}_instrument": None}
    slowest = 0.0 if interval.hi is None else _speed(interval.hi)
    shortest_ns, longest_ns = figures.instrument(q)
    return {
        name: _speed(figures.quantile(q)),
        f"{name}_ci95": [slowest, _speed(interval.lo)],
        f"{name}_instrument": [_speed(longest_ns), _speed(shortest_ns)],
    }


def _speed(ns: float) -> float:
    return round(per_second(ns), 3)


def _counts(figures: LatencyFigures) -> Json:
    effective_n = 0
    if figures.n:
        effective_n = round(figures.n / figures.effect(0.95))
    return {"n": figures.n, "n_failed": figures.n_failed, "effective_n": effective_n}


def latency_json(figures: LatencyFigures) -> Json:
    """n, n_failed, effective_n, mean, quantiles and max of one latency, in ms.

    Each quantile comes with `..._ci95` (sampling) and `..._instrument` (stamps), as [lo, hi].
    """
    block: Json = {
        **_counts(figures),
        "mean": json_ms(figures.mean_ns),
        "max": json_ms(figures.longest_ns),
    }
    for name, q in QUANTILES.items():
        block |= _latency_quantile(figures, name, q)
    return block


def _latency_quantile(figures: LatencyFigures, name: str, q: float) -> Json:
    interval = figures.interval(q)
    if interval is None:
        return {name: None, f"{name}_ci95": None, f"{name}_instrument": None}
    low_ns, high_ns = figures.instrument(q)
    return {
        name: json_ms(figures.quantile(q)),
        f"{name}_ci95": [json_ms(interval.lo), json_ms(interval.hi)],
        f"{name}_instrument": [json_ms(low_ns), json_ms(high_ns)],
    }
