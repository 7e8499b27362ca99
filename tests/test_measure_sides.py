"""The two tests of a level where users never pause, and the tests of a window's steadiness.

400 simulated levels of each kind, judged again and again as the controller does. The truth is the
expected share over the limit in the window up to the decision, which is the one allowed unless
latencies move.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import pytest
from measure_tables import window

from harness.measure.search import judge
from harness.measure.search.evidence import BINS_PER_SIDE, MAX_BLOCKS, RATIO_BINS, Evidence
from harness.measure.search.statistics import sum_groups
from harness.measure.search.trend import ALPHA as TREND_ALPHA
from harness.measure.search.trend import dependence, drift
from harness.measure.states import Decision
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.parametrize("kind", ["independent", "clustered", "bursty", "rising", "falling"])
def test_both_error_rates(kind: str, figure: Callable[[str], None]) -> None:
    """At most 5% are shown to be on the side on which the window's mean share is not."""
    z, share = levels(np.random.default_rng(17), kind)
    wrong = dict.fromkeys((Decision.failed, Decision.passed), 0)
    for run, expected in zip(z, share, strict=True):
        said, n = first_decision(run)
        more = float(expected[:n].mean()) - ALLOWED
        wrong[Decision.failed] += said == Decision.failed and more <= 1e-9
        wrong[Decision.passed] += said == Decision.passed and more >= -1e-9
    each = [count / RUNS for count in wrong.values()]
    figure(f"two tests of a share, {kind}: {each[0]:.1%} fail and {each[1]:.1%} pass wrongly")
    assert max(each) <= 0.05


@pytest.mark.parametrize(
    ("waves", "blocks"),
    [(4, 4), (1, 12)],  # independent waves in a block; 1: whole blocks are over or under
)
def test_gross_violations_are_seen_at_once(
    waves: int, blocks: int, figure: Callable[[str], None]
) -> None:
    """At twelve times the share allowed, in 90%."""
    rng = np.random.default_rng(18)
    hits = rng.binomial(waves, 12 * ALLOWED, (RUNS, blocks)) * (USERS / waves)
    least = -np.log(judge.BETS_ALPHA * ALPHA)
    sizes = np.full(blocks, float(USERS))
    seen = [judge.log_bets(sizes[:n], run[:n], ALLOWED) >= least
            for run in hits for n in range(1, blocks + 1)]  # fmt: skip
    share = np.reshape(seen, (RUNS, blocks)).any(axis=1).mean()
    figure(f"12 times the share allowed, {waves} waves a block: shown in {blocks} blocks in "
           f"{share:.1%}")  # fmt: skip
    assert share >= 0.90


@pytest.mark.parametrize(("blocks", "alike"), [(8, 0.0), (12, 0.3), (24, 0.0), (24, 0.6)])
def test_the_trend_of_a_window(blocks: int, alike: float, figure: Callable[[str], None]) -> None:
    """False alarms in at most 5%, where neighbors are alike too; a drift by six deviations is seen.

    Six standard deviations of a block's mean, from the first block to the last.
    """
    rng = np.random.default_rng(19)
    z = rng.normal(size=(RUNS, blocks + 20))
    for i in range(1, blocks + 20):
        z[:, i] = alike * z[:, i - 1] + (1 - alike**2) ** 0.5 * z[:, i]
    z = z[:, 20:]
    line = np.linspace(0, 1, blocks)
    shown = [
        np.mean([drift(run)[1] <= TREND_ALPHA for run in z + slope * line]) for slope in (0, 3, 6)
    ]
    near = np.mean([dependence(run)[1] <= TREND_ALPHA for run in z])
    figure(f"trend over {blocks} blocks, neighbors correlated by {alike}: false alarms "
           f"{shown[0]:.1%}; a drift by 3 deviations seen in {shown[1]:.0%}, by 6 in "
           f"{shown[2]:.0%}; dependence in {near:.0%}")  # fmt: skip
    assert shown[0] <= 0.05
    if blocks == MAX_BLOCKS and not alike:
        assert shown[1] >= 0.5
        assert shown[2] >= 0.9
        assert near <= 0.05
