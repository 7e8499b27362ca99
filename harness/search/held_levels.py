"""Given levels (`run`, `sweep`, `locust`): held in turn, one planned analysis of each after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Final

from harness.core.states import WORST_FIRST, Status, Verdict
from harness.metrics.result import Level, Result, SloResult
from harness.search.decide import ERROR_RATE, counts_of, decide
from harness.search.next_level import Done, Hold, SearchPlan

if TYPE_CHECKING:
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.replay import RunTokenStats

LOCUST: Final = "locust"  # the kind of a run by `vllm-harness locust`
DRILL: Final = "drill"


def in_turn(holds: Sequence[Hold]) -> ChooseNext:
    """Hold each once: a level that proves invalid is not held again."""

    def choose(_plan: SearchPlan, levels: Sequence[HeldLevel], _spent_ns: int) -> Hold | Done:
        return holds[len(levels)] if len(levels) < len(holds) else Done(Status.measured, None)

    return choose


def judge_given_levels(
    base: Result, plan: SearchPlan, levels: Sequence[Level], counted: RunTokenStats, ended: str
) -> Result:
    """Judge each SLO at each level that may be used; the verdict is that of the worst of them.

    Without an SLO nothing is judged. An invalid level says nothing of the others: where some may be
    used, their findings stand, and the run is inconclusive at best. `ended` is the status at the
    end of the live run: if the target failed, that is the finding, even where an audit failed too.
    """
    target_failed = ended == Status.target_failed
    used = [level for level in levels if level.usable]
    unusable = bool(base.invalid_reason) or (bool(levels) and not used)
    whole = len(used) == len(levels)
    if not plan.slos:
        if target_failed:
            status = Status.target_failed
        elif unusable:
            status = Status.invalid
        elif whole or base.command == DRILL:  # which judges its expectations one by one
            status = Status.measured
        else:
            status = Status.inconclusive
        return replace(base, status=status, levels=tuple(levels))
    judged_levels, failures = _judged_levels(plan, levels, counted)
    # Where no level may be used, what its figures say is shown, and not promised.
    asked = [level for level in judged_levels if level.usable] or judged_levels
    by_slo = zip(*(level.slos for level in asked), strict=True)
    slos = [max(results, key=_how_bad) for results in by_slo]
    if not levels:  # nothing was sent
        slos = [SloResult(str(slo), Verdict.inconclusive, allowed=slo.allowed) for slo in plan.slos]
    # Few failures need no proof: only too many are a finding.
    missed = [one for one in failures if one.verdict == Verdict.missed]
    errors = max(missed, key=_how_bad, default=None)
    shown_missed = Verdict.missed in {one.verdict for one in (*slos, *missed)}
    all_met = {one.verdict for one in slos} == {Verdict.met}
    if shown_missed and (target_failed or not unusable):
        status = Status.missed
    elif target_failed:
        status = Status.target_failed
    elif unusable:
        status = Status.invalid
    else:
        status = Status.met if all_met and whole else Status.inconclusive
    return replace(
        base, status=status, slos=tuple(slos), errors=errors, levels=tuple(judged_levels)
    )


def _judged_levels(
    plan: SearchPlan, levels: Sequence[Level], counted: RunTokenStats
) -> tuple[list[Level], list[SloResult]]:
    """The levels with a verdict on each SLO, and one on the failures of each.

    One analysis of all levels that may be used, as its error rate is that of all of them together;
    of all levels where none may be used.
    """
    only_used = any(level.usable for level in levels)
    judged = [level.usable or not only_used for level in levels]
    counts = [
        counts_of(
            held.table,
            window,
            plan.slos,
            plan.max_errors,
            judged=held.judged,
            gaps=held.tokens.gaps,
        )
        for use, (window, held) in zip(judged, counted.levels.items(), strict=True)
        if use
    ]
    decisions = iter(decide(counts))
    found, failures = [], []
    for use, level in zip(judged, levels, strict=True):
        if not use:
            found.append(level)
            continue
        decision = next(decisions)
        slos = [
            _said(one, level, level.observed(slo))
            for one, slo in zip(decision.slos, plan.slos, strict=True)
        ]
        found.append(replace(level, slos=tuple(slos)))
        failures.append(_said(decision.errors, level))
    return found, failures


def _said(found: SloResult, level: Level, observed: float = nan) -> SloResult:
    name = f"max_errors={found.allowed:.4%}".rstrip("0%").rstrip(".") + "%"
    name = name if found.slo == ERROR_RATE else found.slo
    if level.unstable and found.verdict == Verdict.met:  # only as long as it was held
        found = replace(found, verdict=Verdict.inconclusive)
    users, rate = level.users, level.rate_per_s
    return replace(found, slo=name, observed=observed, users=users, rate_per_s=rate)


def _how_bad(one: SloResult) -> tuple[int, float]:
    return -WORST_FIRST.index(one.verdict), one.n_over / one.n if one.n else inf
