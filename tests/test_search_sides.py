"""The two tests of a level where users never pause, and the tests of a window's steadiness.

400 simulated levels of each kind, judged as `make statistics` has stored it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulated_sides import ALLOWED, ALPHA, KINDS, RUNS, USERS, levels
from stored_statistics import stored

from harness.core.states import Decision
from harness.metrics.evidence import MAX_BLOCKS
from harness.search import judge
from harness.search.trend import ALPHA as TREND_ALPHA
from harness.search.trend import dependence, drift

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("kind", KINDS)
def test_both_error_rates(kind: str, figure: Callable[[str], None]) -> None:
    """At most 5% are shown to be on the side on which the window's mean share is not."""
    _, share = levels(np.random.default_rng(17), kind)
    told = []
    for (which, _), answers in stored("sides").items():
        if which == kind:
            told.extend(answers)
    wrong = dict.fromkeys((Decision.failed, Decision.passed), 0)
    for (said, n), expected in zip(told, share, strict=True):
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
    seen = []
    for run in hits:
        for n in range(1, blocks + 1):
            bets = judge.log_bets(sizes[:n], run[:n], ALLOWED)
            seen.append(bets >= least)
    share = np.reshape(seen, (RUNS, blocks)).any(axis=1).mean()
    figure(
        f"12 times the share allowed, {waves} waves a block: shown in {blocks} blocks in "
        f"{share:.1%}"
    )
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
    shown = []
    for slope in (0, 3, 6):
        runs = z + slope * line
        shown.append(np.mean([drift(run)[1] <= TREND_ALPHA for run in runs]))
    near = np.mean([dependence(run)[1] <= TREND_ALPHA for run in z])
    figure(
        f"trend over {blocks} blocks, neighbors correlated by {alike}: false alarms "
        f"{shown[0]:.1%}; a drift by 3 deviations seen in {shown[1]:.0%}, by 6 in "
        f"{shown[2]:.0%}; dependence in {near:.0%}"
    )
    assert shown[0] <= 0.05
    if blocks == MAX_BLOCKS and not alike:
        assert shown[1] >= 0.5
        assert shown[2] >= 0.9
        assert near <= 0.05
