"""The knee at other limits, from the records of one search, and how steep the latency is at it.

What was recorded at a level says how many observations are over any limit, so each limit has a knee
by the same fit as the one that was asked for. Far from that one, levels are few and were held for
seconds: the band is wide, and between two levels it is never narrower than their distance.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log, nan
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.core.states import Decision, Status
from harness.metrics import evidence as grids
from harness.metrics.evidence import Evidence, gather_evidence
from harness.metrics.metrics import GAPS
from harness.metrics.result import KneeCurve
from harness.metrics.slo import Slo
from harness.search.confirm import searched as of_search
from harness.search.controller import GOOD_LIFETIMES
from harness.search.fit import fit_levels
from harness.search.knee_estimate import KneeEstimate, estimate_knee
from harness.search.level_state import valid_evidence
from harness.search.next_level import Done, next_action
from harness.search.replay import Replay
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.record_source import RecordSource
    from harness.metrics.result import Level
    from harness.search.level_state import HeldLevel
    from harness.search.next_level import SearchPlan
    from harness.search.replay import RunTokenStats

STEP: Final = grids.LOG_SPAN / grids.BINS_PER_SIDE  # of the grid of ratios, in log(limit)
MAX_STEPS: Final = 200  # limits nearer to the end of the grid are left out
POINTS: Final = 15  # of a curve, about
# Drawn besides the SLOs: their limits are only where the grid is centered.
ALSO: Final = (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))
TOO_SHORT: Final = "it ended when it missed another SLO, too early to show that it meets this one"
CLIFF_SHARE: Final = 0.05  # a cliff: so much more load, at least one count,
CLIFF_RISE: Final = 0.25  # raise the quantile by this share of its limit


def curve_slos(slos: Sequence[Slo]) -> tuple[Slo, ...]:
    """The SLOs whose limit is varied: those asked for, and TTFT and ITL."""
    metrics = {slo.metric for slo in slos}
    return (*slos, *(slo for slo in ALSO if slo.metric not in metrics))


def at_limit(slo: Slo, steps: int) -> Slo:
    """The SLO with a limit so many steps of the grid higher; 56 double it."""
    if not steps:
        return slo
    factor = exp(steps * STEP)
    return replace(slo, limit_ns=round(slo.limit_ns * factor))


def evidence_at(
    records: RecordSource, hold: grids.Window, counted: grids.EvidenceCounter, slo: Slo, steps: int
) -> Evidence:
    """What a hold shows about the SLO `at_limit`.

    Requests are looked at anew, as it depends on the limit which open ones are known to be over it.
    Gaps were counted by their ratio to the SLO's own limit; that count is moved along its grid.
    """
    if slo.metric not in GAPS:
        return gather_evidence(records, hold, (at_limit(slo, steps),), counted)
    evidence = gather_evidence(records, hold, (slo,), counted)
    last_bin = grids.RATIO_BINS - 1
    bins = np.clip(np.arange(grids.RATIO_BINS) - steps, 0, last_bin)
    bins[-1] = last_bin  # gaps that never ended
    moved = np.zeros_like(evidence.grids[0])
    # `add.at`, as several bins beyond an end of the grid are clipped to the same one.
    np.add.at(moved.T, bins, evidence.grids[0].T)
    return replace(evidence, grids=(moved,))


def held_for(plan: SearchPlan, level: HeldLevel, evidence: Evidence) -> HeldLevel:
    """A hold as it is judged by the SLOs of `plan`, for which it was not held.

    One that ended early, as it missed its own SLO, does not show that it meets a wider one: queues
    were still filling. Taken as it was, 4 of 27 bands at twice the limit lay above the true knee.
    """
    judgement = plan.judge(evidence)
    is_short = evidence.seconds * SECOND < GOOD_LIFETIMES * evidence.lifetime_ns
    missed_its_own = level.judgement.leans_to_fail and not judgement.leans_to_fail
    invalid = level.invalid
    if not invalid and is_short and missed_its_own:
        invalid = TOO_SHORT
    if level.judgement.decision == Decision.held:
        judgement = level.judgement
    return replace(level, evidence=evidence, judgement=judgement, invalid=invalid)


def judged_by(plan: SearchPlan, run: Replay, counted: RunTokenStats, *, searched: bool) -> Replay:
    """The levels of a run by the SLOs of `plan`; where they were searched, the end by these."""
    levels = []
    for level in run.levels:
        stats = counted.levels[level.window]
        evidence = gather_evidence(stats.known, level.window, plan.slos, stats.judged)
        levels.append(held_for(plan, level, evidence))
        stats.known.forget_table()
    done = run.done
    if searched:
        used = valid_evidence(of_search(levels))
        action = next_action(plan, used, plan.budget_ns)  # nothing is left of its budget
        if isinstance(action, Done):
            done = action
    return Replay(levels, done, [])


def knee_at(
    plan: SearchPlan, slo: Slo, held: Sequence[HeldLevel], evidences: Sequence[Evidence]
) -> KneeEstimate | None:
    """The knee of an SLO alone, by the evidence of each hold; None: it is not among the levels."""
    plan = replace(plan, slos=(slo,))
    with_evidence = zip(held, evidences, strict=True)
    levels = [held_for(plan, level, evidence) for level, evidence in with_evidence]
    knee = estimate_knee(plan, levels, Done(Status.inconclusive, None))
    # An interval that reaches the highest level has no end there that anything showed.
    if knee.count is None or knee.hi >= max(level.window.load.count for level in levels):
        return None
    # Below the lowest level nothing was seen: if it has not passed, the knee may be anywhere there.
    lowest = fit_levels(valid_evidence(levels), plan.slos, plan.max_errors)[0]
    if knee.lo > lowest.count or plan.judge(lowest.evidence).decision == Decision.passed:
        return knee
    return replace(knee, lo=0)


def knee_curve(
    plan: SearchPlan,
    slo: Slo,
    held: Sequence[HeldLevel],
    levels: Sequence[Level],
    counted: RunTokenStats,
) -> KneeCurve:
    """From the lowest quantile at a level to the highest: beyond, none fails, or none passes."""
    held = [level for level in held if not level.invalid]
    points = []
    for steps in _limit_steps(slo, levels, with_own=slo in plan.slos):
        evidences = []
        for level in held:
            stats = counted.levels[level.window]
            evidences.append(evidence_at(stats.known, level.window, stats.judged, slo, steps))
        varied = at_limit(slo, steps)
        knee = knee_at(plan, varied, held, evidences)
        if knee is not None:
            ends = (plan.unit.number(knee.lo), plan.unit.number(knee.hi))
            points.append((varied.limit, plan.unit.number(knee.count or 0), *ends))
    for level in held:
        counted.levels[level.window].known.forget_table()
    return KneeCurve(slo.name, slo.limit if slo in plan.slos else nan, tuple(points))


def _limit_steps(slo: Slo, levels: Sequence[Level], *, with_own: bool) -> list[int]:
    """The limits of a curve, in steps from the SLO's own: from what was observed, ascending."""
    ratios = [level.observed(slo) / slo.limit for level in levels if level.usable]
    sign = -1 if slo.speed else 1  # of a speed a lower limit is the easier one
    observed = [log(ratio) * sign / STEP for ratio in ratios if 0 < ratio < inf]
    lowest = min(observed, default=0.0)
    highest = max(observed, default=0.0)
    low = int(np.clip(lowest, -MAX_STEPS, MAX_STEPS))
    high = int(np.clip(highest, -MAX_STEPS, MAX_STEPS))
    apart = max((high - low) // POINTS, 1)
    steps = set(range(low, high + 1, apart))
    if with_own:
        steps.add(0)
    return sorted(steps)


def steepness(plan: SearchPlan, knee: KneeEstimate, held: Sequence[HeldLevel]) -> dict[str, Any]:
    """How fast the worst SLO's quantile rises from the level that holds to the one that fails.

    Rather too fast, as each level was chosen for its side of the limit: in four of five of 45
    simulated knees it was 0.8 to 1.9 times the long-run rise, in the median 1.1.
    """
    levels = fit_levels(valid_evidence(held), plan.slos, plan.max_errors)
    by_count = {level.count: level for level in levels}
    low = by_count.get(knee.holds)
    high = None if knee.fails_by is None else by_count.get(knee.fails_by)
    if low is None or high is None:
        return {}
    rises = _rises(plan.slos, low.evidence, high.evidence)
    if not rises:
        return {}
    worst_ratio, rise, slo = max(rises, key=lambda row: row[0])
    apart = high.count - low.count
    cliff_step = max(1, CLIFF_SHARE * low.count) / apart
    is_cliff = high.evidence.unstable or rise * cliff_step >= CLIFF_RISE
    rise_ms = nan
    if worst_ratio < 0.99 * exp(grids.LOG_SPAN):  # beyond lie failures too
        rise_ms = rise * slo.limit_ns / MS / plan.unit.number(apart)
    return {
        "steepness": "cliff" if is_cliff else "slope",
        "rise_of": slo.name,
        "rise_ms": rise_ms,
    }


def _rises(slos: Sequence[Slo], low: Evidence, high: Evidence) -> list[tuple[float, float, Slo]]:
    """(the quantile at `high` over its limit, its rise since `low`) of each SLO that rises.

    Not of a speed: it falls with load.
    """
    rises = []
    for i, slo in enumerate(slos):
        if slo.speed:
            continue
        low_ratio = _quantile_ratio(low, i, slo)
        high_ratio = _quantile_ratio(high, i, slo)
        if high_ratio > low_ratio:
            rises.append((high_ratio, high_ratio - low_ratio, slo))
    return rises


def _quantile_ratio(evidence: Evidence, slo_index: int, slo: Slo) -> float:
    """The quantile that the SLO limits, over its limit."""
    all_blocks = evidence.grids[slo_index].sum(axis=0)[None]
    return exp(grids.ratio_quantiles(all_blocks, slo.q)[0])
