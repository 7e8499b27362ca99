"""Lengths of prompts and answers: a distribution around a mean, drawn from the caller's Random."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from harness.errors import ConfigError

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
    # The mean of a log-normal is exp(mu + variance / 2), so this mu makes it 1.
    variance = math.log1p(cv * cv)
    return mean * rng.lognormvariate(-variance / 2, math.sqrt(variance))


MIXED: Final = "mixed"  # the lengths of several rows: only their mean is known
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
    low: int = 0  # no draw is shorter; 0: an eighth of the mean
    high: int = 0  # no draw is longer; 0: four times the mean

    @property
    def is_random(self) -> bool:
        """Whether `draw` uses its generator: seeding one takes as long as the rest of a plan."""
        return self.shape not in ("fixed", FROM_DATA)

    @property
    def limits(self) -> tuple[float, float]:
        """(shortest, longest) draw, in tokens."""
        if not self.is_random:
            return self.mean, self.mean
        low = self.low or self.mean * MIN_MEAN_RATIO
        high = self.high or self.mean * MAX_MEAN_RATIO
        return low, high

    def draw(self, rng: Random) -> int:
        """Draw a length in tokens, at least 1, within `limits`."""
        if not self.is_random:
            return self.mean
        low, high = self.limits
        drawn = SHAPES[self.shape](self.mean, self.cv, rng)
        within = min(max(drawn, low), high)
        return max(1, round(within))

    def sized(
        self,
        option: str,
        mean: int | None,
        cv: float | None = None,
        low: int | None = None,
        high: int | None = None,
    ) -> Lengths:
        """Return them with what is given. Raises ConfigError, in which `option` is `--prompt`.

        A deviation makes them log-normal, the shape of what people send; 0 makes them equal.
        """
        if mean is not None and mean < 1:
            raise ConfigError(f"{option}-tokens is {mean}: expected at least 1 token; try 128.")
        is_given = any(value is not None for value in (mean, cv, low, high))
        if self.shape == MIXED and is_given:
            raise ConfigError(
                f"--workload mixes several, and {option} is given a length: expected the lengths "
                f"of each row; try one workload with {option}-cv 1."
            )
        new = replace(
            self,
            mean=mean or self.mean,
            low=low or self.low,
            high=high or self.high,
        )
        if cv is not None:
            new = replace(new, shape="lognormal" if cv else "fixed", cv=cv)
        if not new.low <= new.mean <= (new.high or new.mean):
            raise ConfigError(
                f"the mean of {option}-tokens is {new.mean}, its range {new.low} to "
                f"{new.high or 'any'}: expected it within; try {option}-tokens "
                f"{max(new.low, new.high)}."
            )
        return new
