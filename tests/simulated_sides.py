"""Levels whose share over the limit is known, judged again and again as the controller does.

400 levels of each kind. The truth is the expected share over the limit in the window up to the
decision, which is the one allowed unless latencies move.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
from measure_tables import window

from harness.core.states import Decision
from harness.metrics.evidence import BINS_PER_SIDE, MAX_BLOCKS, RATIO_BINS, Evidence
from harness.metrics.statistics import sum_groups
from harness.search import judge
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RUNS, ALLOWED, ALPHA = 400, 0.05, 0.05 / 8
USERS, LONGEST = 40, 48  # requests in a lifetime; lifetimes
LOOKS = (*range(4, 13), 14, 16, 18, 20, 22, 24, 27, 30, 33, 36, 40, 44, 48)
SLOW = 0.2  # of the variance, shared for about three lifetimes
NORMAL = NormalDist()


def levels(rng: np.random.Generator, kind: str) -> tuple[Floats, Floats]:
    """(log(latency / limit) of each request, expected share over the limit in each lifetime)."""
    own, mean = rng.normal(size=(RUNS, LONGEST, USERS)), np.zeros((RUNS, LONGEST))
    spread, limit = 1.0, NORMAL.inv_cdf(1 - ALLOWED)
    if kind == "clustered":  # five requests sent together have the same latency
        own = np.repeat(own[:, :, : USERS // 5], 5, axis=2)
    elif kind == "bursty":
        slow = rng.normal(size=(RUNS, LONGEST))
        for i in range(1, LONGEST):
            slow[:, i] = 0.7 * slow[:, i - 1] + (1 - 0.7**2) ** 0.5 * slow[:, i]
        mean, spread = SLOW**0.5 * slow, (1 - SLOW) ** 0.5
    elif kind in ("rising", "falling"):  # from 2.5% over to 9%, and back: 5% over the whole window
        mean = mean + np.linspace(-0.32, 0.30, LONGEST) * (1 if kind == "rising" else -1)
    z = spread * own + mean[:, :, None] - limit
    share = 1 - np.vectorize(NORMAL.cdf)((limit - mean) / spread)
    return z, share


def level(z: Floats) -> Evidence:
    """The evidence of so many lifetimes, in at most 24 blocks of time."""
    blocks = min(len(z), MAX_BLOCKS)
    cells = np.clip(np.ceil(20 * z), -BINS_PER_SIDE, BINS_PER_SIDE + 1).astype(int) + BINS_PER_SIDE
    grid = np.zeros((len(z), RATIO_BINS))
    np.add.at(grid, (np.repeat(np.arange(len(z)), z.shape[1]), cells.ravel()), 1)
    grid = sum_groups(grid.T, blocks).T
    none, seconds = np.zeros(blocks), float(len(z))
    hold = window(USERS, 0, seconds)
    return Evidence(hold, SECOND, seconds, (grid,), grid.sum(axis=1), none, none, plain=True)


def first_decision(z: Floats) -> tuple[Decision, int]:
    """What is said of a level at the first look that decides, and when."""
    for n in LOOKS:
        said = judge.judge_sides(level(z[:n]), 0, ALLOWED, ALPHA)
        if said != Decision.inconclusive:
            return said, n
    return Decision.inconclusive, LONGEST


KINDS = ("independent", "clustered", "bursty", "rising", "falling")
PARTS = 10  # of the levels of a kind


def decisions(kind: str, part: int) -> list[list[str | int]]:
    """What is said of each level of a part first, and after how many lifetimes."""
    z, _ = levels(np.random.default_rng(17), kind)
    return [list(first_decision(run)) for run in np.split(z, PARTS)[part]]


def cases() -> Iterator[tuple[str, int]]:
    """Each part of each kind."""
    return ((kind, part) for kind in KINDS for part in range(PARTS))
