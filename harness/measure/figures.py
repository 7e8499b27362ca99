"""One latency in figures: n, mean, quantiles with their two intervals, as plain JSON values."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from harness.measure.evidence import FEWEST_BLOCKS, MOST_BLOCKS, lifetime_ns
from harness.measure.gaps import Span
from harness.measure.metrics import METRICS, Observed
from harness.measure.stats import (
    QUANTILES,
    block_of,
    effective_n,
    quantile,
    quantile_interval,
    reportable,
)
from harness.measure.table import CANCELLED
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.stats import Interval
    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]

Json = dict[str, Any]


def say_ms(ns: float) -> float | str | None:
    """Milliseconds for JSON: "inf" for what failed, None for what is not known."""
    if math.isnan(ns):
        return None
    return "inf" if math.isinf(ns) else round(ns / MS, 6)


def block_ns_of(table: RecordTable, start_ns: int, end_ns: int) -> int:
    """Length of the window's time blocks: at least one mean lifetime, 4 to 24 of them."""
    length = max(end_ns - start_ns, 1)
    count = np.clip(length / max(lifetime_ns(table), 1), FEWEST_BLOCKS, MOST_BLOCKS)
    return -(-length // int(count))


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

    @property
    def effective_n(self) -> float:
        """How many independent ones would know as much of the p95."""

    def quantile(self, q: float) -> float:
        """One of QUANTILES."""

    def interval(self, q: float) -> Interval | None:
        """Its sampling interval."""

    def instrument(self, q: float) -> tuple[float, float]:
        """Between which bounds it lies by the stamps."""


class Sample:
    """Figures of observations that are in memory; `blocks`: the time block of each."""

    def __init__(self, seen: Observed, blocks: Ints) -> None:
        """Sort them."""
        self.seen, self.blocks = seen, blocks
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

    @property
    def effective_n(self) -> float:
        """As Figures."""
        return effective_n(self.seen.ns > self.quantile(0.95), self.blocks)

    def quantile(self, q: float) -> float:
        """As Figures."""
        return quantile(self._ordered, q)

    def interval(self, q: float) -> Interval | None:
        """As Figures."""
        return quantile_interval(self.seen.ns, self.blocks, q)

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
        "effective_n": round(seen.effective_n) if n else 0,
        "mean": say_ms(seen.mean_ns),
        "max": say_ms(seen.longest_ns),
    }
    for name, q in QUANTILES.items():
        known = reportable(n, q)
        interval = seen.interval(q) if known else None
        out[name] = say_ms(seen.quantile(q)) if known else None
        out[f"{name}_ci95"] = interval and [say_ms(interval.lo), say_ms(interval.hi)]
        out[f"{name}_instrument"] = [say_ms(x) for x in seen.instrument(q)] if known else None
    return out
