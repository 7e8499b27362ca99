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
            by_users.setdefault(evidence.window.users, []).append(evidence)
    pooled = ((users, pool_evidence(several)) for users, several in sorted(by_users.items()))
    return [LevelThroughput(u, float(e.tokens.sum() / e.seconds), e) for u, e in pooled]


def next_power_action(
    plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int
) -> Hold | Done:
    """As `next_level.next_action`, for the peak of the power."""
    levels = throughputs(evidences)
    left = plan.budget_ns - spent_ns
    cap = int(min(left, plan.budget_ns * 0.05))
    if not levels:  # every level so far was invalid, or there is none yet
        first = Hold(plan.min_users, Purpose.up, StopRule.steady, cap)
        return end_without_level(evidences) if left <= 0 else first
    best = max(levels, key=lambda level: level.power)
    top = levels[-1]
    if left <= 0:
        return Done(Status.found if top.users > best.users else Status.inconclusive, None)
    if top.power > PAST_PEAK * best.power and top.users < plan.max_users:
        return Hold(min(top.users * 2, plan.max_users), Purpose.up, StopRule.steady, cap)
    at = levels.index(best)
    below = levels[at - 1].users if at else best.users
    above = levels[at + 1].users if at + 1 < len(levels) else best.users
    sides = [(best.users - below, (below + best.users) // 2)]
    sides.append((above - best.users, (best.users + above) // 2))
    gap, middle = max(sides)
    if gap > plan.width(best.users):
        return Hold(middle, Purpose.bisect, StopRule.steady, cap)
    if best is top:
        return Done(Status.not_reached, (below, best.users))
    return Done(Status.found, (below, above))


def _powers(level: LevelThroughput, seed: int) -> Floats:
    """Power of each bootstrap replicate of one level."""
    e = level.evidence
    tokens = resample_weights(e.blocks, seed) @ e.tokens
    return np.asarray((tokens / e.seconds) ** 2 / level.users)


def power_knee(evidences: Sequence[Evidence], seed: int = 0) -> PowerKnee | None:
    """None without a level.

    Levels are compared as measured, so the interval reaches at least to the neighboring levels.
    """
    levels = throughputs(evidences)
    if not levels:
        return None
    users = np.array([level.users for level in levels])
    at = int(np.argmax([level.power for level in levels]))
    draws = np.array([_powers(x, seed + x.users) for x in levels])
    peaks = users[np.argmax(draws, axis=0)]
    lo, hi = np.quantile(peaks, percentile_levels(12), method="nearest")
    near = users[max(at - 1, 0)], users[min(at + 1, len(users) - 1)]
    bounds = int(min(lo, near[0])), int(max(hi, near[1]))
    return PowerKnee(int(users[at]), bounds, round(levels[at].power, 3))


def plateau_knee(evidences: Sequence[Evidence]) -> PlateauKnee | None:
    """None without a level. Throughput is fitted as non-decreasing in users."""
    levels = throughputs(evidences)
    if not levels:
        return None
    fitted = isotonic(
        np.array([level.tokens_per_s for level in levels]),
        np.array([level.evidence.seconds for level in levels]),
    )
    at = int(np.argmax(fitted >= PLATEAU * fitted[-1]))
    before = levels[at - 1].users + 1 if at else levels[at].users
    level = levels[at]
    return PlateauKnee(level.users, (before, level.users), round(level.tokens_per_s, 3))
