"""From the levels of a search and all records to the knee, live and replayed alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Decision, Status, Verdict
from harness.metrics.latency_figures import latency_json
from harness.metrics.metrics import HEADLINES
from harness.metrics.result import Interval, Knee, Latency, Level, SloResult
from harness.search.fit import LevelFit as FitLevel
from harness.search.fit import fit_crossing, fit_levels
from harness.search.level_state import HeldLevel, decided_evidence, valid_evidence
from harness.search.narrow import believe
from harness.search.next_level import (
    Done,
    SearchPlan,
    bracket_of,
    decided_ends,
    decided_levels,
    promised,
)
from harness.search.power import power_knee

if TYPE_CHECKING:
    from harness.search.fit import Crossing
    from harness.search.replay import RunTokenStats

NEAR_ENDS: Final = 0.25  # of the knee: ends so close to each other say where it is
FIT_SHARE: Final = 0.3  # of the isotonic fit, in log(count)
PROMISED: Final = (Status.found, Status.holds, Status.not_reached)  # a level was shown to hold
# Ends of a search after which no fit can say where the knee is.
NOT_FITTED: Final = (
    Status.invalid,
    Status.target_failed,
    Status.slo_failed_at_min,
    Status.not_reached,
)


@dataclass(frozen=True, slots=True)
class KneeEstimate:
    """The knee as a count: loads up to `count` meet the SLOs, 95% interval [lo, hi]."""

    status: Status
    count: int | None  # best estimate
    lo: int
    hi: int
    holds: int = 0  # the highest level that passed, at most `count`; 0: none
    fails_by: int | None = None  # the lowest level above that failed


def estimate_knee(plan: SearchPlan, held_levels: Sequence[HeldLevel], done: Done) -> KneeEstimate:
    """Status, knee and interval from all valid levels.

    `found` requires a level that passed at the lower end of the interval, and one that failed above
    its upper end, not far from it: only what was measured is promised.
    """
    if not plan.slos:
        return _locate_power(plan, held_levels, done)
    levels = fit_levels(valid_evidence(held_levels), plan.slos, plan.max_errors)
    if not levels or done.status in NOT_FITTED:
        return _estimate_without_fit(plan, levels, done.status)
    # A level cut short by the end of the budget may have gaps between tokens and no first token:
    # where no gap breaks its limit, that says nothing of the knee.
    telling = [level for level in levels if level.margin > 0 or _shows_all(plan, level)]
    return _fitted_estimate(plan, telling or levels)


def _shows_all(plan: SearchPlan, level: FitLevel) -> bool:
    """Whether a level has observations of each SLO."""
    return all(level.evidence.over(i)[0].any() for i in range(len(plan.slos)))


def _estimate_without_fit(
    plan: SearchPlan, levels: Sequence[FitLevel], status: Status
) -> KneeEstimate:
    """What the decided levels alone say of the knee, where no fit can."""
    holds, lowest_failed = decided_ends(plan, levels)
    fails_by = None if math.isinf(lowest_failed) else int(lowest_failed)
    if not levels or status in (Status.invalid, Status.target_failed):
        lo = holds
        hi = plan.max_users if fails_by is None else fails_by - 1
    elif fails_by:  # the knee is below all levels held
        lo = 0
        hi = levels[0].count
    else:  # above all of them
        lo = levels[-1].count
        hi = plan.max_users
    return KneeEstimate(status, None, lo, hi, holds, fails_by)


def _fitted_estimate(plan: SearchPlan, levels: Sequence[FitLevel]) -> KneeEstimate:
    """The fit gives the estimate and its interval; levels that were decided then limit these.

    The promise is the highest level that passed, and the upper end lies below the lowest level that
    failed.
    """
    both_decided = ends_decided(plan, levels)
    cross = fit_crossing(levels, plan.slos, plan.max_errors, plan.seed, decided=both_decided)
    count, lo, hi = _interval(plan, levels, cross)
    passed, failed = decided_levels(plan, levels)
    holds = max((level for level in passed if level <= count), default=0)
    fails_by = min((level for level in failed if level > count), default=None)
    if fails_by is not None:
        hi = min(hi, fails_by - 1)
    # The estimate stays within its interval, also where a level that failed has cut that short.
    hi = max(hi, count)

    is_within = count >= plan.min_users and not math.isinf(cross.count)
    status = promised(holds, fails_by)
    if status == Status.found and not is_within:
        status = Status.holds
    lo = holds if status == Status.found else min(max(lo, holds), count)
    return KneeEstimate(status, count if is_within else None, lo, hi, holds, fails_by)


def _interval(
    plan: SearchPlan, levels: Sequence[FitLevel], cross: Crossing
) -> tuple[int, int, int]:
    """(the estimate, the ends of its interval), as the fit has them."""
    count = _whole_count(plan, min(cross.count, levels[-1].count))
    lo = _whole_count(plan, cross.lo)
    hi = _whole_count(plan, cross.hi)
    never_pause = all(level.evidence.plain for level in levels)
    if never_pause and 0 < cross.count < math.inf:
        count = _believed(plan, levels, cross.count)
        lo = min(lo, count)
        hi = max(hi, count)
    return count, lo, hi


def _whole_count(plan: SearchPlan, crossing: float) -> int:
    """Rounded down, as half a user cannot be promised."""
    if math.isinf(crossing):
        return plan.max_users
    return math.floor(crossing + 1e-9)  # a whole number may come out of the fit just below it


def _believed(plan: SearchPlan, levels: Sequence[FitLevel], crossing: float) -> int:
    """The best estimate where users never pause: by all levels, within those that are decided.

    How latencies rise between two levels is a guess, so the belief counts in part: beside the
    middle of ends that are decided and near, else beside the isotonic fit.
    """
    passed, failed = decided_ends(plan, levels)
    knee = believe(levels, plan.allowed).knee
    if passed and failed - passed <= NEAR_ENDS * knee:
        middle = (passed * failed) ** 0.5  # geometric, as load acts by its ratio
        knee = (knee * middle) ** 0.5
    else:
        knee = knee ** (1 - FIT_SHARE) * crossing**FIT_SHARE
    most = min(failed - 1, levels[-1].count)
    return int(min(max(knee, passed), most))


def ends_decided(plan: SearchPlan, levels: Sequence[FitLevel]) -> bool:
    """Whether the sequential test has decided both ends of the bracket."""
    bracket = bracket_of(levels)
    for end in (bracket.low, bracket.high):
        if end is None or plan.judge(end.evidence).decision == Decision.inconclusive:
            return False
    return True


def bracket_users(plan: SearchPlan, levels: Sequence[HeldLevel]) -> list[int | float | None]:
    """The levels between which the knee was shown to lie; None for an end that was not shown.

    The fit knows more about where it lies, but of its ends nothing is decided.
    """
    used = decided_evidence(levels)
    if not plan.slos or not used:
        return [None, None]
    passed, failed = decided_ends(plan, fit_levels(used, plan.slos, plan.max_errors))
    low = plan.unit.number(passed) if passed else None
    high = None if math.isinf(failed) else plan.unit.number(int(failed))
    return [low, high]


def _locate_power(plan: SearchPlan, levels: Sequence[HeldLevel], done: Done) -> KneeEstimate:
    knee = power_knee(valid_evidence(levels), plan.seed)
    if knee is None or done.status != Status.found:
        return KneeEstimate(done.status, None, plan.min_users, plan.max_users)
    return KneeEstimate(Status.found, knee.users, *knee.ci95)


def knee_result(
    plan: SearchPlan, estimate: KneeEstimate, levels: Sequence[Level], counted: RunTokenStats
) -> Knee:
    """The knee with the figures of the level that represents it, pooled over all its holds."""
    load = _measured_at(plan, estimate, levels)
    holds = [level for level in levels if level.load == load and level.usable]
    windows = [(hold.settled_ns, hold.end_ns) for hold in holds]
    p95s_ms: dict[str, float | Interval] = {}
    for key in HEADLINES:
        latency = _pooled_latency(key, windows, counted)
        p95s_ms[f"{key}_p95_ms"] = latency.p95
        p95s_ms[f"{key}_p95_ms_ci95"] = latency.p95_ci95
    by_schedule = plan.unit.by_schedule
    return Knee(
        holds=plan.unit.number(estimate.holds) or None,
        estimate=None if estimate.count is None else plan.unit.number(estimate.count),
        fails_by=None if estimate.fails_by is None else plan.unit.number(estimate.fails_by),
        ci95=(plan.unit.number(estimate.lo), plan.unit.number(estimate.hi)),
        precision=plan.precision if plan.slos else math.nan,
        width=_width(estimate),
        criterion=" and ".join(map(str, plan.slos)) or "power",
        measured_at_users=None if by_schedule or load is None else int(load),
        measured_at_per_s=load if by_schedule else None,
        p95s_ms=p95s_ms,
        **_mean_rates(holds),
    )


def _width(estimate: KneeEstimate) -> float:
    """How far apart the ends are that were shown, over the lower one; NaN: one was not shown."""
    if not estimate.holds or estimate.fails_by is None:
        return math.nan
    return round((estimate.fails_by - estimate.holds) / estimate.holds, 4)


def _pooled_latency(
    key: str, windows: Sequence[tuple[int, int]], counted: RunTokenStats
) -> Latency:
    if not windows:
        return Latency()
    figures = counted.level(key, windows)
    return Latency.of(latency_json(figures))


def _mean_rates(holds: Sequence[Level]) -> dict[str, Any]:
    """The rates of a knee: means over the holds of its level; {} without a hold."""
    if not holds:
        return {}
    means = {}
    for name in ("output_tokens_per_s", "requests_per_s", "goodput_per_s", "in_flight"):
        rates = [getattr(hold, name) for hold in holds]
        means[name] = round(sum(rates) / len(rates), 4)
    return means


def _measured_at(
    plan: SearchPlan, estimate: KneeEstimate, levels: Sequence[Level]
) -> int | float | None:
    """The level that passed, else the one nearest to the estimate, by their ratio.

    Without an estimate, the highest one up to the interval's lower end, else the lowest.
    """
    loads = [level.load for level in levels if level.usable]
    if not estimate.holds and estimate.count:
        knee = plan.unit.number(estimate.count)
        return min(loads, key=lambda load: abs(math.log(load / knee)), default=None)
    highest = plan.unit.number(estimate.holds or estimate.lo)
    up_to = [load for load in loads if load <= highest]
    return max(up_to, default=min(loads, default=None))


def slo_results(
    plan: SearchPlan, estimate: KneeEstimate, levels: Sequence[Level]
) -> list[SloResult]:
    """The verdict of a search on each SLO, at the level that represents the knee."""
    load = _measured_at(plan, estimate, levels)
    holds = [level for level in levels if level.load == load and level.usable]
    longest = max(holds, key=lambda hold: hold.seconds, default=None)
    results = []
    for slo in plan.slos:
        verdict = Verdict.inconclusive
        if estimate.status in PROMISED:
            verdict = Verdict.met
        elif estimate.status == Status.slo_failed_at_min and longest is not None:
            missed = longest.over_share.get(slo.name, math.nan) > slo.allowed
            verdict = Verdict.missed if missed else Verdict.inconclusive
        result = SloResult(str(slo), verdict, math.nan, allowed=slo.allowed)
        if longest is not None:
            result = replace(
                result,
                observed=longest.observed(slo),
                users=longest.users,
                rate_per_s=longest.rate_per_s,
            )
        results.append(result)
    return results
