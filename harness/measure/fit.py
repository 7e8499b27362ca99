"""The knee from all steps at once: isotonic fit of the criterion over load, inverted.

The criterion of a level is z = max over SLOs of log(quantile / limit); latency does not fall with
load, so z is fitted by a non-decreasing function (pool adjacent violators, weighted by effective
observations), joined by straight lines, and read where it crosses 0. For the interval each level's
blocks of time are resampled, and the ends are those of the *levels* on both sides of the crossing:
between two levels nothing was measured, so a straight line there is a guess, not evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.evidence import effective_count, pool, worst_ratio
from harness.measure.stats import percentile_levels, resample_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.evidence import Evidence
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Level:
    """All that was measured at one number of users."""

    users: int
    evidence: Evidence
    steps: int
    z: float  # log(quantile / limit) of the worst SLO
    weight: float  # effective observations


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where the fitted criterion crosses its limit, in users; inf: never within what was held.

    `lo` and `hi` are the 95 % interval; `users` is below the first level when even that breaks.
    """

    users: float
    lo: float
    hi: float


def levels_of(evidences: Sequence[Evidence], slos: Sequence[Slo]) -> list[Level]:
    """One Level per number of users held, ascending; levels without observations are left out."""
    by_users: dict[int, list[Evidence]] = {}
    for evidence in evidences:
        by_users.setdefault(evidence.window.users, []).append(evidence)
    levels = []
    for users, several in sorted(by_users.items()):
        joined = pool(several)
        z = float(worst_ratio(joined, slos)[0])
        if not np.isnan(z):
            weight = max(effective_count(joined, slos), 1.0)
            levels.append(Level(users, joined, len(several), z, weight))
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


def invert(users: Floats, fitted: Floats) -> tuple[float, float, float]:
    """(users at which the fit reaches 0, the levels on both sides of that place).

    inf when it never does; 0 when it starts above.
    """
    above = np.flatnonzero(fitted > 0)
    if not len(above):
        return float("inf"), float(users[-1]), float("inf")
    i = int(above[0])
    if i == 0:
        return 0.0, 0.0, float(users[0])
    low, high = fitted[i - 1], fitted[i]
    at = users[i - 1] + (users[i] - users[i - 1]) * -low / (high - low)
    return float(at), float(users[i - 1]), float(users[i])


def crossing(levels: Sequence[Level], slos: Sequence[Slo], seed: int = 0) -> Crossing:
    """Point and interval of the knee from these levels."""
    users = np.array([level.users for level in levels], float)
    weights = np.array([level.weight for level in levels])
    point, _, _ = invert(users, isotonic(np.array([level.z for level in levels]), weights))
    replicates = np.array(
        [
            worst_ratio(
                level.evidence, slos, resample_weights(level.evidence.blocks, seed + level.users)
            )
            for level in levels
        ]
    )
    known = np.where(np.isnan(replicates), np.array([[level.z] for level in levels]), replicates)
    found = np.array([invert(users, isotonic(column, weights)) for column in known.T])
    below, above = found[:, 1], found[:, 2] - 1  # whole users that the levels leave possible
    near = [level.evidence.blocks for level in levels if level.users <= max(point * 2, users[0])]
    low, high = percentile_levels(max(near[-3:], default=4))
    lo = np.quantile(below, low, method="nearest")
    hi = np.quantile(above, high, method="nearest")
    return Crossing(point, float(min(lo, point)), float(max(hi, point)))
