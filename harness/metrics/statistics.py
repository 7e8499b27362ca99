"""Quantiles with failures, intervals under autocorrelation, and the functions that tests use.

A quantile is an order statistic, the upper one of two (`pandas.Series.quantile` with
`interpolation="higher"`): a failure is infinite, so nothing can be interpolated. Its interval is a
pair of order statistics whose ranks come from the binomial; with too few observations above a
quantile it has no upper end.

Observations are counted by *blocks of time*: the whole batch shares the gaps of an engine step, and
neighbors in time resemble each other (the iid formula covered 25% instead of 95% on such data). n
observations are worth n / design effect independent ones; the design effect has one degree of
freedom less than there are blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, lgamma, nan
from statistics import NormalDist, fmean, stdev
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
MIN_TAIL: Final = 10  # values above a quantile, to see how such values cluster
REPLICATES: Final = 400
MAX_BLOCKS: Final = 24  # of time
MAX_TERMS: Final = 2000  # of the continued fraction
CONVERGED: Final = 1e-10  # relative change of a term at which the fraction has converged
T_975: Final = {2: 12.706, 3: 4.303}  # Student's t for an interval of so many repeats
_NORMAL: Final = NormalDist()
_log_gamma = np.vectorize(lgamma, otypes=[float])
_normal_quantile = np.vectorize(_NORMAL.inv_cdf, otypes=[float])


def quantile(ordered: Floats, q: float) -> float:
    """The q-quantile of ascending values, which may end in +inf; NaN without values."""
    if not len(ordered):
        return nan
    return float(ordered[rank_of(len(ordered), q)])


def rank_of(n: int, q: float) -> int:
    """The rank, from 0, of the q-quantile among n ascending values."""
    return int(np.ceil(q * (n - 1)))


def interval_ranks(n: int, q: float, effect: float, blocks: int) -> tuple[int, int | None]:
    """Ranks, from 0, of the ends of the q-quantile's 95% interval; None: no value is high enough.

    From the binomial number of values below the quantile, widened by the design effect and by
    Student's t for few blocks. Rounded outwards, the normal approximation is as good as the exact
    binomial.
    """
    # The block bootstrap that this replaced covered 51 to 83% where requests resemble those a
    # lifetime ago; these ranks cover 91 to 97% (decision 14).
    deviation = (n * effect * q * (1 - q)) ** 0.5  # of the number of values below the quantile
    spread = t_quantile(0.975, max(blocks - 1, 1)) * deviation
    # One less, as the number of values up to an end counts from 1, and its rank from 0.
    lo = int(np.floor(n * q - spread)) - 1
    hi = int(np.ceil(n * q + spread)) - 1
    return max(lo, 0), hi if hi < n else None


def t_quantile(p: float, df: float) -> float:
    """Student's t quantile (Cornish-Fisher series, within 1% for df >= 4)."""
    z = _NORMAL.inv_cdf(p)
    first = (z**3 + z) / (4 * df)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * df**3)
    return z + first + second + third


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95% interval of a mean over independent, finite repeats; else NaN twice."""
    n = len(values)
    if n == 1 or not isfinite(fmean(values)):
        return nan, nan
    # exact where the series is not
    t = T_975[n] if n in T_975 else t_quantile(0.975, n - 1)
    half = float(t * stdev(values) / n**0.5)
    return fmean(values) - half, fmean(values) + half


def percentile_levels(blocks: int, confidence: float = 0.95) -> tuple[float, float]:
    """The bootstrap percentiles that give an interval its coverage with few blocks.

    The plain 2.5% and 97.5% assume many blocks. With B blocks the spread is too small by
    sqrt((B - 1) / B), and it is itself estimated, so the tails are Student's: both are widened.
    """
    df = max(blocks - 1, 2)
    # df is B - 1, so this undoes the factor of sqrt((B - 1) / B).
    small_spread = (1 + 1 / df) ** 0.5
    student = t_quantile((1 + confidence) / 2, df)
    upper = _NORMAL.cdf(student * small_spread)
    return 1 - upper, upper


@dataclass(frozen=True, slots=True)
class RankInterval:
    """[lo, hi] in the unit of the figure; `hi` None: no upper end."""

    lo: float
    hi: float | None


def block_of(at_ns: Ints, start_ns: int, block_ns: int) -> Ints:
    """Index of the time block of each instant."""
    return np.asarray((at_ns - start_ns) // max(block_ns, 1))


def resample_weights(blocks: int, seed: int, replicates: int = REPLICATES) -> Floats:
    """How often each block is drawn, shape (replicates, blocks); deterministic in the seed."""
    rng = np.random.default_rng([seed, blocks])
    equally_likely = np.full(blocks, 1 / blocks)
    times_drawn = rng.multinomial(blocks, equally_likely, replicates)
    return times_drawn.astype(np.float64)


def tail_of(values: Floats, q: float) -> NDArray[np.bool_]:
    """Which values along the last axis are above the q-quantile: at least ten, or all."""
    n = values.shape[-1]
    rank = n - tail_size(n, q)
    parted = np.partition(values, rank, axis=-1)
    lowest_of_tail = parted[..., rank, None]
    # Values equal to the lowest of the tail belong to it, so it may be larger than asked for.
    return np.asarray(values >= lowest_of_tail)


def tail_size(n: int, q: float) -> int:
    """How many of n values count as the tail above the q-quantile: at least ten, or all."""
    above = round((1 - q) * n)
    return min(max(above, MIN_TAIL), n)


def design_effect(sizes: Floats | Ints, hits: Floats | Ints) -> float:
    """Variance of the pooled share over its binomial variance, at least 1 (B >= 2 blocks)."""
    return float(design_effects(sizes, hits))


def design_effects(sizes: Floats | Ints, hits: Floats | Ints) -> Floats:
    """As `design_effect`, for blocks along the last axis."""
    n = sizes.sum(axis=-1)
    share = np.asarray(hits.sum(axis=-1) / np.maximum(n, 1))
    blocks = sizes.shape[-1]
    if blocks < 2:  # noqa: PLR2004 - no spread without two
        return np.ones(share.shape)
    # Hits are compared with what the pooled share expects of each block, not with their mean: a
    # block with more observations has more hits by itself.
    off = hits - share[..., None] * sizes
    squares = (off**2).sum(axis=-1)
    binomial_variance = share * (1 - share) / np.maximum(n, 1)
    # where no observation is a hit, or all are, there is no variance to compare with
    with np.errstate(invalid="ignore", divide="ignore"):
        # The linearized variance of a ratio, as blocks differ in size, with Bessel's correction.
        variance = blocks / (blocks - 1) * squares / n**2
        effect = variance / binomial_variance
    # Below 1 it is taken for chance: an interval is never narrower than that of independent values.
    return np.asarray(np.where(binomial_variance > 0, np.maximum(effect, 1), 1.0))


def sum_groups(counts: Floats | Ints | NDArray[np.bool_], groups: int) -> Floats:
    """Sums of neighbors along the last axis, in `groups` groups of nearly equal size."""
    first = np.arange(groups) * counts.shape[-1] // groups
    return np.asarray(np.add.reduceat(counts, first, axis=-1, dtype=np.float64))


def block_count(lifetimes: Floats | float, each: int = 3) -> Ints:
    """Number of time blocks of a level held for this many lifetimes: `each` lifetimes per block.

    Blocks of one lifetime resemble their neighbors if the load changes slowly: with them, intervals
    that should cover 95% covered 60 to 80%.
    """
    # Where the load changed as slowly as blocks of one lifetime, 9% of the levels at exactly the
    # share allowed were called missed (decision 14).
    long_blocks = 2 + np.asarray(lifetimes) / each
    blocks = np.clip(np.minimum(lifetimes, long_blocks), 1, MAX_BLOCKS)
    return np.asarray(blocks.astype(np.int64))


def binomial_tail(k: Floats, n: Floats, p: float) -> Floats:
    """Binomial tail P(X >= k) for n trials with probability p; n and k need not be whole."""
    # P(X >= k) = I_p(k, n - k + 1), which is defined for any real k and n.
    return incomplete_beta(np.maximum(k, 0), np.maximum(n - k, 0) + 1, p)


def student_p_value(p: Floats, df: Floats | Ints | int) -> Floats:
    """Correct a p-value that assumed a known variance for one estimated with `df` degrees.

    1 without a degree of freedom.
    """
    # Korn and Graubard's correction in another order: it keeps the binomial's skewness, and gives a
    # p-value for Holm's procedure (decision 14).
    # The normal quantile of 0 and of 1 is infinite, which Python refuses.
    z = -_normal_quantile(np.clip(p, 1e-300, 1 - 1e-16))
    df = np.asarray(df, np.float64)
    # The incomplete beta function is what lies beyond |z| in both tails of Student's t.
    both_tails = incomplete_beta(np.maximum(df, 1) / 2, 0.5, df / (df + z**2))
    tail = both_tails / 2
    corrected = np.where(z > 0, tail, 1 - tail)
    return np.where(df >= 1, corrected, 1.0)


def incomplete_beta(a: Floats, b: Floats | float, x: Floats | float) -> Floats:
    """Regularized incomplete beta function I_x(a, b), by Lentz's continued fraction; a, b >= 0."""
    # The fraction converges faster for I_{1-x}(b, a) = 1 - I_x(a, b) beyond this x.
    fast_up_to = (a + 1) / (a + b + 2)
    mirrored = np.asarray(x > fast_up_to)
    first = np.where(mirrored, b, a)
    second = np.where(mirrored, a, b)
    point = np.where(mirrored, 1 - x, x)
    # At the edges the value is 0 or 1: the fraction is computed at another point, and not used.
    inside = (first > 0) & (second > 0) & (point > 0)
    safe_first = np.where(inside, first, 1.0)
    safe_second = np.where(inside, second, 1.0)
    safe_point = np.where(inside, point, 0.5)
    by_fraction = _beta_by_fraction(safe_first, safe_second, safe_point)
    at_edge = np.where(first <= 0, 1.0, 0.0)
    value = np.where(inside, by_fraction, at_edge)
    return np.where(mirrored, 1 - value, value)


def _beta_by_fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """I_x(a, b) for a, b > 0 and 0 < x < 1: x^a (1 - x)^b / (a B(a, b)) times the fraction."""
    log_scale = _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b)
    scale = np.exp(log_scale + a * np.log(x) + b * np.log1p(-x)) / a
    return np.asarray(scale * _beta_fraction(a, b, x))


def _beta_fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """Lentz's method: a product of c d, the ratios of numerators and of denominators so far."""
    c = np.ones(x.shape)
    d = 1 / (1 - (a + b) * x / (a + 1))
    fraction = d.copy()
    for m in range(1, MAX_TERMS):
        place = a + 2 * m
        even = m * (b - m) * x / ((place - 1) * place)
        odd = -(a + m) * (a + b + m) * x / (place * (place + 1))
        for term in (even, odd):
            d = 1 / (1 + term * d)
            c = 1 + term / c
            fraction *= c * d
        if (np.abs(c * d - 1) < CONVERGED).all():
            break
    return np.asarray(fraction)
