"""Which level to hold next: a pure function of the plan and of the evidence so far.

    up       two to four times as many users, until a level fails
    bisect   halve the bracket around the fitted crossing until it is 5% or one user wide
    repeat   measure both ends of the bracket again, until both are decided or the budget is spent

While users never pause, `_promise_soon` takes the place of the last two: it knows what a level is
expected to cost, and by how much the promise would narrow (narrow.py).

There is no state between calls: the bracket is where the isotonic fit of *all* evidence crosses the
limit. So a wrong turn is undone as soon as repeats contradict it, and the search can be replayed
from the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import exp, inf, log
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from harness.core.load import CONCURRENT
from harness.core.states import Decision, Purpose, Status, StopRule
from harness.metrics.evidence import worst_ratio
from harness.metrics.slo import Slo
from harness.search.fit import fit_levels, isotonic
from harness.search.judge import Judgement, all_of, judge, log_one_sided
from harness.search.narrow import Prospect, believe
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.core.load import Load, LoadUnit
    from harness.metrics.evidence import Evidence
    from harness.search.fit import LevelFit
    from harness.search.narrow import Attempt, Belief

# Share of the budget: less than this is not worth another warm-up.
MIN_BUDGET_SHARE: Final = 0.03
# Shares of the budget that a hold may take: a check on the way up, one that halves the bracket, and
# one that is to decide an end of it.
CLIMB_BUDGET_SHARE: Final = 0.04
BISECT_BUDGET_SHARE: Final = 0.05
DECIDE_BUDGET_SHARE: Final = 0.06
# Holds of a level that are enough, if they decide it.
ENOUGH_HOLDS: Final = 2
# If the lower end stays inconclusive: levels to hold, as shares of it, to show that one passes.
LOWER_LEVEL_SHARES: Final = (0.93, 0.86)
# Log-odds: about half the allowed share, so that holding such a level again decides it.
CLEAR_MARGIN: Final = -0.7
FOUND_WIDTH: Final = 0.5  # of the level that passed: one that failed further above it is far away
# Evidence enough to go on by, which decides nothing; the chance of a knee above the highest level
# at which the search climbs although that level does not lean to failing.
LEAN_LOG: Final = log(10)
CLIMB_CHANCE: Final = 0.02
# A look at the likely knee may last as long, in lifetimes of the highest level, and a hold that
# decides, in lifetimes of the nearest one.
LOOK_LIFETIMES: Final = 8
HOLD_LIFETIMES: Final = 20
# A hold that is expected to decide may take this much longer than expected, up to this share of the
# budget.
NEED_SLACK: Final = 1.3
NEED_BUDGET_SHARE: Final = 0.12
# On the way up: the next level is so many times as high at most, and twice as high from so many
# users on, where one far above the knee takes long.
CLIMB_TIMES: Final = 4
QUICK_CLIMB: Final = 32
# In request lifetimes: with less time left, and nothing that has passed, a level is held to pass in
# place of a higher one, if there is time for that (decision 37).
CLIMB_LIFETIMES: Final = 25
# By how much the logarithm of a latency is taken to rise with that of the users: so many times as
# much as it did since the level before, and at least so much.
RISE_SLACK: Final = 2
LEAST_RISE: Final = 0.35
FIRST_RISE: Final = 0.7  # from the lowest level, of which nothing is known
# A level to which the search may go from the lowest one: a share of the requests that the server
# can run at once, and at most so many, as requests may be long and something else be slow.
EASY_SHARE: Final = 0.5
EASY_MOST: Final = 16
# Ends so close, as a share of the lower one, are close enough where nothing closer was decided for
# this share of the budget.
CLOSE_ENDS: Final = 0.2
PATIENCE_SHARE: Final = 0.08
# Where no level near the likely knee was held and its place is vague, in log(users), a look at it
# comes first.
VAGUE: Final = 0.12
# Standard deviation of the knee, over the precision, below which more load is not worth its time
# unless it decides something.
KNOWN_SPREAD: Final = 0.45
LEVELS_SHARED: Final = 8  # alpha is split over the number of levels that usually need a decision


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """What a search is asked for; times in ns."""

    slos: tuple[Slo, ...]
    min_users: int = 1  # as run.json calls the lowest count, also of a rate
    max_users: int = 512
    budget_ns: int = 600 * SECOND
    precision: float = 0.05  # width of the final bracket over its lower end, at least one user
    max_errors: float = 0.01
    alpha: float = 0.05
    seed: int = 1
    unit: LoadUnit = CONCURRENT  # of levels, which a search calls by their counts
    seats: int = 0  # requests that the server can run at once, known before any load; 0: unknown

    def to_json(self) -> dict[str, Any]:
        """As in run.json."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        del found["unit"]
        slos = [str(slo) for slo in self.slos]
        return found | {"slos": slos, "rate_step_per_s": self.unit.of_count(1).rate_per_s}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], unit: LoadUnit) -> Self:
        """What older folders lack has its default."""
        known = {field.name for field in fields(cls)} & stored.keys()
        values = {name: stored[name] for name in known}
        values["slos"] = tuple(Slo.parse(text) for text in stored["slos"])
        return cls(**values | {"unit": unit})

    @property
    def level_alpha(self) -> float:
        """The run's error rate, split over its levels."""
        return self.alpha / LEVELS_SHARED

    def width(self, count: int) -> int:
        """Largest width of a final bracket that starts at `count`."""
        return max(1, int(count * self.precision))

    @property
    def finest(self) -> float:
        """A width below which a promise gains nothing; wider than FOUND_WIDTH it is none."""
        return min(self.precision, FOUND_WIDTH)

    @property
    def easy_count(self) -> int:
        """A level that the server can easily run; 0: unknown."""
        return min(int(self.seats * EASY_SHARE), EASY_MOST)

    def judge(self, evidence: Evidence) -> Judgement:
        """The sequential test with this plan's limits."""
        return judge(evidence, self.slos, self.level_alpha, self.max_errors)

    @property
    def allowed(self) -> float:
        """The largest share that an SLO allows to be over its limit."""
        return max(slo.allowed for slo in self.slos)

    def leans(self, evidence: Evidence) -> Decision:
        """The side that a level is on by all appearances."""
        decision = self.judge(evidence).decision
        if decision != Decision.inconclusive:
            return decision
        return all_of({self._side(evidence, i) for i in range(len(self.slos))})

    def _side(self, evidence: Evidence, slo_index: int) -> Decision:
        """The side of an SLO that a level is on by all appearances."""
        allowed = self.slos[slo_index].allowed
        effect = evidence.effect(slo_index, allowed)
        sizes, hits = evidence.over(slo_index)
        n = float(sizes.sum()) / effect
        n_over = float(hits.sum()) / effect
        is_clear = n > 0 and log_one_sided(n, n_over, allowed) >= LEAN_LOG
        if not is_clear:
            return Decision.inconclusive
        return Decision.failed if n_over > allowed * n else Decision.passed


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold `load`. Measuring ends as `stop` says, or after about `max_ns`."""

    load: Load
    purpose: Purpose
    stop: StopRule
    max_ns: int = 0  # not where `stop` is requests
    max_requests: int = 0  # only where `stop` is requests
    wants: Decision | None = None  # what it is to show; where that is unlikely it ends early


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


def promised(holds: int, fails_by: float | None) -> Status:
    """The status of a search that has shown these ends; 0, and None or inf: such an end it has not.

    Ends with one count between them are as good as none between them.
    """
    if not holds:
        return Status.inconclusive
    if fails_by is None or fails_by - holds > max(2, FOUND_WIDTH * holds):
        return Status.holds
    return Status.found


def bracket_of(levels: Sequence[LevelFit]) -> Bracket:
    """Levels on both sides of the isotonic fit's crossing."""
    if not levels:
        return Bracket(None, None)
    margins = np.array([level.margin for level in levels])
    weights = np.array([level.weight for level in levels])
    n_passing = int((isotonic(margins, weights) <= 0).sum())  # it never decreases: these come first
    last_passing = levels[n_passing - 1] if n_passing else None
    first_failing = levels[n_passing] if n_passing < len(levels) else None
    return Bracket(last_passing, first_failing)


