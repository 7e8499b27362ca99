"""The buckets that our latencies are counted in, live and offline: one table.

Ten to a decade, so that a quantile read from them is known within a third at worst, from a small
model's gap to a long answer. The limits that people promise (50 ms, 200 ms, 500 ms, 2 s) are
bounds, so that the share over them is exact.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.histogram import Histogram
from harness.units import SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

STEPS: Final = (100, 125, 150, 200, 250, 300, 400, 500, 600, 800)  # hundredths of a decade's start


def ladder(least_us: int, most_us: int) -> tuple[float, ...]:
    """Bounds in seconds from `least_us` to `most_us`, both of STEPS times a power of ten, and +Inf.

    They are whole microseconds, so that a bound is the same number wherever it is written.
    """
    decades = (10**k for k in range(10))
    every = sorted(decade * step // 100 for decade in decades for step in STEPS)
    return (*(us / 1_000_000 for us in dict.fromkeys(every) if least_us <= us <= most_us), inf)


GAP_S: Final = ladder(500, 10_000_000)
BUCKETS_S: Final[dict[str, tuple[float, ...]]] = {
    "ttft": ladder(2_000, 200_000_000),
    "itl": GAP_S,
    "tpot": GAP_S,
    "e2e": ladder(20_000, 1_000_000_000),
    "schedule_lag": ladder(100, 10_000_000),
}


class Counts:
    """A histogram under way: how many observations lie at or below each bound, and their sum."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        """`bounds_s` end with +Inf."""
        self.bounds_s = bounds_s
        self._bounds_ns = np.array([bound * SECOND for bound in bounds_s[:-1]]).round()
        self._counts = np.zeros(len(bounds_s), np.int64)
        self._sum_ns = 0  # an integer: the same whatever order the parts come in

    def add(self, ns: Floats | Ints) -> None:
        """Observations, rounded to whole ns; +inf is counted and left out of the sum."""
        if len(ns):
            ns = np.rint(ns)
            places = np.searchsorted(self._bounds_ns, ns, side="left")  # at a bound: in its bucket
            self._counts += np.bincount(places, minlength=len(self.bounds_s))
            self._sum_ns += int(ns.sum(where=np.isfinite(ns)))

    def histogram(self) -> Histogram:
        """As Prometheus has it: cumulative, in seconds."""
        counts = tuple(float(n) for n in self._counts.cumsum())
        return Histogram(self.bounds_s, counts, self._sum_ns / SECOND)
