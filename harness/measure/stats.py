"""Quantiles that admit failures, and intervals that admit autocorrelation.

Quantiles are exact (type 7); where a neighbour is infinite the upper order statistic is taken, and
with fewer than ten observations expected beyond it a quantile is not reported at all.

Intervals resample *blocks of time*, not observations: gaps of one engine step are shared by the
whole batch and neighbours in time resemble each other (the iid formula covered 25 % instead of
95 % on such data).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
MIN_BEYOND: Final = 10  # observations expected above a quantile before it may be reported
REPLICATES: Final = 400
FEWEST_USED: Final = 4  # blocks with data: below, a spread says nothing
_NORMAL: Final = NormalDist()


def quantile(ordered: Floats, q: float) -> float:
    """Type 7 quantile of ascending values that may end in +inf; NaN when there are none."""
    n = len(ordered)
    if n == 0:
        return float("nan")
    place = q * (n - 1)
    low = int(place)
    below, above = float(ordered[low]), float(ordered[min(low + 1, n - 1)])
    if above == float("inf"):
        return below if place == low else above
    return below + (above - below) * (place - low)


def reportable(n: int, q: float) -> bool:
    """Whether n observations may state quantile q: n (1 - q) >= 10."""
    return round(n * (1 - q), 9) >= MIN_BEYOND


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
    """[lo, hi], in the unit of what it bounds."""

    lo: float
    hi: float


def block_of(at_ns: Ints, start_ns: int, block_ns: int) -> Ints:
    """Index of the time block of each instant."""
    return np.asarray((at_ns - start_ns) // max(block_ns, 1))


def resample_weights(blocks: int, seed: int, replicates: int = REPLICATES) -> Floats:
    """(replicates, blocks) counts of how often each block is drawn; deterministic in the seed."""
    rng = np.random.default_rng([seed, blocks])
    return rng.multinomial(blocks, np.full(blocks, 1 / blocks), replicates).astype(np.float64)


def quantile_interval(
    values: Floats, blocks: Ints, q: float, *, seed: int = 0, confidence: float = 0.95
) -> Interval | None:
    """Block-bootstrap interval of a quantile; None with fewer than four blocks with data.

    Values are first reduced to their ranks' 512 bins per block, so that a replicate is one matrix
    row, whatever the number of observations.
    """
    used, which = np.unique(blocks, return_inverse=True)
    if len(used) < FEWEST_USED:
        return None
    order = np.argsort(values, kind="stable")
    n, bins = len(values), min(512, len(values))
    # finer bins towards the top, where the latencies' quantiles are
    edges = np.unique((n * (1 - (1 - np.linspace(0, 1, bins + 1)) ** 2)).astype(np.int64))
    bin_of = np.empty(n, np.int64)
    bin_of[order] = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    counts = np.bincount(which * (len(edges) - 1) + bin_of, minlength=len(used) * (len(edges) - 1))
    weights = resample_weights(len(used), seed)
    mass = np.cumsum(weights @ counts.reshape(len(used), -1), axis=1)
    hit = np.argmax(mass >= q * mass[:, -1:], axis=1)
    tops = values[order][edges[1:] - 1]
    lo, hi = np.quantile(hit, percentile_levels(len(used), confidence), method="nearest")
    return Interval(float(tops[max(int(lo) - 1, 0)]), float(tops[int(hi)]))


def effective_n(over: NDArray[np.bool_], blocks: Ints) -> float:
    """How many independent observations would know this share as well as these n do.

    The share's variance over blocks (ratio estimator) against the binomial one; at most n.
    """
    n = len(over)
    used, which = np.unique(blocks, return_inverse=True)
    if n == 0 or len(used) < 2:  # noqa: PLR2004 - no spread without two
        return float(n)
    sizes: Floats = np.bincount(which).astype(np.float64)
    hits = np.bincount(which, weights=over).astype(np.float64)
    return n / design_effect(sizes, hits)


def design_effect(sizes: Floats, hits: Floats) -> float:
    """Variance of the pooled share over its binomial variance, at least 1 (B >= 2 blocks)."""
    n, k, b = sizes.sum(), hits.sum(), len(sizes)
    share = k / n if n else 0.0
    if b < 2 or share in (0.0, 1.0):  # noqa: PLR2004 - no spread without two
        return 1.0
    variance = b / (b - 1) * float(((hits - share * sizes) ** 2).sum()) / n**2
    return max(1.0, float(variance / (share * (1 - share) / n)))
