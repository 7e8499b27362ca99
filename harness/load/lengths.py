"""How long prompts and answers are: a shape around a mean, drawn with the caller's randomness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

# A draw beyond these multiples of the mean is cut. At cv 0.5 about one draw in 10,000 is, which
# moves the mean by less than 0.1%, and no single request can overflow a model's context by luck.
LEAST: Final = 1 / 8
MOST: Final = 4.0


def _fixed(mean: float, cv: float, rng: Random) -> float:  # noqa: ARG001 - one signature for all
    return mean


def _uniform(mean: float, cv: float, rng: Random) -> float:
    half = cv * math.sqrt(3)  # a uniform's deviation is its half width over the root of three
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
    def varies(self) -> bool:
        """Whether `draw` looks at its generator: making one takes as long as all else of a plan."""
        return self.shape != "fixed"

    def draw(self, rng: Random) -> int:
        """One length in tokens, at least 1, from an eighth to four times the mean."""
        if not self.varies:
            return self.mean
        value = SHAPES[self.shape](self.mean, self.cv, rng)
        return max(1, round(min(max(value, self.mean * LEAST), self.mean * MOST)))
