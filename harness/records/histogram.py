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
    first = histograms[0]
    if all(each.bounds == first.bounds for each in histograms):
        bounds = first.bounds
    else:
        common = set(first.bounds).intersection(*(each.bounds for each in histograms[1:]))
        bounds = tuple(sorted(common | {inf}))
    counts = tuple(fsum(each.at_most(bound) for each in histograms) for bound in bounds)
    return Histogram(bounds, counts, fsum(each.sum for each in histograms))


def histogram_delta(first: Histogram, last: Histogram) -> Histogram | None:
    """The observations between two readings; None after a restart or a change of buckets."""
    counts = tuple(b - a for a, b in zip(first.counts, last.counts, strict=False))
    if first.bounds != last.bounds or any(count < 0 for count in counts):
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
    place = bisect_right(histogram.counts, ceil(q * (n - 1)))  # as `statistics.rank_of`
    return (histogram.bounds[place - 1] if place else 0.0), histogram.bounds[place]


def bucket_ladder(min_us: int, max_us: int) -> tuple[float, ...]:
    """Bounds in seconds from `min_us` to `max_us`, and +Inf: DECADE_STEPS of each power of ten.

    They are whole microseconds, so that a bound is the same number wherever it is written.
    """
    decades = (10**k for k in range(10))
    every = sorted(decade * step // 100 for decade in decades for step in DECADE_STEPS)
    return (*(us / 1_000_000 for us in dict.fromkeys(every) if min_us <= us <= max_us), inf)
