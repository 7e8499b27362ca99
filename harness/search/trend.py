"""Is a window steady? Two tests on the means of its blocks of time, which are of log(latency).

*Drift*: Spearman's rank correlation of the means with time. Neighboring blocks that resemble each
other look like a trend; so the ranks count as fewer, the more alike their neighbors are once a
straight line is taken away. *Dependence*: the correlation of neighbors itself, against none.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.evidence import BINS_PER_SIDE, LOG_SPAN, RATIO_BINS
from harness.metrics.statistics import incomplete_beta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo

    Floats = NDArray[np.float64]

ALPHA: Final = 0.005  # of a window: at most 5% where neighbors correlate by 0.6, too
MIN_BLOCKS: Final = 8
MAX_ALIKE: Final = 0.8
# What a straight line through n independent values takes from the correlation of neighbors.
LINE_BIAS: Final = 2.5
CENTERS: Final = (np.arange(RATIO_BINS) - BINS_PER_SIDE - 0.5) * (LOG_SPAN / BINS_PER_SIDE)


def ranks(values: Floats) -> Floats:
    """From 0; ties have their mean rank."""
    _, group, count = np.unique(values, return_inverse=True, return_counts=True)
    # A group of c equal values has the ranks from C - c to C - 1, where C is how many are up to it.
    mean_ranks = np.cumsum(count) - (count + 1) / 2
    return np.asarray(mean_ranks[group], np.float64)


def alike(values: Floats) -> float:
    """The correlation of neighbors, once a straight line is taken away."""
    x = np.arange(len(values)) - (len(values) - 1) / 2
    slope = (x @ values) / (x @ x)
    rest = values - values.mean() - slope * x
    return float(rest[1:] @ rest[:-1] / max(rest @ rest, 1e-9))


def _p_value(r: float, n: float) -> float:
    """Of a correlation over n pairs, two-sided; 1 with too few."""
    if n <= 3:  # noqa: PLR2004 - two parameters, and something left over
        return 1.0
    df = n - 2
    unexplained = max(1 - r * r, 1e-9)
    t_squared = df * r * r / unexplained
    # Both tails of Student's t are one incomplete beta function.
    beyond = incomplete_beta(np.array(df / 2), 0.5, df / (df + t_squared))
    return float(beyond)


def drift(means: Floats) -> tuple[float, float]:
    """(Spearman's correlation with time, its p-value)."""
    n = len(means)
    by_rank = ranks(means)
    if n < MIN_BLOCKS or not np.ptp(by_rank):
        return 0.0, 1.0
    rho = float(np.corrcoef(by_rank, np.arange(n))[0, 1])
    likeness = alike(by_rank) + LINE_BIAS / n
    likeness = min(max(likeness, 0), MAX_ALIKE)
    independent = n * (1 - likeness) / (1 + likeness)  # blocks that these are worth
    return rho, _p_value(rho, independent)


def dependence(means: Floats) -> tuple[float, float]:
    """(correlation of neighboring blocks, its one-sided p-value)."""
    n = len(means)
    by_rank = ranks(means)
    if n < MIN_BLOCKS or not np.ptp(by_rank):
        return 0.0, 1.0
    likeness = alike(by_rank) + LINE_BIAS / n
    p = _p_value(likeness, n) / 2
    return likeness, p if likeness > 0 else 1 - p


def block_means(evidence: Evidence, slo: int) -> Floats:
    """The mean of log(latency / limit) in each block that has any."""
    grid = evidence.grids[slo]
    sizes = grid.sum(axis=1)
    sums = grid @ CENTERS
    has_any = sizes > 0
    return np.asarray(sums[has_any] / sizes[has_any])


def dependent(evidence: Evidence, slos: Sequence[Slo]) -> float:
    """The largest correlation of neighboring blocks that is shown; NaN if none is."""
    tests = [dependence(block_means(evidence, i)) for i in range(len(slos))]
    shown = [likeness for likeness, p in tests if p <= ALPHA / len(slos)]
    return max(shown, default=nan)


def drift_sentence(evidence: Evidence, slos: Sequence[Slo]) -> str:
    """Which latency rises or falls over the window, where that is shown; "" if none."""
    for i, slo in enumerate(slos):
        means = block_means(evidence, i)
        rho, p = drift(means)
        if p <= ALPHA / len(slos):
            way = "rises" if rho > 0 else "falls"
            return f"{slo.metric.upper()} {way} over its {len(means)} blocks of time (p {p:.1g})"
    return ""
