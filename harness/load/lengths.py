"""Lengths of prompts and answers: a distribution around a mean, drawn from the caller's Random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

# Draws are clamped to these multiples of the mean. At cv 0.5 this affects one in 10,000, which
# moves the mean by less than 0.1%, and no single request can exceed a model's context by chance.
MIN_MEAN_RATIO: Final = 1 / 8
MAX_MEAN_RATIO: Final = 4.0
FROM_DATA: Final = "data"  # a shape: the lengths are those of --data, around this mean


def _fixed(mean: float, cv: float, rng: Random) -> float:  # noqa: ARG001 - one signature for all
    return mean


def _uniform(mean: float, cv: float, rng: Random) -> float:
    half = cv * math.sqrt(3)  # the standard deviation of a uniform is its half width / sqrt(3)
    return mean * rng.uniform(1 - half, 1 + half)


def _lognormal(mean: float, cv: float, rng: Random) -> float:
    variance = math.log1p(cv * cv)
    return mean * rng.lognormvariate(-variance / 2, math.sqrt(variance))


SHAPES: Final[dict[str, Callable[[float, float, Random], float]]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "lognormal": _lognormal,
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts: `shape` of SHAPES, mean in tokens, cv = deviation / mean."""

    shape: str
    mean: int
    cv: float = 0.0

    @property
    def is_random(self) -> bool:
        """Whether `draw` uses its generator: seeding one takes as long as the rest of a plan."""
        return self.shape not in ("fixed", FROM_DATA)

    def draw(self, rng: Random) -> int:
        """Draw a length in tokens, at least 1, from an eighth to four times the mean."""
        if not self.is_random:
            return self.mean
        value = SHAPES[self.shape](self.mean, self.cv, rng)
        return max(
            1, round(min(max(value, self.mean * MIN_MEAN_RATIO), self.mean * MAX_MEAN_RATIO))
        )
