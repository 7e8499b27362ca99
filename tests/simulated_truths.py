"""Some of the truths in data/ computed again: a change of the engine that moves them is noticed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import simulated_knee
import simulated_users
import simulated_verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

TRUTHS: Final = {
    "knee": simulated_knee.truth,
    "thinking": partial(simulated_users.truth, "thinking"),
    "talking": partial(simulated_users.truth, "talking"),
    "verdict": simulated_verdict.truth,
}
SEEDS: Final = {
    "knee": (262, 293, 350),
    "verdict": (4000, 4001, 4003),
    "thinking": (1005,),
    "talking": (1036,),
}


def truth(kind: str, seed: int) -> Any:
    """A true knee, or of a verdict the knee and what moves it."""
    return TRUTHS[kind](seed)


def cases() -> Iterator[tuple[str, int]]:
    """The cheapest seeds of each kind."""
    return ((kind, seed) for kind, seeds in SEEDS.items() for seed in seeds)