def next_action(plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int) -> Hold | Done:
    """The next level to hold, or the end. Deterministic in its arguments."""
    levels = fit_levels(evidences, plan.slos, plan.max_errors)
    bracket = bracket_of(levels)
    left_ns = plan.budget_ns - spent_ns
    if levels and all(evidence.plain for evidence in evidences):
        return _promise_soon(plan, bracket, levels, left_ns)
    count, purpose = _unexplored(plan, bracket, levels)
    if count is None:
        return _confirm(plan, bracket, levels, left_ns)
    if left_ns <= plan.budget_ns * MIN_BUDGET_SHARE:
        return _settle(plan, bracket, levels) if levels else end_without_level(evidences)
    if purpose == Purpose.up:
        return _climb_to(plan, count, left_ns)
    max_ns = int(min(left_ns, plan.budget_ns * BISECT_BUDGET_SHARE))
    return Hold(plan.unit.of_count(count), purpose, StopRule.decided, max_ns)


def _climb_to(plan: SearchPlan, count: int, left_ns: int) -> Hold:
    """A quick check on the way up."""
    max_ns = int(min(left_ns, plan.budget_ns * CLIMB_BUDGET_SHARE))
    return Hold(plan.unit.of_count(count), Purpose.up, StopRule.lean, max_ns)


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
    if not levels:
        return plan.min_users, Purpose.up
    top = levels[-1]
    if top.count < plan.max_users and plan.judge(top.evidence).decision != Decision.failed:
        return min(top.count * 2, plan.max_users), Purpose.up
    if bracket.high is None:
        return None, Purpose.up
    return _middle(plan, bracket.low, bracket.high), Purpose.bisect


