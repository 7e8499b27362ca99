"""Whether the gaps of a schedule have the distribution that was asked for. Pure and seeded."""

from itertools import islice
from math import lgamma, sqrt

import numpy as np

from harness.load.arrivals import offsets_ns
from harness.load.plan import seeded_random

SEEDS = range(200)
N = 400
SHAPES = [("poisson", 1.0), ("gamma:1", 1.0), ("gamma:2", 0.25), ("gamma:0.5", 4)]


def planned(arrivals: str, rate_per_s: float, seed: int) -> list[int]:
    """The first offsets of a schedule."""
    return list(islice(offsets_ns(arrivals, rate_per_s, seeded_random(seed, "arrivals", 0)), N))


def gamma_below(shape: float, gaps: np.ndarray) -> np.ndarray:
    """P(gap <= x) of gamma gaps with mean 1: the series of the incomplete gamma function."""
    x = np.maximum(gaps, 1e-12) * shape
    terms = [n * np.log(x) - lgamma(shape + n + 1) for n in range(400)]
    return np.asarray(np.exp(shape * np.log(x) - x) * np.exp(terms).sum(axis=0))


def kolmogorov(values: np.ndarray) -> float:
    """P-value of "these are uniform" (Stephens' form of Kolmogorov's series)."""
    p, n = np.sort(values), len(values)
    distance = max((np.arange(1, n + 1) / n - p).max(), (p - np.arange(n) / n).max())
    x, k = distance * (sqrt(n) + 0.12 + 0.11 / sqrt(n)), np.arange(1, 101)
    return float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)).sum(), 0, 1))


def p_values(arrivals: str, shape: float) -> dict[str, list[float]]:
    """Of each seed's gaps: of this shape, and of one twice as large."""
    gaps = [np.diff(planned(arrivals, 20.0, seed), prepend=0) * 20 / 1e9 for seed in SEEDS]
    return {
        name: [round(kolmogorov(gamma_below(other, each)), 6) for each in gaps]
        for name, other in (("p", shape), ("wrong", 2 * shape))
    }


def cases() -> list[tuple[str, float]]:
    """Each of SHAPES."""
    return SHAPES
