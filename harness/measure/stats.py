"""Quantiles that admit failures, intervals that admit autocorrelation, and what tests are made of.

A quantile is an order statistic, the upper one of two (`pandas.Series.quantile` with
`interpolation="higher"`): a failure is infinite, so nothing can be interpolated. Its interval is
two order statistics, those that a binomial of so many observations leaves open, whatever n is: with
too few above a quantile it has no upper end.

Observations are counted by *blocks of time*: gaps of one engine step are shared by the whole batch
and neighbours in time resemble each other (the iid formula covered 25% instead of 95% on such
data). n of them know as much as n / design effect independent ones, estimated with one degree of
freedom less than there are blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
FEWEST_BEYOND: Final = 10  # values above a quantile that show how such values come
REPLICATES: Final = 400
MOST_BLOCKS: Final = 24  # of time
MOST_TERMS: Final = 2000  # of a continued fraction, until they change so little:
PRECISE: Final = 1e-10
_NORMAL: Final = NormalDist()
_log_gamma = np.vectorize(lgamma, otypes=[float])


def quantile(ordered: Floats, q: float) -> float:
    """The q-quantile of ascending values that may end in +inf; NaN when there are none."""
    return float(ordered[rank_of(len(ordered), q)]) if len(ordered) else float("nan")


def rank_of(n: int, q: float) -> int:
    """Which of n ascending values is the q-quantile, from 0."""
    return int(np.ceil(q * (n - 1)))


def interval_ranks(n: int, q: float, effect: float, blocks: int) -> tuple[int, int | None]:
    """Ranks, from 0, of the ends of the q-quantile's 95% interval; None: no value is high enough.

    The binomial of the values below it, its spread as `effect` and so few blocks have it, rounded
    outwards; with that the normal approximation is as good as the exact one.
    """
    spread = t_quantile(0.975, max(blocks - 1, 1)) * (n * effect * q * (1 - q)) ** 0.5
    lo, hi = int(np.floor(n * q - spread)) - 1, int(np.ceil(n * q + spread)) - 1
    return max(lo, 0), hi if hi < n else None


def t_quantile(p: float, df: float) -> float:
    """Student's t quantile (Cornish-Fisher series, within 1 % for df >= 4)."""
    z = _NORMAL.inv_cdf(p)
    return (
        z
        + (z**3 + z) / (4 * df)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    )


def percentile_levels(blocks: int, confidence: float = 0.95) -> tuple[float, float]:
    """Bootstrap percentiles to read for an interval from so few blocks.

    The plain 2.5 % and 97.5 % assume many blocks. With B of them the spread is too small by
    sqrt((B - 1) / B) and its own error makes the tail Student's: widen both.
    """
    df = max(blocks - 1, 2)
    upper = _NORMAL.cdf(t_quantile((1 + confidence) / 2, df) * (1 + 1 / df) ** 0.5)
    return 1 - upper, upper


@dataclass(frozen=True, slots=True)
class Interval:
    """[lo, hi], in the unit of what it bounds; None: at least lo."""

    lo: float
    hi: float | None


def block_of(at_ns: Ints, start_ns: int, block_ns: int) -> Ints:
    """Index of the time block of each instant."""
    return np.asarray((at_ns - start_ns) // max(block_ns, 1))


def resample_weights(blocks: int, seed: int, replicates: int = REPLICATES) -> Floats:
    """(replicates, blocks) counts of how often each block is drawn; deterministic in the seed."""
    rng = np.random.default_rng([seed, blocks])
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), replicates).astype(np.float64)


def highest(values: Floats, q: float) -> NDArray[np.bool_]:
    """Which values, along the last axis, are above the q-quantile: ten at least, or all."""
    n = values.shape[-1]
    least = n - beyond(n, q)
    return np.asarray(values >= np.partition(values, least, axis=-1)[..., least, None])


def beyond(n: int, q: float) -> int:
    """How many of n values above the q-quantile are looked at to see how they come."""
    return min(max(round((1 - q) * n), FEWEST_BEYOND), n)


