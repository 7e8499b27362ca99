"""From the levels of a search and all records to the knee, live and replayed alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from harness.core.states import Decision, Status, Verdict
from harness.metrics.latency_figures import latency_json
from harness.metrics.result import Knee, Latency, Level, SloResult
from harness.search.fit import Crossing, fit_crossing, fit_levels
from harness.search.fit import LevelFit as FitLevel
from harness.search.level_state import HeldLevel, decided_evidence
from harness.search.narrow import believe
from harness.search.next_level import (
    MAX_INTERVAL_SHARE,
    Done,
    SearchPlan,
    bracket_of,
    decided_ends,
)
from harness.search.power import power_knee

if TYPE_CHECKING:
    from harness.search.replay import RunTokenStats

NEAR_ENDS: Final = 0.25  # of the knee: ends so close to each other say where it is
FIT_SHARE: Final = 0.3  # of the isotonic fit, in log(users)


@dataclass(frozen=True, slots=True)
class KneeEstimate:
    """The knee in whole users: at most `users` meet the SLOs, 95% interval [lo, hi]."""

    status: Status
    users: int | None  # best estimate
    lo: int
    hi: int
    holds: int = 0  # the highest level that passed, at most `users`; 0: none
    fails_by: int | None = None  # the lowest level above that failed


def estimate_knee(plan: SearchPlan, held_levels: Sequence[HeldLevel], done: Done) -> KneeEstimate:
    """Status, knee and interval from all valid levels.

    `found` requires a level that passed at the lower end of the interval, one that failed above its
    upper end, and a narrow interval: only what was measured is promised.
    """
    if not plan.slos:
        return _locate_power(plan, held_levels, done)
    levels = fit_levels(
        [s.evidence for s in held_levels if not s.invalid], plan.slos, plan.max_errors
    )
    passed, failed = decided_levels(plan, levels)
    holds = max(passed, default=0)
    fails_by = min((level for level in failed if level > holds), default=None)
    if not levels or done.status in (Status.invalid, Status.target_failed):
        hi = plan.max_users if fails_by is None else fails_by - 1
        return KneeEstimate(done.status, None, holds, hi, holds, fails_by)
    if done.status in (Status.slo_failed_at_min, Status.not_reached):
        ends = (0, levels[0].users) if fails_by else (levels[-1].users, plan.max_users)
        return KneeEstimate(done.status, None, *ends, holds, fails_by)
    cross = fit_crossing(
        levels, plan.slos, plan.max_errors, plan.seed, decided=ends_decided(plan, levels)
    )
    # The fit gives the estimate and its interval. Measured levels then limit it: the promise is the
    # highest level that passed, and the upper end lies below the lowest level that failed.
    users, lo, hi = _whole(cross, plan, levels[-1].users)
    if all(level.evidence.plain for level in levels) and 0 < cross.users < math.inf:
        users = _believed(plan, levels, cross.users)
        lo, hi = min(lo, users), max(hi, users)
    holds = max((level for level in passed if level <= users), default=0)
    fails_by = min((level for level in failed if level > users), default=None)
    hi = max(hi if fails_by is None else min(hi, fails_by - 1), users)
    within = users >= plan.min_users and not math.isinf(cross.users)
    if within and holds and fails_by and hi - holds <= max(1, MAX_INTERVAL_SHARE * users):
        return KneeEstimate(Status.found, users, holds, hi, holds, fails_by)
    lo = min(max(lo, holds), users)
    return KneeEstimate(Status.inconclusive, users if within else None, lo, hi, holds, fails_by)


def _believed(plan: SearchPlan, levels: Sequence[FitLevel], crossing: float) -> int:
    """The best estimate where users never pause: by all levels, within those that are decided.

    How latencies rise between two levels is a guess, so the belief counts in part: beside the
    middle of ends that are decided and near, else beside the isotonic fit.
    """
    passed, failed = decided_ends(plan, levels)
    knee = believe(levels, plan.allowed).knee
    if passed and failed - passed <= NEAR_ENDS * knee:
        knee = (knee * (passed * failed) ** 0.5) ** 0.5
    else:
        knee = knee ** (1 - FIT_SHARE) * crossing**FIT_SHARE
    return int(min(max(knee, passed), failed - 1, levels[-1].users))


def ends_decided(plan: SearchPlan, levels: Sequence[FitLevel]) -> bool:
    """Whether the sequential test has decided both ends of the bracket."""
    bracket = bracket_of(levels)
    ends = (bracket.low, bracket.high)
    return all(
        x is not None and plan.judge(x.evidence).decision != Decision.inconclusive for x in ends
    )


def bracket_users(plan: SearchPlan, levels: Sequence[HeldLevel]) -> list[int | float | None]:
    """The levels between which the knee was shown to lie; None for an end that was not shown.

    The fit knows more about where it lies, but of its ends nothing is decided.
    """
    used = decided_evidence(levels)
    if not plan.slos or not used:
        return [None, None]
    passed, failed = decided_ends(plan, fit_levels(used, plan.slos, plan.max_errors))
    low = plan.load_of(passed) if passed else None
    high = None if math.isinf(failed) else plan.load_of(int(failed))
    return [low, high]


def decided_levels(plan: SearchPlan, levels: Sequence[FitLevel]) -> tuple[list[int], list[int]]:
    """(levels that passed, levels that failed), by the sequential test."""
    decisions = [(x.users, plan.judge(x.evidence).decision) for x in levels]
    passed = [users for users, decision in decisions if decision == Decision.passed]
    return passed, [users for users, decision in decisions if decision == Decision.failed]


def _whole(cross: Crossing, plan: SearchPlan, top: int) -> tuple[int, int, int]:
    """The crossing and the ends of its interval, rounded down to whole users."""

    def floor(users: float) -> int:
        return plan.max_users if math.isinf(users) else math.floor(users + 1e-9)

    return floor(min(cross.users, top)), floor(cross.lo), floor(cross.hi)


def _locate_power(plan: SearchPlan, levels: Sequence[HeldLevel], done: Done) -> KneeEstimate:
    knee = power_knee([s.evidence for s in levels if not s.invalid], plan.seed)
    if knee is None or done.status != Status.found:
        return KneeEstimate(done.status, None, plan.min_users, plan.max_users)
    return KneeEstimate(Status.found, knee.users, *knee.ci95)


def knee_result(
    plan: SearchPlan, found: KneeEstimate, levels: Sequence[Level], counted: RunTokenStats
) -> Knee:
    """The knee with the figures of the level that represents it, pooled over all its holds."""
    at = _measured_at(plan, found, levels)
    # All valid holds of the level that represents the knee are pooled.
    same = [level for level in levels if level.load == at and level.usable]
    windows = [(level.settled_ns, level.end_ns) for level in same]
    ttft, itl = (
        Latency.of(latency_json(counted.level(key, windows))) if windows else Latency()
        for key in ("ttft", "itl")
    )
    rates = {
        name: round(sum(getattr(level, name) for level in same) / len(same), 4)
        for name in ("output_tokens_per_s", "requests_per_s", "goodput_per_s", "in_flight")
        if same
    }
    return Knee(
        holds=plan.load_of(found.holds) or None,
        estimate=None if found.users is None else plan.load_of(found.users),
        fails_by=None if found.fails_by is None else plan.load_of(found.fails_by),
        ci95=(plan.load_of(found.lo), plan.load_of(found.hi)),
        precision=plan.precision if plan.slos else math.nan,
        criterion=" and ".join(map(str, plan.slos)) or "power",
        measured_at_users=None if plan.rate_step_per_s or at is None else int(at),
        measured_at_per_s=at if plan.rate_step_per_s else None,
        ttft_p95_ms=ttft.p95,
        ttft_p95_ms_ci95=ttft.p95_ci95,
        itl_p95_ms=itl.p95,
        itl_p95_ms_ci95=itl.p95_ci95,
        **rates,
    )


def _measured_at(
    plan: SearchPlan, found: KneeEstimate, levels: Sequence[Level]
) -> int | float | None:
    """The level that passed, else the highest one up to the estimate, else the lowest."""
    used = [level.load for level in levels if level.usable]
    highest = plan.load_of(found.holds or (found.lo if found.users is None else found.users))
    return max((load for load in used if load <= highest), default=min(used, default=None))


def slo_results(plan: SearchPlan, found: KneeEstimate, levels: Sequence[Level]) -> list[SloResult]:
    """The verdict of a search on each SLO, at the level that represents the knee."""
    at = _measured_at(plan, found, levels)
    there = [level for level in levels if level.load == at and level.usable]
    longest = max(there, key=lambda level: level.seconds, default=None)
    results = []
    for slo in plan.slos:
        share = longest.over_share.get(slo.name, math.nan) if longest else math.nan
        verdict = Verdict.inconclusive
        if found.status in (Status.found, Status.not_reached):
            verdict = Verdict.met
        elif found.status == Status.slo_failed_at_min and share > slo.allowed:
            verdict = Verdict.missed
        observed = longest.observed(slo) if longest else math.nan
        users, rate = (longest.users, longest.rate_per_s) if longest else (None, 0.0)
        found_slo = SloResult(str(slo), verdict, observed, users, allowed=slo.allowed)
        results.append(replace(found_slo, rate_per_s=rate))
    return results
