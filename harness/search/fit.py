"""The knee from all steps at once: isotonic fit of the criterion over load, inverted.

The criterion of a level is its excess, in log-odds. Latency does not fall with load, so
a non-decreasing function is fitted to it (pool adjacent violators, weighted by information), its
points are joined by straight lines, and the knee is where it crosses 0. For the interval, each
level's blocks of time are resampled. The interval always includes the levels on both sides of the
crossing: nothing was measured between them, so the straight line there is a guess, not evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
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


# Levels that take part in the local fit: distance to the crossing (log of users), and to the limit
# (log-odds).
NEAR_LOG_USERS: Final = 0.5
NEAR_MARGIN: Final = 1.5


@dataclass(frozen=True, slots=True)
class LevelFit:
    """Everything measured at one number of users."""

    users: int
    evidence: Evidence
    steps: int  # how often the level was held
    margin: float  # log-odds of the share over the worst limit, minus the allowed ones
    weight: float  # information about `margin`


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the fitted criterion crosses its limit, in users; inf: at none of the levels held.

    `lo` and `hi` are the 95% interval. `users` is below the first level if even that one fails.
    """

    users: float
    lo: float
    hi: float
    draws: Floats  # `users` of each bootstrap replicate
    between: tuple[float, float]  # the levels around it: the last that passes, the first that fails


def fit_levels(
    evidences: Sequence[Evidence], slos: Sequence[Slo], max_errors: float
) -> list[LevelFit]:
    """One Level per number of users, ascending; levels without observations are left out."""
    by_users: dict[int, list[Evidence]] = {}
    for evidence in evidences:
        by_users.setdefault(evidence.window.users, []).append(evidence)
    levels = []
    for users, several in sorted(by_users.items()):
        joined = pool_evidence(several)
        values, weight = logit_margin(joined, slos, max_errors)
        if not np.isnan(values[0]):
            levels.append(
                LevelFit(users, joined, len(several), float(values[0]), max(weight, 0.01))
            )
    return levels


def isotonic(values: Floats, weights: Floats) -> Floats:
    """Non-decreasing least-squares fit (pool adjacent violators)."""
    means: list[float] = []
    masses: list[float] = []
    sizes: list[int] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, mass, size = value, weight, 1
        while means and means[-1] > mean:
            mean = (means[-1] * masses[-1] + mean * mass) / (masses[-1] + mass)
            mass += masses.pop()
            size += sizes.pop()
            means.pop()
        means.append(mean)
        masses.append(mass)
        sizes.append(size)
    return np.repeat(means, sizes)


def zero_crossing(users: Floats, fitted: Floats) -> float:
    """Users at which the fit reaches 0; inf if it never does, 0 if it starts above."""
    above = np.flatnonzero(fitted > 0)
    if not len(above):
        return float("inf")
    i = int(above[0])
    if i == 0:
        return 0.0
    low, high = fitted[i - 1], fitted[i]
    return float(users[i - 1] + (users[i] - users[i - 1]) * -low / (high - low))


def local_crossing(users: Floats, values: Floats, weights: Floats, point: float) -> Floats:
    """Crossing of a straight line in log(users) through the levels near `point`, per column.

    Used if an end of the bracket stays inconclusive: then the noise of a level exceeds its distance
    to the next one, and neighbors inform each other. `values`: shape (levels, columns), the first
    column is the data. NaN with fewer than four levels near, or if the line does not rise.
    """
    with np.errstate(divide="ignore"):
        x = np.log(users / max(point, 1e-9))
    near = (np.abs(x) < NEAR_LOG_USERS) & (np.abs(values[:, 0]) < NEAR_MARGIN)
    if near.sum() < 4:  # noqa: PLR2004 - two parameters and something left over
        return np.full(values.shape[1], np.nan)
    w, x, y = weights[near] / weights[near].sum(), x[near], values[near]
    mx, my = w @ x, w @ y
    slope = (w * (x - mx)) @ (y - my) / (w @ (x - mx) ** 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at = mx - my / slope
    inside = (slope > 0) & (at >= x.min()) & (at <= x.max())  # outside the levels it is a guess
    return np.asarray(np.where(inside, point * np.exp(np.where(inside, at, 0)), np.nan))


def fit_crossing(
    levels: Sequence[LevelFit],
    slos: Sequence[Slo],
    max_errors: float,
    seed: int = 0,
    *,
    decided: bool = True,
) -> Crossing:
    """Point and interval of the knee; not smoothed if both ends of the bracket are `decided`."""
    users = np.array([level.users for level in levels], float)
    weights = np.array([level.weight for level in levels])
    values = np.array([level.margin for level in levels])
    fitted = isotonic(values, weights)
    resampled = (resample_weights(x.evidence.blocks, seed + x.users) for x in levels)
    pairs = zip(levels, resampled, strict=True)
    draws = np.array([logit_margin(x.evidence, slos, max_errors, w)[0] for x, w in pairs])
    columns = np.column_stack([values, draws])
    found = np.array([zero_crossing(users, isotonic(column, weights)) for column in columns.T])
    if not decided and 0 < found[0] < np.inf:
        line = local_crossing(users, columns, weights, found[0])
        found = np.where(np.isnan(line), found, line)
    point = float(found[0])
    near = [x.evidence.blocks for x in levels if x.users <= max(point * 2, users[0])]
    low, high = percentile_levels(max(near[-3:], default=4))
    lo, hi = np.quantile(found[1:], [low, high], method="nearest")
    below, above = users[fitted <= 0], users[fitted > 0]
    last_pass = below[-1] if len(below) else 0.0
    first_fail = above[0] if len(above) else float("inf")
    ends = float(min(lo, point, last_pass)), float(max(hi, point, first_fail - 1))
    return Crossing(point, *ends, found[1:], (float(last_pass), float(first_fail)))