def design_effect(sizes: Floats | Ints, hits: Floats | Ints) -> float:
    """Variance of the pooled share over its binomial variance, at least 1 (B >= 2 blocks)."""
    return float(design_effects(sizes, hits))


def design_effects(sizes: Floats | Ints, hits: Floats | Ints) -> Floats:
    """As `design_effect`, of blocks along the last axis."""
    n, k, b = sizes.sum(axis=-1), hits.sum(axis=-1), sizes.shape[-1]
    share = np.asarray(k / np.maximum(n, 1))
    if b < 2:  # noqa: PLR2004 - no spread without two
        return np.ones(share.shape)
    spread = ((hits - share[..., None] * sizes) ** 2).sum(axis=-1)
    independent = share * (1 - share) / np.maximum(n, 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        effect = b / (b - 1) * spread / n**2 / independent
    return np.asarray(np.where(independent > 0, np.maximum(effect, 1), 1.0))


def joined(counts: Floats | Ints | NDArray[np.bool_], groups: int) -> Floats:
    """Neighbours along the last axis added up to so many groups, as even as can be."""
    first = np.arange(groups) * counts.shape[-1] // groups
    return np.asarray(np.add.reduceat(counts, first, axis=-1, dtype=np.float64))


def block_count(lifetimes: Floats | float, each: int = 3) -> Ints:
    """Blocks of time for a level held so long: `each` lifetimes long, fewer where that is few.

    Blocks of one lifetime each resemble their neighbors where load changes as slowly: of intervals
    that should cover 95%, 60 to 80% did.
    """
    blocks = np.minimum(lifetimes, 2 + np.asarray(lifetimes) / each)
    return np.asarray(np.clip(blocks, 1, MOST_BLOCKS).astype(np.int64))


def at_least(k: Floats, n: Floats, p: float) -> Floats:
    """P(X >= k) of n coins that fall on heads with p; n and k need not be whole (0 <= k <= n)."""
    return beta(np.maximum(k, 0), np.maximum(n - k, 0) + 1, p)


def student(p: Floats, df: Floats | Ints | int) -> Floats:
    """A p-value got as if the variance were known, where it was estimated with `df` degrees.

    1 without any.
    """
    z = -np.vectorize(_NORMAL.inv_cdf, otypes=[float])(np.clip(p, 1e-300, 1 - 1e-16))
    df = np.asarray(df, np.float64)
    tail = beta(np.maximum(df, 1) / 2, 0.5, df / (df + z**2)) / 2
    return np.where(df >= 1, np.where(z > 0, tail, 1 - tail), 1.0)


def beta(a: Floats, b: Floats | float, x: Floats | float) -> Floats:
    """Regularized incomplete beta function I_x(a, b), by Lentz's continued fraction; a, b >= 0."""
    a, b, x = (np.array(v, np.float64) for v in np.broadcast_arrays(a, b, x))
    turn = x > (a + 1) / (a + b + 2)  # where the fraction converges faster for 1 - x
    a, b, x = np.where(turn, b, a), np.where(turn, a, b), np.where(turn, 1 - x, x)
    some = (a > 0) & (b > 0) & (x > 0)
    u, v, y = np.where(some, a, 1.0), np.where(some, b, 1.0), np.where(some, x, 0.5)
    c = np.ones(y.shape)
    d = 1 / (1 - (u + v) * y / (u + 1))
    whole = d.copy()
    for m in range(1, MOST_TERMS):
        for term in (
            m * (v - m) * y / ((u + 2 * m - 1) * (u + 2 * m)),
            -(u + m) * (u + v + m) * y / ((u + 2 * m) * (u + 2 * m + 1)),
        ):
            d, c = 1 / (1 + term * d), 1 + term / c
            whole *= c * d
        if (np.abs(c * d - 1) < PRECISE).all():
            break
    size = _log_gamma(u + v) - _log_gamma(u) - _log_gamma(v)
    value = np.exp(size + u * np.log(y) + v * np.log1p(-y)) / u * whole
    value = np.where(some, value, np.where(a <= 0, 1.0, 0.0))
    return np.where(turn, 1 - value, value)
