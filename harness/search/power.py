"""Knees that need no SLO: the power knee and the throughput plateau.

Kleinrock's power X / R peaks where adding users starts to cost more latency than it brings
throughput. With users that never pause N = X R, so it is X^2 / N, which needs no latency at all.
It has one peak; the search climbs by doubling until well past it and then narrows on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Purpose, Status, StopRule
from harness.metrics.evidence import pool_evidence
from harness.metrics.level_figures import PlateauKnee, PowerKnee
from harness.metrics.statistics import percentile_levels, resample_weights
from harness.search.fit import isotonic
from harness.search.next_level import Done, Hold, end_without_level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.metrics.evidence import Evidence
    from harness.search.next_level import SearchPlan

    Floats = NDArray[np.float64]

PAST_PEAK: Final = 0.7  # the climb ends when power has fallen to this share of its best
HOLD_BUDGET_SHARE: Final = 0.05  # of the budget, for a hold
# Blocks of time that say which of two levels has the peak: each is held for six lifetimes at least,
# with a block for each.
PEAK_BLOCKS: Final = 12
PLATEAU: Final = 0.9  # of the highest throughput seen


@dataclass(frozen=True, slots=True)
class LevelThroughput:
    """Tokens per second at one level, all its holds pooled."""

    users: int
    tokens_per_s: float
    evidence: Evidence

    @property
    def power(self) -> float:
        """X^2 / N in tokens^2 / s^2 / user: proportional to X / R."""
        return self.tokens_per_s**2 / self.users


def throughputs(evidences: Sequence[Evidence]) -> list[LevelThroughput]:
    """One entry per level, in ascending order of users."""
    by_users: dict[int, list[Evidence]] = {}
    for evidence in evidences:
        if evidence.seconds > 0:
            by_users.setdefault(evidence.window.load.count, []).append(evidence)
    levels = []
    for users, holds in sorted(by_users.items()):
        pooled = pool_evidence(holds)
        tokens_per_s = float(pooled.tokens.sum() / pooled.seconds)
        levels.append(LevelThroughput(users, tokens_per_s, pooled))
    return levels


def next_power_action(
    plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int
) -> Hold | Done:
    """As `next_level.next_action`, for the peak of the power."""
    levels = throughputs(evidences)
    left_ns = plan.budget_ns - spent_ns
    max_ns = int(min(left_ns, plan.budget_ns * HOLD_BUDGET_SHARE))
    if not levels:  # every level so far was invalid, or there is none yet
        if left_ns <= 0:
            return end_without_level(evidences)
        return Hold(plan.unit.of_count(plan.min_users), Purpose.up, StopRule.steady, max_ns)
    best = max(levels, key=lambda level: level.power)
    top = levels[-1]
    if left_ns <= 0:
        is_past_peak = top.users > best.users
        return Done(Status.found if is_past_peak else Status.inconclusive, None)
    if top.power > PAST_PEAK * best.power and top.users < plan.max_users:
        users = min(top.users * 2, plan.max_users)
        return Hold(plan.unit.of_count(users), Purpose.up, StopRule.steady, max_ns)
    return _narrow(plan, levels, best, max_ns)


def _narrow(
    plan: SearchPlan, levels: Sequence[LevelThroughput], best: LevelThroughput, max_ns: int
) -> Hold | Done:
    """Halve the wider of the two gaps beside the best level, until both are narrow."""
    below, above = _neighbors(levels, best)
    gap_below = (best.users - below, (below + best.users) // 2)
    gap_above = (above - best.users, (best.users + above) // 2)
    gap, middle = max(gap_below, gap_above)
    if gap > plan.width(best.users):
        return Hold(plan.unit.of_count(middle), Purpose.bisect, StopRule.steady, max_ns)
    is_highest = best is levels[-1]
    return Done(Status.not_reached if is_highest else Status.found, (below, above))


def _neighbors(levels: Sequence[LevelThroughput], level: LevelThroughput) -> tuple[int, int]:
    """(users of the level below, of the one above); of the level itself where there is none."""
    at = levels.index(level)
    below = levels[max(at - 1, 0)]
    above = levels[min(at + 1, len(levels) - 1)]
    return below.users, above.users


def _powers(level: LevelThroughput, seed: int) -> Floats:
    """Power of each bootstrap replicate of one level."""
    evidence = level.evidence
    # A replicate is taken to last as long as the level: blocks of a hold are equally long.
    tokens = resample_weights(evidence.blocks, seed) @ evidence.tokens
    return np.asarray((tokens / evidence.seconds) ** 2 / level.users)


def power_knee(evidences: Sequence[Evidence], seed: int = 0) -> PowerKnee | None:
    """None without a level.

    Levels are compared as measured, so the interval reaches at least to the neighboring levels.
    """
    levels = throughputs(evidences)
    if not levels:
        return None
    users = np.array([level.users for level in levels])
    best = max(levels, key=lambda level: level.power)
    draws = np.array([_powers(level, seed + level.users) for level in levels])
    peaks = users[np.argmax(draws, axis=0)]
    lo, hi = np.quantile(peaks, percentile_levels(PEAK_BLOCKS), method="nearest")
    below, above = _neighbors(levels, best)
    ci95 = (int(min(lo, below)), int(max(hi, above)))
    return PowerKnee(best.users, ci95, round(best.power, 3))


def plateau_knee(evidences: Sequence[Evidence]) -> PlateauKnee | None:
    """None without a level. Throughput is fitted as non-decreasing in users."""
    levels = throughputs(evidences)
    if not levels:
        return None
    tokens_per_s = np.array([level.tokens_per_s for level in levels])
    seconds = np.array([level.evidence.seconds for level in levels])
    fitted = isotonic(tokens_per_s, seconds)
    at = int(np.argmax(fitted >= PLATEAU * fitted[-1]))
    level = levels[at]
    lowest = levels[at - 1].users + 1 if at else level.users
    return PlateauKnee(level.users, (lowest, level.users), round(level.tokens_per_s, 3))
