"""The effect of dependence, estimated over all levels of a search together.

How many observations are worth an independent one has two parts. How unevenly hits fall into
moments of a twentieth of a lifetime, each level shows by itself, as it has hundreds of moments. For
how long moments stay alike takes many lifetimes to see: that correlation, as a function of the lag
in lifetimes, is summed over all levels. Blocks of a lifetime, of one level, do neither.

Where the blocks of a level show more dependence than that, beyond chance, they are believed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.statistics import MAX_BLOCKS, design_effect, sum_groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

MOMENTS: Final = 20  # in a lifetime
# The sum of correlations ends where its lags are as many times what it has come to.
SPAN_OF_SUM: Final = 5.0
MIN_BLOCKS: Final = 4
MOST_TAKEN: Final = 0.9
# Of the chi-square: own blocks count where they show more with this confidence.
Z_OF_BLOCKS: Final = 1.2816  # 90%, one-sided


@dataclass(frozen=True, slots=True)
class Moments:
    """Observations of one level, and those over the limit, in each moment."""

    sizes: Floats
    hits: Floats

    @property
    def rest(self) -> Floats:
        share = self.hits.sum() / max(self.sizes.sum(), 1)
        return np.asarray(self.hits - share * self.sizes)

    @property
    def binomial(self) -> float:
        """The variance that as many independent observations have in a moment."""
        n = self.sizes.sum()
        share = self.hits.sum() / max(n, 1)
        return float(max(n * share * (1 - share), 1e-9) / len(self.sizes))


@dataclass(frozen=True, slots=True)
class Effect:
    effect: float
    freedom: float  # degrees of freedom with which it is known


def moments(sent: Floats, over: Floats, lifetimes: float) -> Moments:
    """`sent`: in lifetimes from the level's start."""
    count = int(lifetimes * MOMENTS)
    place = np.minimum((sent / lifetimes * count).astype(np.int64), count - 1)
    sizes = np.bincount(place, minlength=count).astype(np.float64)
    hits = np.bincount(place, over, count).astype(np.float64)
    return Moments(sizes, hits)


def effects_together(levels: Sequence[Moments]) -> list[Effect]:
    """The effect at each level."""
    factor, freedom = _summed_correlation(levels)
    found = []
    for level in levels:
        squares = level.rest**2
        in_moment = float(squares.mean()) / level.binomial
        # relative, of the mean of these squares
        own_variance = float(squares.var()) / len(squares) / max(squares.mean(), 1e-9) ** 2
        known_with = 2 / (own_variance + 2 / freedom)
        effect = max(in_moment * factor, _shown_by_blocks(level), 1.0)
        found.append(Effect(effect, max(known_with, 1.0)))
    return found


def _summed_correlation(levels: Sequence[Moments]) -> tuple[float, float]:
    """(sum of the correlations at all lags, on both sides; degrees of freedom of it)."""
    # Each level counts by its length: its moments have a variance of 1 each.
    rests = [level.rest / max(float(level.rest.std()), 1e-9) for level in levels]
    lengths = np.array([len(rest) for rest in rests])
    total = lengths.sum()
    summed = float(total)
    lag = 0
    while lag + 1 < SPAN_OF_SUM * summed / total and lag < lengths.max() // 2:
        lag += 1
        summed += 2 * sum(float(rest[lag:] @ rest[:-lag]) for rest in rests if len(rest) > lag)
    # A level's mean is its own, so the sum is too small by its share of the lags.
    taken = np.minimum((2 * lag + 1) / lengths, MOST_TAKEN)
    kept = 1 - float(lengths @ taken) / total
    factor = max(summed / total, 0.2) / kept
    return factor, float(total / (2 * lag + 1))


def _shown_by_blocks(level: Moments) -> float:
    """The effect of which blocks of a lifetime are sure."""
    blocks = int(np.clip(len(level.sizes) / MOMENTS, MIN_BLOCKS, MAX_BLOCKS))
    own = design_effect(sum_groups(level.sizes, blocks), sum_groups(level.hits, blocks))
    freedom = blocks - 1
    # Wilson and Hilferty: the chi-square over its degrees of freedom.
    spread = 2 / (9 * freedom)
    sure = (1 - spread + Z_OF_BLOCKS * spread**0.5) ** 3
    return float(own / sure)
