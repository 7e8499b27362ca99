"""Pairs of searches of a model in one formula: nothing changed, and a knee that is 10% lower.

bench/compare_seeds.py does the same with searches on the engine.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import numpy as np
from knee_model import Model

from harness.compare.compare_folders import common_pairs
from harness.metrics.level_figures import Change
from harness.search.comparison import compare

if TYPE_CHECKING:
    from collections.abc import Iterator

PAIRS = 25


def pair(place: int, users: float) -> dict[str, bool]:
    """What is said of the same again (`alarm`), and of the lower knee."""
    a, same = Model(users).searched(3 * place), Model(users).searched(3 * place + 1)
    lower = common_pairs(a, Model(0.9 * users).searched(3 * place + 2))
    again = compare(common_pairs(a, same), 0, 0.01)
    return {
        "alarm": any(one.verdict is Change.worse for one in again),
        "worse": compare(lower, 0, 0.01)[0].verdict is Change.worse,
        "beyond": bool(compare(lower, 0.05, 0.01)[0].beyond),
    }


def cases() -> Iterator[tuple[int, float]]:
    """Knees between 20 and 200 users."""
    knees = np.exp(np.random.default_rng(5).uniform(log(20), log(200), PAIRS))
    # Processors differ in the last digit of an exponential, and a case is its answer's key.
    return enumerate(knees.round(3).tolist())
