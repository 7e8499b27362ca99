"""The curve of aiperf's `smooth_isotonic`: a monotone fit to margins over users, and its zero.

In: the margins (ms; below 0 the SLO is met) of each level's trials. Margins are averaged by level,
adjacent violators are pooled, and a monotone cubic (PCHIP) goes through what that leaves.
"""

from __future__ import annotations

from math import ceil
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.search.fit import isotonic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Margins = dict[int, list[float]]

MIN_LEVELS, MIN_DISTINCT = 4, 3  # of a curve; with less, two more levels are held
SMALL: Final = 1e-9  # of the curve's range: so much it rises where the fit is flat
HALVINGS: Final = 60
CLIFF_SIGMAS: Final = 3
FEWEST, MOST, GAIN = 3, 20, 4  # replicates
RESAMPLES: Final = 10_000


def _means(margins: Margins) -> tuple[Floats, Floats]:
    users = sorted(margins)
    return np.array(users, float), np.array([fmean(margins[x]) for x in users])


def _fitted(margins: Margins) -> tuple[Floats, Floats]:
    users, means = _means(margins)
    return users, isotonic(means, np.ones(len(means)))


def too_flat(margins: Margins) -> bool:
    """Whether there are too few levels for a curve, or too few are left after pooling."""
    fitted = _fitted(margins)[1]
    return len(fitted) < MIN_LEVELS or len(np.unique(fitted.round(9))) < MIN_DISTINCT


def root(margins: Margins, low: int, high: int) -> float | None:
    """Where the curve crosses 0 between two levels; None if it does not."""
    users, fitted = _fitted(margins)
    span = fitted[-1] - fitted[0]
    fitted = fitted + np.arange(len(fitted)) * SMALL * (span if span > 0 else 1)
    above = np.flatnonzero(fitted >= 0)
    if not len(above) or above[0] == 0:
        return None
    i = int(above[0]) - 1
    slopes = pchip_slopes(users, fitted)[i : i + 2] * (users[i + 1] - users[i])
    left, right = 0.0, 1.0
    for _ in range(HALVINGS):  # the cubic between two knots never falls
        middle = (left + right) / 2
        if _cubic(middle, fitted[i : i + 2], slopes) < 0:
            left = middle
        else:
            right = middle
    crossing = float(users[i] + right * (users[i + 1] - users[i]))
    return crossing if low <= crossing <= high else None


def _cubic(t: float, ends: Floats, slopes: Floats) -> float:
    """Hermite's cubic on [0, 1]."""
    bend = t * (1 - t)
    return float(
        ends[0] * (1 + 2 * t) * (1 - t) ** 2
        + ends[1] * t**2 * (3 - 2 * t)
        + bend * (slopes[0] * (1 - t) - slopes[1] * t)
    )


def pchip_slopes(x: Floats, y: Floats) -> Floats:
    """Fritsch and Butland's: weighted harmonic means inside, a three-point formula at the ends."""
    h, d = np.diff(x), np.diff(y) / np.diff(x)
    if len(d) == 1:
        return np.array([d[0], d[0]])
    before, after = 2 * h[1:] + h[:-1], h[1:] + 2 * h[:-1]
    with np.errstate(divide="ignore"):
        inside = (before + after) / (before / d[:-1] + after / d[1:])
    inside = np.where(d[:-1] * d[1:] > 0, inside, 0.0)
    return np.array([_end(h[0], h[1], d[0], d[1]), *inside, _end(h[-1], h[-2], d[-1], d[-2])])


def _end(h: float, h_next: float, d: float, d_next: float) -> float:
    slope = ((2 * h + h_next) * d - h * d_next) / (h + h_next)
    if slope * d <= 0:
        return 0.0
    return 3 * d if d * d_next <= 0 and abs(slope) > 3 * abs(d) else slope


def is_cliff(margins: Margins, last: int) -> bool:
    """Whether the last level lies more than three standard deviations off the fit.

    The deviation is that of the other levels' residuals: aiperf's documents do not define it, and
    the file that does (_cliff_detect.py) is not stored.
    """
    users, means = _means(margins)
    off = means - _fitted(margins)[1]
    others = off[users != last]
    spread = stdev(others) if len(others) > 1 else 0.0
    return bool(abs(off[users == last][0]) > CLIFF_SIGMAS * spread)


def replicates(margins: Margins, limit_ms: float) -> int:
    """How often to repeat the candidate, by the noise of the highest level; 0: that is unknown."""
    trials = margins[max(margins)]
    if len(trials) < 2:  # noqa: PLR2004 - a deviation needs two
        return 0
    return min(MOST, max(FEWEST, ceil(GAIN * (stdev(trials) / limit_ms) ** 2)))


def mean_interval(margins: list[float]) -> tuple[float, float]:
    """The bootstrap's 95% interval of a mean, by percentiles."""
    draws = np.random.default_rng(len(margins)).choice(margins, (RESAMPLES, len(margins)))
    lo, hi = np.quantile(draws.mean(axis=1), [0.025, 0.975])
    return float(lo), float(hi)
