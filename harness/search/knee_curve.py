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
CLIFF_USERS: Final = 0.05  # a cliff: so many users more, at least one,
CLIFF_RISE: Final = 0.25  # raise the quantile by this share of its limit


def curve_slos(slos: Sequence[Slo]) -> tuple[Slo, ...]:
    """The SLOs whose limit is varied: those asked for, and TTFT and ITL."""
    return (*slos, *(one for one in ALSO if one.metric not in {slo.metric for slo in slos}))


def at_limit(slo: Slo, steps: int) -> Slo:
    """The SLO with a limit so many steps of the grid higher; 56 double it."""
    return replace(slo, limit_ns=round(slo.limit_ns * exp(steps * STEP))) if steps else slo


def evidence_at(
    seen: RecordSource, hold: grids.Window, counted: grids.EvidenceCounter, slo: Slo, steps: int
) -> Evidence:
    """What a hold shows about the SLO `at_limit`.

    Requests are looked at anew, as it depends on the limit which open ones are known to be over it.
    Gaps were counted by their ratio to the SLO's own limit; that count is moved along its grid.
    """
    if slo.metric not in GAPS:
        return gather_evidence(seen, hold, (at_limit(slo, steps),), counted)
    evidence = gather_evidence(seen, hold, (slo,), counted)
    place = np.clip(np.arange(grids.RATIO_BINS) - steps, 0, grids.RATIO_BINS - 1)
    place[-1] = grids.RATIO_BINS - 1  # gaps that never ended
    moved = np.zeros_like(evidence.grids[0])
    np.add.at(moved.T, place, evidence.grids[0].T)
    return replace(evidence, grids=(moved,))


def held_for(plan: SearchPlan, level: HeldLevel, evidence: Evidence) -> HeldLevel:
    """A hold as it is judged by the SLOs of `plan`, for which it was not held.

    One that ended early, as it missed its own SLO, does not show that it meets a wider one: queues
    were still filling. Taken as it was, 4 of 27 bands at twice the limit lay above the true knee.
    """
    own, judged = level.judgement, plan.judge(evidence)
    early = evidence.seconds * SECOND < GOOD_LIFETIMES * evidence.lifetime_ns
    early &= own.leans_to_fail and not judged.leans_to_fail
    judged = own if own.decision == Decision.held else judged
    invalid = level.invalid or TOO_SHORT * early
    return replace(level, evidence=evidence, judgement=judged, invalid=invalid)


def judged_by(plan: SearchPlan, run: Replay, counted: RunTokenStats, *, searched: bool) -> Replay:
    """The levels of a run by the SLOs of `plan`; where they were searched, the end by these."""
    levels = []
    for level in run.levels:
        of = counted.levels[level.window]
        evidence = gather_evidence(of.known, level.window, plan.slos, of.judged)
        levels.append(held_for(plan, level, evidence))
    used = [level.evidence for level in of_search(levels) if not level.invalid]
    end = next_action(plan, used, plan.budget_ns)  # nothing is left of its budget, so it ends
    return Replay(levels, end if searched and isinstance(end, Done) else run.done, [])


def knee_at(
    plan: SearchPlan, slo: Slo, held: Sequence[HeldLevel], evidences: Sequence[Evidence]
) -> KneeEstimate | None:
    """The knee of an SLO alone, by the evidence of each hold; None: it is not among the levels."""
    plan = replace(plan, slos=(slo,))
    levels = [held_for(plan, *each) for each in zip(held, evidences, strict=True)]
    found = estimate_knee(plan, levels, Done(Status.inconclusive, None))
    fitted = fit_levels([x.evidence for x in levels if not x.invalid], plan.slos, plan.max_errors)
    if found.users is None or found.hi >= max(level.window.users for level in levels):
        return None
    # Below the lowest level nothing was seen: if it has not passed, the knee may be anywhere there.
    lowest = fitted[0]
    shown = found.lo > lowest.users or plan.judge(lowest.evidence).decision == Decision.passed
    return found if shown else replace(found, lo=0)


def knee_curve(
    plan: SearchPlan,
    slo: Slo,
    held: Sequence[HeldLevel],
    levels: Sequence[Level],
    counted: RunTokenStats,
) -> KneeCurve:
    """From the lowest quantile at a level to the highest: beyond, none fails, or none passes."""
    held, own = [level for level in held if not level.invalid], slo in plan.slos
    seen = [one.observed(slo) / slo.limit for one in levels if one.usable]
    logs = [log(x) * (-1 if slo.speed else 1) / STEP for x in seen if 0 < x < inf] or [0.0]
    low, high = (int(np.clip(x, -MAX_STEPS, MAX_STEPS)) for x in (min(logs), max(logs)))
    points = []
    for n in sorted({*range(low, high + 1, max((high - low) // POINTS, 1)), *[0] * own}):
        of = [(level.window, counted.levels[level.window]) for level in held]
        at = [evidence_at(one.known, window, one.judged, slo, n) for window, one in of]
        if found := knee_at(plan, at_limit(slo, n), held, at):
            knee, lo, hi = map(plan.load_of, (found.users or 0, found.lo, found.hi))
            points.append((at_limit(slo, n).limit, knee, lo, hi))
    return KneeCurve(slo.name, slo.limit if own else nan, tuple(points))


def steepness(plan: SearchPlan, found: KneeEstimate, held: Sequence[HeldLevel]) -> dict[str, Any]:
    """How fast the worst SLO's quantile rises from the level that holds to the one that fails.

    Rather too fast, as each level was chosen for its side of the limit: in four of five of 45
    simulated knees it was 0.8 to 1.9 times the long-run rise, in the median 1.1.
    """
    used = [level.evidence for level in held if not level.invalid]
    levels = fit_levels(used, plan.slos, plan.max_errors)
    ends = [level for level in levels if level.users in (found.holds, found.fails_by)]
    rises: list[tuple[float, float, Slo]] = []
    for i, slo in enumerate(plan.slos if len(ends) == 2 else ()):  # noqa: PLR2004 - both are shown
        each = (end.evidence.grids[i].sum(axis=0)[None] for end in ends)
        low, high = (exp(grids.ratio_quantiles(grid, slo.q)[0]) for grid in each)
        rises += [(high, high - low, slo)] * (not slo.speed and high > low)
    if not rises:
        return {}
    worst, rise, slo = max(rises, key=lambda one: one[0])
    users = ends[1].users - ends[0].users
    step = max(1, CLIFF_USERS * ends[0].users) / users
    cliff = ends[1].evidence.unstable or rise * step >= CLIFF_RISE
    known = worst < 0.99 * exp(grids.LOG_SPAN)  # beyond lie failures too
    ms = rise * slo.limit_ns / MS / (plan.rate_of(users) or users) if known else nan
    return {"steepness": "cliff" if cliff else "slope", "rise_of": slo.name, "rise_ms": ms}
