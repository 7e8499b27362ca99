"""The latencies of a run since its start, for a live view: how many, their quantiles, the largest.

RunCounts feeds it, as it computes each value anyway. Values are counted in bins (log_histogram.py),
so quantiles are within 0.1%, a run of any length costs the same memory, and a look sorts no values.
"""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.log_histogram import LogHistogram, duration_bin
from harness.metrics.metrics import LATENCIES
from harness.metrics.statistics import rank_of

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints

# New values are counted together, so many pieces at once: one by one they cost ten times as much.
MAX_PIECES: Final = 64


class LatencyBins:
    """One latency in ns; a failure is +inf."""

    def __init__(self) -> None:
        self.n = 0  # failures included
        self.max_ns = nan
        self._n_failed = 0
        self._bins = LogHistogram()
        self._fresh: list[Floats | Ints] = []

    def take(self, ns: Floats | Ints) -> None:
        self._fresh.append(ns)
        if len(self._fresh) >= MAX_PIECES:
            self.count()

    def count(self) -> None:
        """Count the values that were taken since."""
        if not self._fresh:
            return
        ns = np.concatenate(self._fresh)
        self._fresh.clear()
        if not len(ns):
            return
        finite = ns[np.isfinite(ns)].astype(np.int64)
        self.n += len(ns)
        self.max_ns = float(np.fmax(self.max_ns, ns.max()))
        self._n_failed += len(ns) - len(finite)
        self._bins.add(finite, duration_bin(finite))

    def quantile(self, q: float) -> float:
        """The q-quantile in ns; NaN without values."""
        if not self.n:
            return nan
        rank = rank_of(self.n, q)
        if rank >= self.n - self._n_failed:
            return inf
        return self._bins.at(rank)


class RunLatencies:
    """All of LATENCIES."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._bins = {key: LatencyBins() for key in LATENCIES}

    def take(self, key: str, ns: Floats | Ints) -> None:
        """New values of one latency in ns, +inf for what failed."""
        if key in self._bins:
            self._bins[key].take(ns)

    def look(self) -> dict[str, LatencyBins]:
        """Each latency with all values until now."""
        for bins in self._bins.values():
            bins.count()
        return self._bins
