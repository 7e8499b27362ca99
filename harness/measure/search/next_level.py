"""Which level to hold next: a pure function of the plan and of the evidence so far.

    up       double the users until a level fails
    bisect   halve the bracket around the fitted crossing until it is 5% or one user wide
    repeat   measure both ends of the bracket again, until both are decided or the budget is spent

There is no state between calls: the bracket is where the isotonic fit of *all* evidence crosses the
limit. So a wrong turn is undone as soon as repeats contradict it, and the search can be replayed
from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.search.evidence import worst_ratio
from harness.measure.search.fit import fit_levels, isotonic
from harness.measure.search.judge import Judgement, judge
from harness.measure.search.narrow import WIDTHS, PASS_LIFETIMES, leaning, Costs, believe, cheapest_pair
from harness.measure.states import Decision, Purpose, Status, StopRule
from harness.measure.typed_json import whole_or
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.search.evidence import Evidence
    from harness.measure.search.fit import LevelFit
    from harness.measure.slo import Slo

# Share of the budget: less than this is not worth another warm-up.
MIN_BUDGET_SHARE: Final = 0.03
# If the lower end stays inconclusive: levels to hold, as shares of it, to show that one passes.
LOWER_LEVEL_SHARES: Final = (0.93, 0.86)
# Log-odds: about half the allowed share, so that holding such a level again decides it.
CLEAR_MARGIN: Final = -0.7
CLIMB_CHANCE: Final = 0.2
LEVELS_SHARED: Final = 8  # alpha is split over the number of levels that usually need a decision


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search is asked for; times in ns."""

    slos: tuple[Slo, ...]
    min_users: int = 1
    max_users: int = 512
    budget_ns: int = 600 * SECOND
    precision: float = 0.05  # width of the final bracket over its lower end, at least one user
    max_errors: float = 0.01
    alpha: float = 0.05
    seed: int = 1
    rate_step_per_s: float = 0.0  # open loop: what a level's number counts in place of users

    @property
    def level_alpha(self) -> float:
        """The run's error rate, split over its levels."""
        return self.alpha / LEVELS_SHARED

    def width(self, users: int) -> int:
        """Largest width of a final bracket that starts at `users`."""
        return max(1, int(users * self.precision))

    def rate_of(self, users: int) -> float:
        """The requests per second that a level stands for; 0: it is a number of users."""
        return round(users * self.rate_step_per_s, 6)

    def load_of(self, users: int) -> int | float:
        """A level in its unit: users, or requests per second."""
        return whole_or(self.rate_of(users)) or users

    def judge(self, evidence: Evidence) -> Judgement:
        """The sequential test with this plan's limits."""
        return judge(evidence, self.slos, self.level_alpha, self.max_errors)


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold `users`. Measuring ends as `stop` says, or after about `max_ns`."""

    users: int
    purpose: Purpose
    stop: StopRule
    max_ns: int = 0  # not where `stop` is requests
    max_requests: int = 0  # only where `stop` is requests


@dataclass(frozen=True, slots=True)
class Done:
    """The search is over."""

    status: Status
    bracket: tuple[int, int] | None  # last level that passes, first that fails


@dataclass(frozen=True, slots=True)
class Bracket:
    """The levels on both sides of the fitted crossing; None: no such level yet."""

    low: LevelFit | None
    high: LevelFit | None


def bracket_of(levels: Sequence[LevelFit]) -> Bracket:
    """Levels on both sides of the isotonic fit's crossing."""
    if not levels:
        return Bracket(None, None)
    fitted = isotonic(np.array([x.margin for x in levels]), np.array([x.weight for x in levels]))
    n_passing = int((fitted <= 0).sum())  # the fit never decreases, so these come first
    return Bracket(
        levels[n_passing - 1] if n_passing else None,
        levels[n_passing] if n_passing < len(levels) else None,
    )


def next_action(plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int) -> Hold | Done:
    """The next level to hold, or the end. Deterministic in its arguments."""
    levels = fit_levels(evidences, plan.slos, plan.max_errors)
    bracket = bracket_of(levels)
    left = plan.budget_ns - spent_ns
    if levels and all(e.plain for e in evidences):
        return _narrow(plan, bracket, levels, left)
    users, purpose = _unexplored(plan, bracket, levels)
    if users is None:
        return _confirm(plan, bracket, levels, left)
    if left <= plan.budget_ns * MIN_BUDGET_SHARE:
        return _settle(plan, bracket) if levels else end_without_level(evidences)
    if purpose == Purpose.up:
        return Hold(users, purpose, StopRule.lean, int(min(left, plan.budget_ns * 0.04)))
    return Hold(users, purpose, StopRule.decided, int(min(left, plan.budget_ns * 0.05)))


def end_without_level(evidences: Sequence[Evidence]) -> Done:
    """The end of a search without a level: nothing was observed, or every level was invalid."""
    return Done(Status.inconclusive if evidences else Status.invalid, None)


