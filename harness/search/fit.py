"""The knee from all steps at once: isotonic fit of the criterion over load, inverted.

The criterion of a level is its excess, in log-odds. Latency does not fall with load, so
a non-decreasing function is fitted to it (pool adjacent violators, weighted by information), its
points are joined by straight lines, and the knee is where it crosses 0. For the interval, each
level's blocks of time are resampled. The interval always includes the levels on both sides of the
crossing: nothing was measured between them, so the straight line there is a guess, not evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.evidence import pool_evidence
from harness.metrics.statistics import percentile_levels, resample_weights
from harness.search.logit_margin import logit_margin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo

    Floats = NDArray[np.float64]


# Levels that take part in the local fit: distance to the crossing (log of counts), and to the limit
# (log-odds).
NEAR_LOG_USERS: Final = 0.5
NEAR_MARGIN: Final = 1.5


@dataclass(frozen=True, slots=True)
class LevelFit:
    """Everything measured at one load."""

    count: int  # of its load
    evidence: Evidence
    steps: int  # how often the level was held
    margin: float  # log-odds of the share over the worst limit, minus the allowed ones
    weight: float  # information about `margin`


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the fitted criterion crosses its limit, as a count; inf: at none of the levels held.

    `lo` and `hi` are the 95% interval. `count` is below the first level if even that one fails.
    """

    count: float
    lo: float
    hi: float
    draws: Floats  # `count` of each bootstrap replicate
    between: tuple[float, float]  # the levels around it: the last that passes, the first that fails


def fit_levels(
    evidences: Sequence[Evidence], slos: Sequence[Slo], max_errors: float
) -> list[LevelFit]:
    """One level per load, ascending; levels without observations are left out."""
    by_count: dict[int, list[Evidence]] = {}
    for evidence in evidences:
        by_count.setdefault(evidence.window.load.count, []).append(evidence)
    levels = []
    for count, holds in sorted(by_count.items()):
        pooled = pool_evidence(holds)
        margins, weight = logit_margin(pooled, slos, max_errors)
        margin = float(margins[0])
        if not np.isnan(margin):
            levels.append(LevelFit(count, pooled, len(holds), margin, max(weight, 0.01)))
    return levels


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Non-decreasing least-squares fit (pool adjacent violators)."""
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean = value
        mass = weight
        size = 1
        while means and means[-1] > mean:
            mass_before = masses.pop()
            sum_before = means.pop() * mass_before
            mean = (sum_before + mean * mass) / (mass_before + mass)
            mass += mass_before
            size += sizes.pop()
        means.append(mean)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(means, sizes)


def zero_crossing(counts: Floats, fitted: Floats) -> float:
    """The count at which the fit reaches 0; inf if it never does, 0 if it starts above."""
    above = np.flatnonzero(fitted > 0)
    if not len(above):
        return inf
    i = int(above[0])
    if i == 0:
        return 0.0
    low = fitted[i - 1]
    high = fitted[i]
    step = counts[i] - counts[i - 1]
    return float(counts[i - 1] + step * -low / (high - low))


def local_crossing(counts: Floats, values: Floats, weights: Floats, point: float) -> Floats:
    """Crossing of a straight line in log(count) through the levels near `point`, per column.

    Used if an end of the bracket stays inconclusive: then the noise of a level exceeds its distance
    to the next one, and neighbors inform each other. `values`: shape (levels, columns), the first
    column is the data. NaN with fewer than four levels near, or if the line does not rise.
    """
    with np.errstate(divide="ignore"):
        x = np.log(counts / max(point, 1e-9))
    has_near_load = np.abs(x) < NEAR_LOG_USERS
    has_near_margin = np.abs(values[:, 0]) < NEAR_MARGIN
    near = has_near_load & has_near_margin
    if near.sum() < 4:  # noqa: PLR2004 - two parameters and something left over
        return np.full(values.shape[1], np.nan)
    w = weights[near] / weights[near].sum()
    x = x[near]
    y = values[near]
    mean_x = w @ x
    mean_y = w @ y
    off_x = x - mean_x
    slope = (w * off_x) @ (y - mean_y) / (w @ off_x**2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        crossing = mean_x - mean_y / slope  # as x: the log of counts / point
    # Outside the levels it is a guess.
    within_levels = (crossing >= x.min()) & (crossing <= x.max())
    inside = (slope > 0) & within_levels
    crossing_count = point * np.exp(np.where(inside, crossing, 0))
    return np.asarray(np.where(inside, crossing_count, np.nan))


def fit_crossing(
    levels: Sequence[LevelFit],
    slos: Sequence[Slo],
    max_errors: float,
    seed: int = 0,
    *,
    decided: bool = True,
) -> Crossing:
    """Point and interval of the knee; not smoothed if both ends of the bracket are `decided`."""
    counts = np.array([level.count for level in levels], float)
    weights = np.array([level.weight for level in levels])
    margins = np.array([level.margin for level in levels])
    resampled = np.array([_resampled_margins(level, slos, max_errors, seed) for level in levels])
    # The first column is the data, each other one a bootstrap replicate.
    columns = np.column_stack([margins, resampled])
    crossings = _crossings(counts, columns, weights, smooth=not decided)
    point = float(crossings[0])
    draws = crossings[1:]
    lo, hi = _percentile_interval(levels, point, draws)
    last_pass, first_fail = _ends_of_fit(counts, isotonic(margins, weights))
    return Crossing(
        point,
        lo=min(lo, point, last_pass),
        # The level that fails was held, so the knee is one count below it at most.
        hi=max(hi, point, first_fail - 1),
        draws=draws,
        between=(last_pass, first_fail),
    )


def _crossings(counts: Floats, columns: Floats, weights: Floats, *, smooth: bool) -> Floats:
    """The crossing of each column; where it is smoothed, by a line through the levels near it."""
    fits = [isotonic(column, weights) for column in columns.T]
    crossings = np.array([zero_crossing(counts, fitted) for fitted in fits])
    if smooth and 0 < crossings[0] < np.inf:
        line = local_crossing(counts, columns, weights, crossings[0])
        crossings = np.where(np.isnan(line), crossings, line)
    return crossings


def _percentile_interval(
    levels: Sequence[LevelFit], point: float, draws: Floats
) -> tuple[float, float]:
    """The 95% interval of the draws: wider, the fewer blocks the levels near the crossing have."""
    reach = max(point * 2, levels[0].count)
    blocks = [level.evidence.blocks for level in levels if level.count <= reach]
    percentiles = percentile_levels(max(blocks[-3:], default=4))
    # Draws may be infinite: between two of them nothing can be interpolated.
    lo, hi = np.quantile(draws, percentiles, method="nearest")
    return float(lo), float(hi)


def _resampled_margins(
    level: LevelFit, slos: Sequence[Slo], max_errors: float, seed: int
) -> Floats:
    """The margin of each bootstrap replicate of a level's blocks of time."""
    # A seed of its own for each level: their noise is independent, and so must be their draws.
    weights = resample_weights(level.evidence.blocks, seed + level.count)
    margins, _ = logit_margin(level.evidence, slos, max_errors, weights)
    return margins


def _ends_of_fit(counts: Floats, fitted: Floats) -> tuple[float, float]:
    """(the last level that passes by the fit, or 0; the first that fails, or inf)."""
    passing = counts[fitted <= 0]
    failing = counts[fitted > 0]
    last_pass = float(passing[-1]) if len(passing) else 0.0
    first_fail = float(failing[0]) if len(failing) else inf
    return last_pass, first_fail
