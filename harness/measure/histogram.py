"""Histograms as servers export them: cumulative buckets, a sum, and what the buckets still tell.

A bucket says "so many at or below this bound", so a quantile is known only as the bucket that
holds it. Nothing here interpolates: bounds are what the server vouches for.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import ceil, fsum, inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations so far: `counts[i]` of them were at most `bounds[i]`; `sum` in their unit."""

    bounds: tuple[float, ...]  # ascending, the last is +inf
    counts: tuple[float, ...]  # cumulative, one per bound
    sum: float

    @property
    def count(self) -> float:
        """Observations in all."""
        return self.counts[-1] if self.counts else 0.0

    @property
    def mean(self) -> float:
        """NaN without an observation."""
        return self.sum / self.count if self.count > 0 else float("nan")

    def at_most(self, bound: float) -> float:
        """Observations at or below the largest of our bounds that is at most `bound`."""
        place = bisect_right(self.bounds, bound)
        return self.counts[place - 1] if place else 0.0


def added(histograms: Sequence[Histogram]) -> Histogram:
    """Several engines as one, on the bounds that all of them have. One histogram at least."""
    first = histograms[0]
    if all(each.bounds == first.bounds for each in histograms):
        bounds = first.bounds
    else:
        common = set(first.bounds).intersection(*(each.bounds for each in histograms[1:]))
        bounds = tuple(sorted(common | {inf}))
    counts = tuple(fsum(each.at_most(bound) for each in histograms) for bound in bounds)
    return Histogram(bounds, counts, fsum(each.sum for each in histograms))


def delta(first: Histogram, last: Histogram) -> Histogram | None:
    """What came between two readings; None when the server started anew or its buckets changed."""
    counts = tuple(b - a for a, b in zip(first.counts, last.counts, strict=False))
    if first.bounds != last.bounds or any(count < 0 for count in counts):
        return None
    return Histogram(last.bounds, counts, last.sum - first.sum)


def quantile_bounds(histogram: Histogram, q: float) -> tuple[float, float] | None:
    """(lower, upper) that the q-quantile lies within; None without an observation.

    Below the first bound it is 0: what is counted here is never negative. The upper end is +inf
    when it lies in the last bucket.
    """
    n = histogram.count
    if n < 1:
        return None
    place = bisect_right(histogram.counts, ceil(q * (n - 1)))  # as `stats.rank_of`
    return (histogram.bounds[place - 1] if place else 0.0), histogram.bounds[place]
