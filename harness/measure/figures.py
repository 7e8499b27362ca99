"""One latency in figures: n, mean, quantiles with their two intervals, as plain JSON values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.measure.evidence import FEWEST_BLOCKS, lifetime_ns
from harness.measure.metrics import GAPS, PROMISED, Observed
from harness.measure.slo import per_second
from harness.measure.stats import (
    MOST_BLOCKS,
    QUANTILES,
    Interval,
    block_count,
    block_of,
    design_effect,
    highest,
    interval_ranks,
    rank_of,
)
from harness.measure.table import CANCELLED
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.table import RecordTable

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Json = dict[str, Any]
OBSERVED: Final = ("ns", "lo_ns", "hi_ns")  # of `Observed`
# of a speed, by the quantile of the time per token that it is the inverse of
SPEED_QUANTILES: Final = {"p50": 0.5, "p10": 0.9, "p5": 0.95, "p1": 0.99}
LIFETIMES: Final = 6  # of a block, at most a few: intervals cover more often than with shorter ones


def say_ms(ns: float | None) -> float | str | None:
    """Milliseconds for JSON: "inf" for what failed, None for what is not known."""
    if ns is None or math.isnan(ns):
        return None
    return "inf" if math.isinf(ns) else round(ns / MS, 6)


def block_ns_of(table: RecordTable, start_ns: int, end_ns: int) -> int:
    """Length of the window's time blocks: 4 to 24 of them, of up to six mean lifetimes."""
    length = max(end_ns - start_ns, 1)
    count = int(block_count(length / max(lifetime_ns(table), 1), LIFETIMES))
    return -(-length // max(count, FEWEST_BLOCKS))


def in_window(seen: Observed, table: RecordTable, key: str, start: int, end: int) -> Observed:
    """Requests by when they were sent, gaps by when they ended; a gap's `at_ns` places it.

    Without those that the harness cut off before their first token: they have no TTFT. Their e2e
    latency is their age; so it stands in requests.parquet too.
    """
    at = seen.at_ns if key in GAPS else table.sent_ns[seen.row]
    keep = (at >= start) & (at <= end)
    if not PROMISED[key].at_age:
        keep &= ~(seen.only_age & (table.outcome[seen.row] == CANCELLED))
    return Observed(seen.ns[keep], seen.lo_ns[keep], seen.hi_ns[keep], at[keep], seen.row[keep])


class Span(NamedTuple):
    """A window, and the length of its time blocks."""

    start_ns: int
    end_ns: int
    block_ns: int

    @property
    def blocks(self) -> int:
        """How many there are."""
        return -(-(self.end_ns - self.start_ns + 1) // self.block_ns)


class Figures(ABC):
    """What is known of one latency, in ns: its observations by block of time; +inf failed."""

    finite: int  # observations that did not fail
    n_failed: int  # those that did
    sum_ns: float  # of the finite ones
    max_ns: float  # of the finite ones

    @abstractmethod
    def value_at(self, rank: int, column: str = "ns") -> float:
        """The observation of a rank, counted from 0; or of all lower bounds, or all upper ones.

        `column`: one of OBSERVED.
        """

    @property
    @abstractmethod
    def by_block(self) -> Floats | Ints:
        """How many observations each block has, without those that have none."""

    @abstractmethod
    def effect(self, q: float) -> float:
        """Design effect of those above a quantile."""

    @property
    def n(self) -> int:
        """Observations, failed ones included."""
        return self.finite + self.n_failed

    @property
    def mean_ns(self) -> float:
        """Of the finite ones; NaN without any."""
        return self.sum_ns / self.finite if self.finite else math.nan

    @property
    def longest_ns(self) -> float:
        """Of the finite ones; NaN without any."""
        return float(self.max_ns) if self.finite else math.nan

    def quantile(self, q: float, column: str = "ns") -> float:
        """NaN without observations."""
        return self.value_at(rank_of(self.n, q), column) if self.n else math.nan

    def interval(self, q: float) -> Interval | None:
        """The quantile's sampling interval; None without observations."""
        if not self.n:
            return None
        lo, hi = interval_ranks(self.n, q, self.effect(q), len(self.by_block))
        return Interval(self.value_at(lo), None if hi is None else self.value_at(hi))

    def instrument(self, q: float) -> tuple[float, float]:
        """Between which bounds the quantile lies by the stamps."""
        # the mean of a bin's bounds may lie on the wrong side of the mean of its values
        value, low, high = (self.quantile(q, column) for column in OBSERVED)
        return min(low, value), max(high, value)


class Sample(Figures):
    """Observations that are in memory."""

    def __init__(self, seen: Observed, blocks: Ints) -> None:
        """`blocks`: the time block of each."""
        self.seen, self.blocks = seen, blocks
        _, self._block, self._sizes = np.unique(blocks, return_inverse=True, return_counts=True)
        fine = seen.ns[np.isfinite(seen.ns)]
        self.finite, self.n_failed = len(fine), len(seen.ns) - len(fine)
        self.sum_ns, self.max_ns = float(fine.sum()), float(fine.max(initial=-1))
        self._ordered = {column: np.sort(getattr(seen, column)) for column in OBSERVED}

    def value_at(self, rank: int, column: str = "ns") -> float:
        return float(self._ordered[column][rank])

    @property
    def by_block(self) -> Ints:
        return self._sizes

    def effect(self, q: float) -> float:
        return design_effect(self._sizes, np.bincount(self._block, highest(self.seen.ns, q)))


def spans_of(table: RecordTable, windows: Sequence[tuple[int, int]]) -> list[Span]:
    """The windows with their time blocks."""
    return [Span(*window, block_ns_of(table, *window)) for window in windows]


def sample_of(table: RecordTable, key: str, spans: Sequence[Span]) -> Sample:
    """One latency of the requests sent in the spans: their blocks side by side."""
    whole, seen, blocks, before = PROMISED[key].observe(table), [], [], 0
    for start, end, block_ns in spans:
        part = in_window(whole, table, key, start, end)
        seen.append(part)
        blocks.append(block_of(part.at_ns, start, block_ns) + before)
        before += MOST_BLOCKS + 1
    joined = (np.concatenate([getattr(s, f.name) for s in seen]) for f in fields(Observed))
    return Sample(Observed(*joined), np.concatenate(blocks))


def speed_block(seen: Sample) -> Json:
    """The same of an output speed: tokens/s, 0 of a failed request, quantiles of the lower tail."""

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


def block(seen: Figures) -> Json:
    """n, n_failed, effective_n, mean, quantiles, max of one latency; ms.

    Each quantile has `..._ci95` (sampling) and `..._instrument` beside it, as [lo, hi].
    """
    n = seen.n
    out: Json = {
        "n": n,
        "n_failed": seen.n_failed,
        "effective_n": round(n / seen.effect(0.95)) if n else 0,
        "mean": say_ms(seen.mean_ns),
        "max": say_ms(seen.longest_ns),
    }
    for name, q in QUANTILES.items():
        interval = seen.interval(q)
        out[name] = say_ms(seen.quantile(q))
        out[f"{name}_ci95"] = interval and [say_ms(interval.lo), say_ms(interval.hi)]
        out[f"{name}_instrument"] = [say_ms(x) for x in seen.instrument(q)] if n else None
    return out
