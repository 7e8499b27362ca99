"""Which level to hold next: a pure function of the plan and of the evidence so far.

    up       double the users until a level fails
    bisect   halve the bracket around the fitted crossing until it is 5% or one user wide
    repeat   measure both ends of the bracket again, until both are decided or the budget is spent

While users never pause, `_decide_soonest` takes the place of the last two: it knows what a level is
expected to cost (narrow.py).

There is no state between calls: the bracket is where the isotonic fit of *all* evidence crosses the
limit. So a wrong turn is undone as soon as repeats contradict it, and the search can be replayed
from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision, Purpose, Status, StopRule
from harness.core.typed_json import whole_or
from harness.metrics.evidence import worst_ratio
from harness.search.fit import fit_levels, isotonic
from harness.search.judge import Judgement, judge, log_one_sided
from harness.search.narrow import Prospect, believe
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.evidence import Evidence
    from harness.metrics.slo import Slo
    from harness.search.fit import LevelFit

# Share of the budget: less than this is not worth another warm-up.
MIN_BUDGET_SHARE: Final = 0.03
# If the lower end stays inconclusive: levels to hold, as shares of it, to show that one passes.
LOWER_LEVEL_SHARES: Final = (0.93, 0.86)
# Log-odds: about half the allowed share, so that holding such a level again decides it.
CLEAR_MARGIN: Final = -0.7
MAX_INTERVAL_SHARE: Final = 0.2  # of the estimate: a wider interval, above one user, is not `found`
# Evidence enough to go on by, which decides nothing; the chance of a knee above the highest level
# at which the search climbs although that level does not lean to failing.
LEAN_LOG: Final = log(10)
CLIMB_CHANCE: Final = 0.02
# A look at the likely knee may last as long, in lifetimes of the highest level, and a hold that
# decides, in lifetimes of the nearest one.
LOOK_LIFETIMES: Final = 8
HOLD_LIFETIMES: Final = 20
QUICK_CLIMB: Final = 16  # users; below it, the next level is four times as high if latencies allow
# Standard deviation of the knee, over the precision, below which more load is not worth its time
# unless it decides something.
KNOWN_SPREAD: Final = 0.45
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

    @property
    def allowed(self) -> float:
        """The largest share that an SLO allows to be over its limit."""
        return max(slo.allowed for slo in self.slos)

    def leans(self, evidence: Evidence) -> Decision:
        """The side that a level is on by all appearances."""
        if (decision := self.judge(evidence).decision) != Decision.inconclusive:
            return decision
        sides = []
        for i, slo in enumerate(self.slos):
            effect = evidence.effect(i, slo.allowed)
            n, k = (float(counts.sum()) / effect for counts in evidence.over(i))
            clear = n > 0 and log_one_sided(n, k, slo.allowed) >= LEAN_LOG
            sides.append((1 if k > slo.allowed * n else -1) if clear else 0)
        if max(sides) > 0:
            return Decision.failed
        return Decision.passed if max(sides) < 0 else Decision.inconclusive


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
    if levels and all(evidence.plain for evidence in evidences):
        return _decide_soonest(plan, bracket, levels, left)
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


def _decide_soonest(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit], left: int
) -> Hold | Done:
    """Climb; hold the likely knee until its place is known; then the pair that is decided soonest.

    The end is an interval as narrow as the precision, or a budget that can decide nothing more.
    """
    top, budget = levels[-1], plan.budget_ns
    passed, failed = decided_ends(plan, levels)
    narrow = failed - 1 - passed <= plan.width(passed)
    done = narrow or failed <= plan.min_users or passed >= plan.max_users
    if done or left <= budget * MIN_BUDGET_SHARE:
        return _settle(plan, bracket)
    belief = believe(levels, plan.allowed)
    below = plan.leans(top.evidence) != Decision.failed and belief.above > CLIMB_CHANCE
    if below and top.users < plan.max_users:
        users = _higher(plan, top)
        return Hold(users, Purpose.up, StopRule.lean, int(min(left, budget * 0.04)))
    life_ns = top.evidence.lifetime_ns
    look_ns = int(min(left, max(budget * 0.05, LOOK_LIFETIMES * life_ns)))
    if bracket.low is None and levels[0].users > plan.min_users:
        users = max(levels[0].users // 2, plan.min_users)
        return Hold(users, Purpose.bisect, StopRule.decided, look_ns)
    reach = plan.min_users, plan.max_users, passed, failed
    prospect = Prospect(levels, belief, plan.allowed, plan.level_alpha, *reach)
    safe = max(1, int(MAX_INTERVAL_SHARE * belief.knee))
    pair, affordable = prospect.narrowest(plan.precision, safe, left, budget)
    known = belief.spread < KNOWN_SPREAD * plan.precision
    if known and not affordable and failed - 1 - passed <= safe:
        return _settle(plan, bracket)
    if pair is None:
        users = int(np.clip(round(belief.knee), plan.min_users, plan.max_users))
        return Hold(users, Purpose.bisect, StopRule.decided, look_ns)
    need_ns, users = pair.first
    near = min(levels, key=lambda level: abs(level.users - users))
    life_ns = near.evidence.lifetime_ns
    most = max(budget * 0.06, min(1.3 * need_ns, budget * 0.12), HOLD_LIFETIMES * life_ns)
    return Hold(users, Purpose.repeat, StopRule.decided, int(min(left, most)))


def decided_ends(plan: SearchPlan, levels: Sequence[LevelFit]) -> tuple[int, float]:
    """(the highest level that passed, or 0; the lowest one above it that failed, or inf)."""
    decided = [(level.users, plan.judge(level.evidence).decision) for level in levels]
    passed = max((users for users, said in decided if said == Decision.passed), default=0)
    failed = (users for users, said in decided if said == Decision.failed and users > passed)
    return passed, min(failed, default=inf)


def _higher(plan: SearchPlan, top: LevelFit) -> int:
    """The next level on the way up: four times as high where latencies are far from any limit."""
    far = float(worst_ratio(top.evidence, plan.slos)[0]) < -log(4)
    return min(top.users * (4 if far and top.users < QUICK_CLIMB else 2), plan.max_users)


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
