"""Requests whose dependence is known, to judge what estimates it.

Times are in lifetimes. Every latency is standard normal, so the share over any limit is known; what
differs is how much of it requests share with their neighbors in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]

OVER: Final = 1.2815515655446004  # a tenth is above it
SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Dependence:
    """Bursts of `size` requests at one instant; what is shared, and for how long."""

    size: int = 1
    part: float = 0.0  # of the variance that a burst, or requests near in time, share
    memory: float = 0.0  # lifetimes in which what is shared falls to 1/e; 0: bursts are independent


# What a real server shows, and what would be worse (docs/decisions/0020-waves.md).
KINDS: Final = {
    "independent": Dependence(),
    "bursts of 15": Dependence(15, 0.9),
    "bursts of 15, memory 0.25": Dependence(15, 0.9, 0.25),
    "AR(1), memory 0.25": Dependence(1, 0.9, 0.25),
    "AR(1), memory 1": Dependence(1, 0.9, 1.0),
}


def planted(kind: Dependence, users: int, lifetimes: float, seed: int) -> tuple[Floats, Bools]:
    """(when each request was sent, whether it is over the limit)."""
    draw = np.random.default_rng([seed, users, kind.size])
    bursts = draw.poisson(users * lifetimes / kind.size)
    at = np.sort(draw.random(bursts)) * lifetimes
    shared = draw.standard_normal(bursts)
    if kind.memory:
        kept = np.exp(-np.diff(at, prepend=-np.inf) / kind.memory)
        for i in range(1, bursts):
            shared[i] = kept[i] * shared[i - 1] + (1 - kept[i] ** 2) ** 0.5 * shared[i]
    own = draw.standard_normal(bursts * kind.size)
    took = kind.part**0.5 * np.repeat(shared, kind.size) + (1 - kind.part) ** 0.5 * own
    return np.repeat(at, kind.size), took > OVER
