"""The statistics of one latency: n, mean, and quantiles with their two intervals, for JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

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
MAX_LIFETIMES_PER_BLOCK: Final = (
    6  # request lifetimes per block at most; shorter blocks cover too rarely
)


def json_ms(ns: float | None) -> float | str | None:
    """Milliseconds for JSON: "inf" for a failure, None if not known."""
    if ns is None or math.isnan(ns):
        return None
    return "inf" if math.isinf(ns) else round(ns / MS, 6)


def time_block_ns(table: RecordTable, start_ns: int, end_ns: int) -> int:
    """Length of the window's time blocks: 4 to 24 of them, of up to six mean lifetimes."""
    length = max(end_ns - start_ns, 1)
    count = int(block_count(length / max(lifetime_ns(table), 1), MAX_LIFETIMES_PER_BLOCK))
    return -(-length // max(count, MIN_BLOCKS))


def in_window(
    seen: Observations, table: RecordTable, key: str, start: int, end: int
) -> Observations:
    """The observations in a window: requests by when they were sent, gaps by when they ended.

    Requests that the harness cut off before their first token have no TTFT and are left out. Their
    e2e latency is their age, as in requests.parquet.
    """
    at = seen.at_ns if key in GAPS else table.sent_ns[seen.row]
    keep = (at >= start) & (at <= end)
    if not ALL_LATENCIES[key].at_age:
        keep &= ~(seen.only_age & (table.outcome[seen.row] == CANCELLED))
    return Observations(seen.ns[keep], seen.lo_ns[keep], seen.hi_ns[keep], at[keep], seen.row[keep])


class BlockedWindow(NamedTuple):
    start_ns: int
    end_ns: int
    block_ns: int

    @property
    def blocks(self) -> int:
        return -(-(self.end_ns - self.start_ns + 1) // self.block_ns)


class LatencyFigures(ABC):
    """Observations of one latency in ns, by block of time; a failure is +inf."""

    finite: int  # observations that did not fail
    n_failed: int  # observations that failed
    sum_ns: float  # sum of the finite ones
    max_ns: float  # largest finite one

    @abstractmethod
    def value_at(self, rank: int, column: str = "ns") -> float:
        """The observation (or its lower or upper bound) with this rank, counted from 0.

        `column`: one of OBSERVED.
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
        return self.value_at(rank_of(self.n, q), column) if self.n else math.nan

    def interval(self, q: float) -> RankInterval | None:
        """The quantile's sampling interval; None without observations."""
        if not self.n:
            return None
        lo, hi = interval_ranks(self.n, q, self.effect(q), len(self.block_sizes))
        return RankInterval(self.value_at(lo), None if hi is None else self.value_at(hi))

    def instrument(self, q: float) -> tuple[float, float]:
        """Bounds of the quantile from the uncertainty of the time stamps."""
        # With binned gaps the mean of a bin's bounds may lie on the wrong side of its values' mean.
        value, low, high = (self.quantile(q, column) for column in BOUND_COLUMNS)
        return min(low, value), max(high, value)


class SampleFigures(LatencyFigures):
    """Observations held in memory."""

    def __init__(self, seen: Observations, blocks: Ints) -> None:
        """`blocks`: the time block of each observation."""
        self.seen, self.blocks = seen, blocks
        _, self._block, self._sizes = np.unique(blocks, return_inverse=True, return_counts=True)
        fine = seen.ns[np.isfinite(seen.ns)]
        self.finite, self.n_failed = len(fine), len(seen.ns) - len(fine)
        self.sum_ns, self.max_ns = float(fine.sum()), float(fine.max(initial=-1))
        self._ordered = {column: np.sort(getattr(seen, column)) for column in BOUND_COLUMNS}

    def value_at(self, rank: int, column: str = "ns") -> float:
        return float(self._ordered[column][rank])

    @property
    def block_sizes(self) -> Ints:
        return self._sizes

    def effect(self, q: float) -> float:
        return design_effect(self._sizes, np.bincount(self._block, tail_of(self.seen.ns, q)))


def blocked_windows(table: RecordTable, windows: Sequence[tuple[int, int]]) -> list[BlockedWindow]:
    return [BlockedWindow(*window, time_block_ns(table, *window)) for window in windows]


def sample_figures(table: RecordTable, key: str, spans: Sequence[BlockedWindow]) -> SampleFigures:
    """One latency over several windows, their blocks side by side."""
    whole, seen, blocks, before = ALL_LATENCIES[key].observe(table), [], [], 0
    for start, end, block_ns in spans:
        part = in_window(whole, table, key, start, end)
        seen.append(part)
        blocks.append(block_of(part.at_ns, start, block_ns) + before)
        before += MAX_BLOCKS + 1
    joined = (np.concatenate([getattr(s, f.name) for s in seen]) for f in fields(Observations))
    return SampleFigures(Observations(*joined), np.concatenate(blocks))


def speed_json(seen: SampleFigures) -> Json:
    """The same for an output speed in tokens/s: 0 for a failed request, lower quantiles."""

    def ends(slow_ns: float | None, fast_ns: float) -> list[float]:
        return [0.0 if slow_ns is None else _say_speed(slow_ns), _say_speed(fast_ns)]

    n, speeds = seen.n, SECOND / seen.seen.ns[np.isfinite(seen.seen.ns)].clip(min=1)
    out: Json = {
        "n": n,
        "n_failed": seen.n_failed,
        "effective_n": round(n / seen.effect(0.95)) if n else 0,
        "mean": round(float(speeds.mean()), 3) if len(speeds) else None,
    }
    for name, q in SPEED_QUANTILES.items():
        interval, (low, high) = seen.interval(q), seen.instrument(q)
        out[name] = _say_speed(seen.quantile(q)) if n else None
        out[f"{name}_ci95"] = interval and ends(interval.hi, interval.lo)
        out[f"{name}_instrument"] = ends(high, low) if n else None
    return out


def _say_speed(ns: float) -> float:
    return round(per_second(ns), 3)


def latency_json(seen: LatencyFigures) -> Json:
    """n, n_failed, effective_n, mean, quantiles and max of one latency, in ms.

    Each quantile comes with `..._ci95` (sampling) and `..._instrument` (stamps), as [lo, hi].
    """
    n = seen.n
    out: Json = {
        "n": n,
        "n_failed": seen.n_failed,
        "effective_n": round(n / seen.effect(0.95)) if n else 0,
        "mean": json_ms(seen.mean_ns),
        "max": json_ms(seen.longest_ns),
    }
    for name, q in QUANTILES.items():
        interval = seen.interval(q)
        out[name] = json_ms(seen.quantile(q))
        out[f"{name}_ci95"] = interval and [json_ms(interval.lo), json_ms(interval.hi)]
        out[f"{name}_instrument"] = [json_ms(x) for x in seen.instrument(q)] if n else None
    return out
