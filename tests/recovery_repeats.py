"""Repeats of one overload together: intervals, and the boundary from which on none comes back."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.statistics import interval_ranks, mean_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.drill.recovery import Recovery

MIN_REPEATS: Final = 6  # the median of fewer has no 95% interval


@dataclass(frozen=True, slots=True)
class Recoveries:
    """Repeats of one overload with other seeds. `ci95`: 95% intervals over the repeats."""

    repeats: int
    censored: int  # that did not come back while they were watched
    median_s: float  # inf: most did not come back
    median_s_ci95: tuple[float, float]
    mean_s: float | None  # None: some did not come back
    mean_s_ci95: tuple[float, float] | None
    good_lost: float  # mean; at least, if some did not come back
    good_lost_ci95: tuple[float, float]


def recovery_over(repeats: Sequence[Recovery]) -> Recoveries:
    """What they show together."""
    n = len(repeats)
    assert n >= MIN_REPEATS, n
    seconds, lost = sorted(r.seconds for r in repeats), [r.good_lost for r in repeats]
    # The repeats are independent. One that never came back is longer than any other, so ranks need
    # no more than that, while a mean would need its length.
    low, high = interval_ranks(n, 0.5, 1.0, n)
    all_back = all(r.came_back for r in repeats)
    return Recoveries(
        n,
        sum(not r.came_back for r in repeats),
        float(np.median(seconds)),
        (seconds[low], inf if high is None else seconds[high]),
        float(np.mean(seconds)) if all_back else None,
        mean_interval(seconds) if all_back else None,
        float(np.mean(lost)),
        mean_interval(lost),
    )


@dataclass(frozen=True, slots=True)
class Boundary:
    """The metastable boundary lies between the two; None: beyond the range that was tried."""

    comes_back: float | None  # the highest factor after which most repeats come back
    never: float | None  # the lowest at which most do not
    tried: dict[float, float] = field(default_factory=dict)  # factor -> share that came back


def metastable_boundary(
    repeat: Callable[[float], Sequence[Recovery]], low: float, high: float, width: float
) -> Boundary:
    """Bisect the factor at which a server no longer comes back, to a bracket of this width."""
    tried: dict[float, float] = {}

    def back(factor: float) -> bool:
        tried[factor] = float(np.mean([r.came_back for r in repeat(factor)]))
        return tried[factor] > 0.5

    if not back(low):
        return Boundary(None, low, tried)
    if back(high):
        return Boundary(high, None, tried)
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if back(middle) else (low, middle)
    return Boundary(low, high, tried)
