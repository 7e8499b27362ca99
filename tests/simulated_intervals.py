"""How often the interval of a quantile covers it, of series whose neighbors are alike."""

from statistics import NormalDist

import numpy as np

from harness.metrics.latency_figures import SampleFigures
from harness.metrics.metrics import Observations

INF = float("inf")
RUNS = 200
# memory, values, how many share each, blocks
SERIES = [
    (0.0, 600, 1, 24),  # independent
    (0.0, 200, 1, 5),
    (0.0, 400, 32, 20),  # gaps of 400 engine steps, each shared by a batch of 32
    (0.0, 400, 32, 4),
    (0.9, 2400, 1, 24),  # like the tenth before by a third
    (0.9, 2400, 8, 12),
    (0.98, 4000, 4, 8),  # like the fiftieth before: ten times in a block
]


def interval(values, blocks, q):
    """As figures have it."""
    one = np.asarray(values, float)
    return SampleFigures(
        Observations(one, one, one, np.arange(len(one)), np.arange(len(one))), blocks
    ).interval(q)


def series(memory, n, rng):
    """Normal values, each like the one before by `memory`."""
    found = rng.standard_normal(n)
    for i in range(1, n):
        found[i] = memory * found[i - 1] + (1 - memory**2) ** 0.5 * found[i]
    return found


def covered(memory, n, batch, blocks):
    """By quantile: how many of 200 intervals cover, and their median width."""
    rng, qs = np.random.default_rng(19), (0.5, 0.95, 0.99)
    hits, widths = dict.fromkeys(qs, 0), {q: [] for q in qs}
    block = np.repeat(np.arange(n) * blocks // n, batch)
    for _ in range(RUNS):
        values = np.repeat(series(memory, n, rng), batch)
        for q in qs:
            found, truth = interval(values, block, q), NormalDist().inv_cdf(q)
            hi = INF if found.hi is None else found.hi
            hits[q] += bool(found.lo <= truth <= hi)
            widths[q].append(hi - found.lo)
    return [hits, {q: float(np.median(each)) for q, each in widths.items()}]


def cases():
    """Each of SERIES."""
    return SERIES