def _middle(plan: SearchPlan, low: LevelFit | None, high: LevelFit) -> int | None:
    """The level that halves the bracket; None if it is narrow enough."""
    if low is None:
        if high.count <= plan.min_users:
            return None
        return max(high.count // 2, plan.min_users)
    if high.count - low.count <= plan.width(low.count):
        return None
    return (low.count + high.count) // 2


def _promise_soon(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit], left_ns: int
) -> Hold | Done:
    """Climb; then hold what narrows the promise most for its time.

    The end is a promise as narrow as the precision, or a budget that can decide nothing more.
    """
    ends = decided_ends(plan, levels)
    is_spent = left_ns <= plan.budget_ns * MIN_BUDGET_SHARE
    if is_spent or _is_answered(plan, ends) or _is_stuck(plan, levels, ends):
        return _settle(plan, bracket, levels)

    top = levels[-1]
    belief = believe(levels, plan.allowed)
    below_knee = plan.leans(top.evidence) != Decision.failed and belief.above > CLIMB_CHANCE
    if below_knee and top.count < plan.max_users:
        is_late = not ends[0] and left_ns < CLIMB_LIFETIMES * top.evidence.lifetime_ns
        if is_late:
            attempt = _prospect(plan, levels, belief, ends).to_pass(left_ns)
            if attempt is not None:
                return _try(plan, attempt, left_ns)
        return _climb_to(plan, _higher(plan, levels), left_ns)

    lowest = levels[0].count
    if bracket.low is None and lowest > plan.min_users:
        return _look_at(plan, max(lowest // 2, plan.min_users), top, left_ns)

    return _narrow(plan, levels, belief, ends, left_ns) or _settle(plan, bracket, levels)


def _is_answered(plan: SearchPlan, ends: tuple[int, float]) -> bool:
    """Whether what is decided is all that was asked for."""
    passed, failed = ends
    is_narrow = failed - 1 - passed <= plan.width(passed)
    return is_narrow or failed <= plan.min_users or passed >= plan.max_users


def _is_stuck(plan: SearchPlan, levels: Sequence[LevelFit], ends: tuple[int, float]) -> bool:
    """Whether the ends are close, and nothing closer was decided for some time."""
    passed, failed = ends
    if not passed or failed - 1 - passed > CLOSE_ENDS * passed:
        return False
    decided_ns = max(level.evidence.window.judged_ns for level in levels if level.count in ends)
    now_ns = max(level.evidence.window.judged_ns for level in levels)
    return now_ns - decided_ns > plan.budget_ns * PATIENCE_SHARE


def _narrow(
    plan: SearchPlan,
    levels: Sequence[LevelFit],
    belief: Belief,
    ends: tuple[int, float],
    left_ns: int,
) -> Hold | None:
    """What narrows the promise most for its time; None: more load is not worth its time."""
    likely_knee = int(np.clip(round(belief.knee), plan.min_users, plan.max_users))
    look = _look_at(plan, likely_knee, levels[-1], left_ns)
    prospect = _prospect(plan, levels, belief, ends)
    nearest = min(abs(log(level.count / belief.knee)) for level in levels)
    is_vague = min(nearest, belief.spread) > VAGUE
    if prospect.must_pass(likely_knee, left_ns):
        attempt = prospect.to_pass(left_ns)
        if attempt is not None:
            return _try(plan, attempt, left_ns)
    elif not is_vague:
        attempt = prospect.best(left_ns)
        if attempt is not None:
            longest_ns = _longest_ns(plan, attempt, levels)
            return _try(plan, attempt, min(left_ns, longest_ns))
    is_known = not is_vague and belief.spread < KNOWN_SPREAD * plan.finest
    return None if is_known else look


def _prospect(
    plan: SearchPlan, levels: Sequence[LevelFit], belief: Belief, ends: tuple[int, float]
) -> Prospect:
    """What can be decided; `ends`: `decided_ends`."""
    passed, failed = ends
    return Prospect(
        levels,
        belief,
        plan.allowed,
        plan.level_alpha,
        plan.finest,
        least=plan.min_users,
        most=plan.max_users,
        passed=passed,
        failed=failed,
    )


def _look_at(plan: SearchPlan, count: int, top: LevelFit, left_ns: int) -> Hold:
    """A hold that shows where the knee is, and need not decide the level."""
    look_ns = LOOK_LIFETIMES * top.evidence.lifetime_ns
    max_ns = int(min(left_ns, max(plan.budget_ns * BISECT_BUDGET_SHARE, look_ns)))
    return Hold(plan.unit.of_count(count), Purpose.bisect, StopRule.decided, max_ns)


def _longest_ns(plan: SearchPlan, attempt: Attempt, levels: Sequence[LevelFit]) -> float:
    """How long a hold may take to show what it is to show, where others may be worth more."""
    nearest = min(levels, key=lambda level: abs(level.count - attempt.count))
    return max(
        plan.budget_ns * DECIDE_BUDGET_SHARE,
        min(NEED_SLACK * attempt.need_ns, plan.budget_ns * NEED_BUDGET_SHARE),
        HOLD_LIFETIMES * nearest.evidence.lifetime_ns,
    )


def _try(plan: SearchPlan, attempt: Attempt, longest_ns: float) -> Hold:
    """Until it shows what it is to show, or is unlikely to, or the time is over."""
    return Hold(
        plan.unit.of_count(attempt.count),
        Purpose.repeat,
        StopRule.decided,
        int(longest_ns),
        wants=attempt.wants,
    )


def decided_ends(plan: SearchPlan, levels: Sequence[LevelFit]) -> tuple[int, float]:
    """(the highest level that passed, or 0; the lowest one above it that failed, or inf)."""
    passed, failed = decided_levels(plan, levels)
    highest_passed = max(passed, default=0)
    failed_above = (count for count in failed if count > highest_passed)
    return highest_passed, min(failed_above, default=inf)


def decided_levels(plan: SearchPlan, levels: Sequence[LevelFit]) -> tuple[list[int], list[int]]:
    """(levels that passed, levels that failed), by the sequential test."""
    passed = []
    failed = []
    for level in levels:
        decision = plan.judge(level.evidence).decision
        if decision == Decision.passed:
            passed.append(level.count)
        elif decision == Decision.failed:
            failed.append(level.count)
    return passed, failed


def _higher(plan: SearchPlan, levels: Sequence[LevelFit]) -> int:
    """The next level on the way up: the higher, the farther and the slower latencies rise."""
    top = levels[-1]
    room = _room(plan, top)
    rise = FIRST_RISE
    most = max(CLIMB_TIMES, plan.easy_count / top.count)
    if levels[1:]:
        below = levels[-2]
        risen = (_room(plan, below) - room) / log(top.count / below.count)
        rise = max(LEAST_RISE, RISE_SLACK * risen)
        most = CLIMB_TIMES
    if top.count >= QUICK_CLIMB:
        most = 2
    times = max(2, exp(room / rise))  # 2 where it is NaN, too
    return min(round(top.count * min(times, most)), plan.max_users)


def _room(plan: SearchPlan, level: LevelFit) -> float:
    """Log of the times by which the worst latency is within its limit."""
    return -float(worst_ratio(level.evidence, plan.slos)[0])


def _confirm(
    plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit], left_ns: int
) -> Hold | Done:
    """Repeat the end with the least evidence, until each was held twice and is decided.

    Next to the knee a level can stay inconclusive however long it is held. What is promised must
    have been shown, so a level slightly below is held too.
    """
    open_ends = []
    for end in (bracket.low, bracket.high):
        if end is None:
            continue
        undecided = plan.judge(end.evidence).decision == Decision.inconclusive
        if undecided or end.steps < ENOUGH_HOLDS:
            open_ends.append(end)
    if not open_ends or left_ns <= plan.budget_ns * MIN_BUDGET_SHARE:
        return _settle(plan, bracket, levels)
    # The end held fewest times first; then the one whose holds carry the least information.
    least_known = min(open_ends, key=lambda end: (end.steps, end.weight))
    count = least_known.count
    if bracket.low is not None and least_known.steps >= ENOUGH_HOLDS:
        count = _shown_below(plan, bracket.low.count, levels) or count
    max_ns = int(min(left_ns, plan.budget_ns * DECIDE_BUDGET_SHARE))
    return Hold(plan.unit.of_count(count), Purpose.repeat, StopRule.decided, max_ns)


def _shown_below(plan: SearchPlan, low: int, levels: Sequence[LevelFit]) -> int | None:
    """The level to hold so that one near the lower end passes; None: one has, or none will."""
    lowest = LOWER_LEVEL_SHARES[-1] * low - 1
    near = {level.count: level for level in levels if lowest < level.count <= low}
    passed, _ = decided_levels(plan, list(near.values()))
    if passed:
        return None
    for share in LOWER_LEVEL_SHARES:
        count = max(int(low * share), plan.min_users)
        if count < low and _may_pass(near.get(count)):
            return count
    return None


def _may_pass(level: LevelFit | None) -> bool:
    """Whether a level that has not passed yet may do so if it is held (again)."""
    return level is None or level.steps < ENOUGH_HOLDS or level.margin < CLEAR_MARGIN


def _settle(plan: SearchPlan, bracket: Bracket, levels: Sequence[LevelFit]) -> Done:
    """The status that the levels support."""
    low = bracket.low
    high = bracket.high
    ends = (low.count if low else 0, high.count if high else plan.max_users)
    passed, failed = decided_levels(plan, levels)
    if low is None and high is not None and high.count in failed:
        return Done(Status.slo_failed_at_min, ends)
    if high is None and plan.max_users in passed:
        return Done(Status.not_reached, ends)
    return Done(promised(*decided_ends(plan, levels)), ends)