def _unexplored(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit]
) -> tuple[int | None, Purpose]:
    """The level that the bracket lacks, and its purpose; None if the bracket is narrow enough.

    The climb continues until a level has *failed* the test: a top level that only leans to failing
    would leave the interval without an upper end, and one well past the knee fails within seconds.
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


def _narrow(plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit], left: int) -> Hold | Done:
    """As `next_action`, for users that never pause."""
    decided = [(level.users, plan.judge(level.evidence).decision) for level in levels]
    passed = max((users for users, what in decided if what == Decision.passed), default=0)
    failed = min((u for u, what in decided if what == Decision.failed and u > passed), default=inf)
    top, low = levels[-1], levels[0].users
    if failed <= plan.min_users or passed >= plan.max_users or failed - 1 - passed <= plan.width(passed):
        return _settle(plan, bracket)
    if left <= plan.budget_ns * MIN_BUDGET_SHARE:
        return _settle(plan, bracket)
    allowed = max(slo.allowed for slo in plan.slos)
    belief = believe(levels, allowed)
    if leaning(top.evidence, plan.slos, plan.max_errors) != Decision.failed and belief.above > 0.02 and top.users < plan.max_users:
        z = float(worst_ratio(top.evidence, plan.slos)[0])
        users = min(top.users * (4 if top.users < 16 and z < -log(4) else 2), plan.max_users)
        return Hold(users, Purpose.up, StopRule.lean, int(min(left, plan.budget_ns * 0.04)))
    cap_ns = max(plan.budget_ns * 0.05, PASS_LIFETIMES * top.evidence.lifetime_ns)
    if bracket.low is None and low > plan.min_users:
        return Hold(max(low // 2, plan.min_users), Purpose.bisect, StopRule.decided, int(min(left, cap_ns)))
    costs = Costs(levels, belief, allowed, plan.level_alpha)
    pair = None
    proven = failed - 1 - passed <= max(1, 0.2 * belief.knee)
    for times in WIDTHS:
        width = max(1, int(belief.knee * plan.precision * times))
        if proven and width >= failed - 1 - passed:
            break
        if times > 1 and belief.spread > plan.precision / 2 and left > plan.budget_ns * 0.6:
            break
        pair = cheapest_pair(costs, width, passed, failed, plan.min_users, plan.max_users)
        if pair and pair.low_ns + pair.high_ns <= left * (0.9 if proven else 0.5):
            break
    if pair is None:
        users = int(np.clip(round(belief.knee), plan.min_users, plan.max_users))
        return Hold(users, Purpose.bisect, StopRule.decided, int(min(left, cap_ns)))
    ends = [(pair.low_ns, pair.low), (pair.high_ns, pair.high)]
    need_ns, users = min(end for end in ends if end[0] > 0)
    cap_ns = max(plan.budget_ns * 0.06, min(1.3 * need_ns, plan.budget_ns * 0.12), 12 * top.evidence.lifetime_ns)
    return Hold(users, Purpose.repeat, StopRule.decided, int(min(left, cap_ns)))


def _ends(bracket: Bracket) -> list[LevelFit]:
    return [end for end in (bracket.low, bracket.high) if end is not None]


def _confirm(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit], left: int
) -> Hold | Done:
    """Repeat the end with the least evidence, until each was held twice and is decided.

    Next to the knee a level can stay inconclusive however long it is held. What is promised must
    have been shown, so a level slightly below is held too.
    """
    open_ends = [
        end
        for end in _ends(bracket)
        if end.steps < 2 or plan.judge(end.evidence).decision == Decision.inconclusive  # noqa: PLR2004 - twice
    ]
    if not open_ends or left <= plan.budget_ns * MIN_BUDGET_SHARE:
        return _settle(plan, bracket)
    # The end held fewest times first; then the one whose holds carry the least information.
    least_known = min(open_ends, key=lambda end: (end.steps, end.weight))
    users = least_known.users
    if bracket.low is not None and least_known.steps >= 2:  # noqa: PLR2004 - as above
        users = _shown_below(plan, bracket.low.users, levels) or users
    return Hold(users, Purpose.repeat, StopRule.decided, int(min(left, plan.budget_ns * 0.06)))


def _shown_below(plan: SearchPlan, low: int, levels: Sequence[LevelFit]) -> int | None:
    """The level to hold so that one near the lower end passes; None: one has, or none will."""
    lowest = LOWER_LEVEL_SHARES[-1] * low - 1
    near = {level.users: level for level in levels if lowest < level.users <= low}
    if any(plan.judge(x.evidence).decision == Decision.passed for x in near.values()):
        return None
    for share in LOWER_LEVEL_SHARES:
        users = max(int(low * share), plan.min_users)
        level = near.get(users)
        if users < low and (level is None or level.steps < 2 or level.margin < CLEAR_MARGIN):  # noqa: PLR2004 - as above
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
