"""Which level to hold next: a pure function of the plan and of what the steps so far showed.

    up       double the users until a level leans to bad
    bisect   halve the bracket around the fitted crossing until it is 5 % or one user wide
    repeat   measure both ends of the bracket again, until both are decided or the budget is spent

Nothing is remembered between calls: the bracket is where the isotonic fit of *all* evidence crosses
the limit. A wrong turn is therefore undone as soon as the repeats contradict it, and the search
replays from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.fit import isotonic, levels_of
from harness.measure.judge import Judgement, judge
from harness.measure.states import Decision, Purpose, Status
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Evidence
    from harness.measure.fit import Level
    from harness.measure.slo import Slo

TOO_SHORT: Final = 0.03  # of the budget: what is left below this holds no step worth its warm-up
LOWER: Final = (0.93, 0.86)  # of an end that stays inconclusive: levels to show that they pass
CLEARLY_BELOW: Final = -0.7  # log-odds: about half the share allowed, so that holding on decides
LEVELS_SHARED: Final = 8  # alpha is split over as many levels as usually need a decision


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What is asked; times in ns."""

    slos: tuple[Slo, ...]
    min_users: int = 1
    max_users: int = 512
    budget_ns: int = 600 * SECOND
    resolution: float = 0.05  # width of the final bracket over its lower end, at least one user
    max_errors: float = 0.01
    alpha: float = 0.05
    seed: int = 1

    @property
    def level_alpha(self) -> float:
        """This run's error rate, split over its levels."""
        return self.alpha / LEVELS_SHARED

    def width(self, users: int) -> int:
        """Widest final bracket that starts at `users`."""
        return max(1, int(users * self.resolution))

    def judge(self, evidence: Evidence) -> Judgement:
        """The sequential test with this plan's limits."""
        return judge(evidence, self.slos, self.level_alpha, self.max_errors)


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold `users`, measuring for about `cap_ns`.

    `until`: lean (a quick look will do), decided, steady (a throughput is known), time (the cap and
    nothing else), requests (`cap_ns` is their number).
    """

    users: int
    purpose: Purpose
    until: str  # lean, decided
    cap_ns: int


@dataclass(frozen=True, slots=True)
class Done:
    """The search is over."""

    status: Status
    bracket: tuple[int, int] | None  # last good and first bad level


@dataclass(frozen=True, slots=True)
class Bracket:
    """The levels on both sides of the fitted crossing; None where there is none yet."""

    low: Level | None
    high: Level | None


def bracket_of(levels: Sequence[Level]) -> Bracket:
    """Levels on both sides of the isotonic fit's crossing."""
    if not levels:
        return Bracket(None, None)
    fitted = isotonic(np.array([x.excess for x in levels]), np.array([x.weight for x in levels]))
    good = int((fitted <= 0).sum())  # the fit does not decrease: the good ones come first
    return Bracket(
        levels[good - 1] if good else None,
        levels[good] if good < len(levels) else None,
    )


def next_action(plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int) -> Hold | Done:
    """The next level to hold, or the end. Deterministic in its arguments."""
    levels = levels_of(evidences, plan.slos, plan.max_errors)
    bracket = bracket_of(levels)
    left = plan.budget_ns - spent_ns
    users, purpose = _unexplored(plan, bracket, levels)
    if users is None:
        return _confirm(plan, bracket, levels, left)
    if left <= plan.budget_ns * TOO_SHORT:
        return _settle(plan, bracket) if levels else ended(evidences)
    if purpose == Purpose.up:
        return Hold(users, purpose, "lean", int(min(left, plan.budget_ns * 0.04)))
    return Hold(users, purpose, "decided", int(min(left, plan.budget_ns * 0.05)))


def ended(evidences: Sequence[Evidence]) -> Done:
    """The end of a search that has no level: nothing observed, or every step was invalid."""
    return Done(Status.inconclusive if evidences else Status.invalid, None)


def _unexplored(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[Level]
) -> tuple[int | None, Purpose]:
    """The level that the bracket lacks, and why; None when it is as narrow as wanted.

    The climb goes on until a level is *decided* bad: a top level that only leans to bad would leave
    the interval without an upper end, and one well past the knee is decided within seconds.
    """
    low, high = bracket.low, bracket.high
    if not levels:
        return plan.min_users, Purpose.up
    top = levels[-1]
    if top.users < plan.max_users and plan.judge(top.evidence).decision != Decision.failed:
        return min(top.users * 2, plan.max_users), Purpose.up
    if high is None:
        return None, Purpose.up
    if low is None and high is not None:
        less = high.users > plan.min_users
        return (max(high.users // 2, plan.min_users) if less else None), Purpose.bisect
    assert low is not None  # noqa: S101 - the three cases above are all others
    assert high is not None  # noqa: S101 - as above
    wide = high.users - low.users > plan.width(low.users)
    return ((low.users + high.users) // 2 if wide else None), Purpose.bisect


def _ends(bracket: Bracket) -> list[Level]:
    return [end for end in (bracket.low, bracket.high) if end is not None]


def _confirm(plan: SearchPlan, bracket: Bracket, levels: Sequence[Level], left: int) -> Hold | Done:
    """Repeat the end that knows least, until each was held twice and is decided.

    Next to the knee a level can stay inconclusive for as long as it is held. What is promised must
    have been shown, so a level a little further down is held too.
    """
    open_ends = [
        end
        for end in _ends(bracket)
        if end.steps < 2 or plan.judge(end.evidence).decision == Decision.inconclusive  # noqa: PLR2004 - twice
    ]
    if not open_ends or left <= plan.budget_ns * TOO_SHORT:
        return _settle(plan, bracket)
    least = min(open_ends, key=lambda end: (end.steps, end.weight))
    users = least.users
    if bracket.low is not None and least.steps >= 2:  # noqa: PLR2004 - as above
        users = _shown_below(plan, bracket.low.users, levels) or users
    return Hold(users, Purpose.repeat, "decided", int(min(left, plan.budget_ns * 0.06)))


def _shown_below(plan: SearchPlan, low: int, levels: Sequence[Level]) -> int | None:
    """The level to hold so that one near the lower end passes; None: one does, or none will."""
    near = {level.users: level for level in levels if LOWER[-1] * low - 1 < level.users <= low}
    if any(plan.judge(x.evidence).decision == Decision.passed for x in near.values()):
        return None
    for share in LOWER:
        users = max(int(low * share), plan.min_users)
        level = near.get(users)
        if users < low and (level is None or level.steps < 2 or level.excess < CLEARLY_BELOW):  # noqa: PLR2004 - as above
            return users
    return None


def _settle(plan: SearchPlan, bracket: Bracket) -> Done:
    """The status that the bracket's ends support."""
    low, high = bracket.low, bracket.high
    users = (low.users if low else 0, high.users if high else plan.max_users)
    if low is None and high is not None:
        decided = plan.judge(high.evidence).decision == Decision.failed
        return Done(Status.slo_failed_at_min if decided else Status.inconclusive, users)
    if high is None and low is not None:
        top = low.users >= plan.max_users  # else the budget ended on the way up
        decided = top and plan.judge(low.evidence).decision == Decision.passed
        return Done(Status.not_reached if decided else Status.inconclusive, users)
    return Done(Status.found, users)
