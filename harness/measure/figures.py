"""One latency in figures: n, mean, quantiles with their two intervals, as plain JSON values."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from harness.measure.evidence import FEWEST_BLOCKS, lifetime_ns
from harness.measure.gaps import Span
from harness.measure.metrics import METRICS, Observed
from harness.measure.stats import (
    MOST_BLOCKS,
    QUANTILES,
    Interval,
    block_count,
    block_of,
    design_effect,
    highest,
    interval_ranks,
    quantile,
)
from harness.measure.table import CANCELLED
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]

Json = dict[str, Any]
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
    at = seen.at_ns if key == "itl" else table.sent_ns[seen.row]
    keep = (at >= start) & (at <= end)
    if key != "e2e":
        keep &= ~(seen.only_age & (table.outcome[seen.row] == CANCELLED))
    return Observed(seen.ns[keep], seen.lo_ns[keep], seen.hi_ns[keep], at[keep], seen.row[keep])


class Figures(Protocol):
    """What a block of figures says of one latency, in ns; NaN where it is not known."""

    @property
    def n(self) -> int:
        """Observations, failed ones included."""

    @property
    def n_failed(self) -> int:
        """Infinite ones."""

    @property
    def mean_ns(self) -> float:
        """Of the finite ones."""

    @property
    def longest_ns(self) -> float:
        """Of the finite ones."""

    def effect(self, q: float) -> float:
        """Design effect of those above a quantile."""

    def quantile(self, q: float) -> float:
        """One of QUANTILES."""

    def interval(self, q: float) -> Interval | None:
        """Its sampling interval; None without observations."""

    def instrument(self, q: float) -> tuple[float, float]:
        """Between which bounds it lies by the stamps."""


class Sample:
    """Figures of observations that are in memory; `blocks`: the time block of each."""

    def __init__(self, seen: Observed, blocks: Ints) -> None:
        """Sort them."""
        self.seen, self.blocks = seen, blocks
        _, self._block, self._sizes = np.unique(blocks, return_inverse=True, return_counts=True)
        self.fine = seen.ns[np.isfinite(seen.ns)]
        self._ordered, self._low, self._high = map(np.sort, (seen.ns, seen.lo_ns, seen.hi_ns))

    @property
    def n(self) -> int:
        """As Figures."""
        return len(self.seen.ns)

    @property
    def n_failed(self) -> int:
        """As Figures."""
        return self.n - len(self.fine)

    @property
    def mean_ns(self) -> float:
        """As Figures."""
        return float(self.fine.mean()) if len(self.fine) else math.nan

    @property
    def longest_ns(self) -> float:
        """As Figures."""
        return float(self.fine.max()) if len(self.fine) else math.nan

    def effect(self, q: float) -> float:
        """As Figures."""
        return design_effect(self._sizes, np.bincount(self._block, highest(self.seen.ns, q)))

    def quantile(self, q: float) -> float:
        """As Figures."""
        return quantile(self._ordered, q)

    def interval(self, q: float) -> Interval | None:
        """As Figures."""
        if not self.n:
            return None
        lo, hi = interval_ranks(self.n, q, self.effect(q), len(self._sizes))
        return Interval(float(self._ordered[lo]), None if hi is None else float(self._ordered[hi]))

    def instrument(self, q: float) -> tuple[float, float]:
        """As Figures."""
        return quantile(self._low, q), quantile(self._high, q)


def spans_of(table: RecordTable, windows: Sequence[tuple[int, int]]) -> list[Span]:
    """The windows with their time blocks."""
    return [Span(*window, block_ns_of(table, *window)) for window in windows]


def sample_of(table: RecordTable, key: str, spans: Sequence[Span]) -> Sample:
    """One latency of the requests sent in the spans: their blocks side by side."""
    observe = METRICS[key].observe
    assert observe is not None  # noqa: S101 - asked for latencies only
    whole, seen, blocks, before = observe(table), [], [], 0
    for start, end, block_ns in spans:
        part = in_window(whole, table, key, start, end)
        seen.append(part)
        blocks.append(block_of(part.at_ns, start, block_ns) + before)
        before += MOST_BLOCKS + 1
    joined = (np.concatenate([getattr(s, f.name) for s in seen]) for f in fields(Observed))
    return Sample(Observed(*joined), np.concatenate(blocks))


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
