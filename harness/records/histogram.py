"""Histograms as servers export them: cumulative buckets and a sum.

A bucket counts the observations at or below its bound, so a quantile is known only as the bucket
that contains it. Nothing is interpolated here: only the bounds are certain.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, fsum, inf
from typing import Final

# Bounds within a decade, in hundredths of its start.
DECADE_STEPS: Final = (100, 125, 150, 200, 250, 300, 400, 500, 600, 800)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations so far: `counts[i]` of them were at most `bounds[i]`; `sum` in their unit."""

    bounds: tuple[float, ...]  # ascending, the last is +inf
    counts: tuple[float, ...]  # cumulative, one per bound
    sum: float

    @property
    def count(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        """Mean of the observations; NaN without any."""
        return self.sum / self.count if self.count > 0 else float("nan")

    def at_most(self, bound: float) -> float:
        """Observations at or below the largest of our bounds that is at most `bound`."""
        place = bisect_right(self.bounds, bound)
        return self.counts[place - 1] if place else 0.0


def sum_histograms(histograms: Sequence[Histogram]) -> Histogram:
    """Several engines as one, on the bounds that all of them have. One histogram at least."""
    bounds = _common_bounds([histogram.bounds for histogram in histograms])
    counts = []
    for bound in bounds:
        up_to_bound = [histogram.at_most(bound) for histogram in histograms]
        counts.append(fsum(up_to_bound))
    total = fsum(histogram.sum for histogram in histograms)
    return Histogram(bounds, tuple(counts), total)


def _common_bounds(of_each: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    first, *others = of_each
    # Most often all engines have the same ones: then nothing is sorted.
    if all(bounds == first for bounds in others):
        return first
    common = set(first).intersection(*others)
    return tuple(sorted(common | {inf}))


def histogram_delta(first: Histogram, last: Histogram) -> Histogram | None:
    """The observations between two readings; None after a restart or a change of buckets."""
    if first.bounds != last.bounds:
        return None
    pairs = zip(first.counts, last.counts, strict=False)
    counts = tuple(later - earlier for earlier, later in pairs)
    if any(count < 0 for count in counts):
        return None
    return Histogram(last.bounds, counts, last.sum - first.sum)


def quantile_bounds(histogram: Histogram, q: float) -> tuple[float, float] | None:
    """(lower, upper) bounds of the q-quantile; None without an observation.

    The lower bound of the first bucket is 0, as nothing counted here is negative. The upper bound
    of the last bucket is +inf.
    """
    n = histogram.count
    if n < 1:
        return None
    rank = ceil(q * (n - 1))  # as `statistics.rank_of`
    place = bisect_right(histogram.counts, rank)
    lower = histogram.bounds[place - 1] if place else 0.0
    return lower, histogram.bounds[place]


def bucket_ladder(min_us: int, max_us: int) -> tuple[float, ...]:
    """Bounds in seconds from `min_us` to `max_us`, and +Inf: DECADE_STEPS of each power of ten.

    They are whole microseconds, so that a bound is the same number wherever it is written.
    """
    every_us = set()
    for power in range(10):
        every_us |= {10**power * step // 100 for step in DECADE_STEPS}
    seconds = [us / 1_000_000 for us in sorted(every_us) if min_us <= us <= max_us]
    return (*seconds, inf)
