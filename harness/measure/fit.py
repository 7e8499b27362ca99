"""The knee from all steps at once: isotonic fit of the criterion over load, inverted.

The criterion of a level is its excess (excess.py), in log-odds; latency does not fall with load, so
it is fitted by a non-decreasing function (pool adjacent violators, weighted by information), joined
by straight lines, and read where it crosses 0. For the interval each level's blocks of time are
resampled; it holds at least the levels on both sides of the crossing: between them nothing was
measured, so a straight line is a guess there, not evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.evidence import pool
from harness.measure.excess import excess
from harness.measure.stats import percentile_levels, resample_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.evidence import Evidence
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]


# what joins a smooth fit: levels so near the crossing (log of users) and the limit (log-odds)
NEAR_USERS: Final = 0.5
NEAR_EXCESS: Final = 1.5


@dataclass(frozen=True, slots=True)
class Level:
    """All that was measured at one number of users."""

    users: int
    evidence: Evidence
    steps: int
    excess: float  # log-odds of the share over the worst limit, less those allowed
    weight: float  # information about it


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the fitted criterion crosses its limit, in users; inf: never within what was held.

    `lo` and `hi` are the 95 % interval; `users` is below the first level when even that breaks.
    """

    users: float
    lo: float
    hi: float
    draws: Floats  # `users` of each bootstrap replicate
    between: tuple[float, float]  # the levels around it: the last that passes, the first that fails


def levels_of(evidences: Sequence[Evidence], slos: Sequence[Slo], max_errors: float) -> list[Level]:
    """One Level per number of users held, ascending; levels without observations are left out."""
    by_users: dict[int, list[Evidence]] = {}
    for evidence in evidences:
        by_users.setdefault(evidence.window.users, []).append(evidence)
    levels = []
    for users, several in sorted(by_users.items()):
        joined = pool(several)
        values, weight = excess(joined, slos, max_errors)
        if not np.isnan(values[0]):
            levels.append(Level(users, joined, len(several), float(values[0]), max(weight, 0.01)))
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


def invert(users: Floats, fitted: Floats) -> float:
    """Users at which the fit reaches 0; inf when it never does, 0 when it starts above."""
    above = np.flatnonzero(fitted > 0)
    if not len(above):
        return float("inf")
    i = int(above[0])
    if i == 0:
        return 0.0
    low, high = fitted[i - 1], fitted[i]
    return float(users[i - 1] + (users[i] - users[i - 1]) * -low / (high - low))


def smooth(users: Floats, values: Floats, weights: Floats, point: float) -> Floats:
    """Crossing of a straight line in log(users) through the levels near `point`, per column.

    For ends that stay undecided: there the noise of a level exceeds its distance to the next, and
    neighbours know about each other. `values` is (levels, columns), its first column the data.
    NaN where fewer than four levels are near or the line does not rise.
    """
    with np.errstate(divide="ignore"):
        x = np.log(users / max(point, 1e-9))
    near = (np.abs(x) < NEAR_USERS) & (np.abs(values[:, 0]) < NEAR_EXCESS)
    if near.sum() < 4:  # noqa: PLR2004 - two parameters and something left over
        return np.full(values.shape[1], np.nan)
    w, x, y = weights[near] / weights[near].sum(), x[near], values[near]
    mx, my = w @ x, w @ y
    slope = (w * (x - mx)) @ (y - my) / (w @ (x - mx) ** 2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at = mx - my / slope
    inside = (slope > 0) & (at >= x.min()) & (at <= x.max())  # beyond the levels it is a guess
    return np.asarray(np.where(inside, point * np.exp(np.where(inside, at, 0)), np.nan))


def crossing(
    levels: Sequence[Level],
    slos: Sequence[Slo],
    max_errors: float,
    seed: int = 0,
    *,
    decided: bool = True,
) -> Crossing:
    """Point and interval of the knee; `decided`: both ends of the bracket are, no smoothing."""
    users = np.array([level.users for level in levels], float)
    weights = np.array([level.weight for level in levels])
    values = np.array([level.excess for level in levels])
    fitted = isotonic(values, weights)
    draws = np.array(
        [
            excess(
                x.evidence, slos, max_errors, resample_weights(x.evidence.blocks, seed + x.users)
            )[0]
            for x in levels
        ]
    )
    columns = np.column_stack([values, draws])
    found = np.array([invert(users, isotonic(column, weights)) for column in columns.T])
    if not decided and 0 < found[0] < np.inf:
        line = smooth(users, columns, weights, found[0])
        found = np.where(np.isnan(line), found, line)
    point = float(found[0])
    near = [x.evidence.blocks for x in levels if x.users <= max(point * 2, users[0])]
    low, high = percentile_levels(max(near[-3:], default=4))
    lo, hi = np.quantile(found[1:], [low, high], method="nearest")
    below, above = users[fitted <= 0], users[fitted > 0]
    least = below[-1] if len(below) else 0.0
    first = above[0] if len(above) else float("inf")
    ends = float(min(lo, point, least)), float(max(hi, point, first - 1))
    return Crossing(point, *ends, found[1:], (float(least), float(first)))
