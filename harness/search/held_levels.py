"""Given levels (`run`, `sweep`, `locust`): held in turn, one planned analysis of each after it."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING

from harness.core.states import WORST_FIRST, Status, Verdict
from harness.metrics.result import Level, Result, SloResult
from harness.search.decide import ERROR_RATE, counts_of, decide
from harness.search.next_level import Done, Hold, SearchPlan

if TYPE_CHECKING:
    from harness.metrics.evidence import Window
    from harness.search.decide import SloCounts
    from harness.search.level_state import ChooseNext, HeldLevel
    from harness.search.replay import LevelTokenStats, RunTokenStats


def in_turn(holds: Sequence[Hold]) -> ChooseNext:
    """Hold each once: a level that proves invalid is not held again."""

    def choose(_plan: SearchPlan, levels: Sequence[HeldLevel], _spent_ns: int) -> Hold | Done:
        if len(levels) < len(holds):
            return holds[len(levels)]
        return Done(Status.measured, None)

    return choose


def judge_given_levels(
    base: Result, plan: SearchPlan, levels: Sequence[Level], counted: RunTokenStats, ended: str
) -> Result:
    """Judge each SLO at each level that may be used; the verdict is that of the worst of them.

    Without an SLO nothing is judged. An invalid level says nothing of the others: where some may be
    used, their findings stand, and the run is inconclusive at best. `ended` is the status at the
    end of the live run: if the target failed, that is the finding, even where an audit failed too.
    """
    if not plan.slos:
        status = _status_without_slos(base, levels, ended)
        return replace(base, status=status, levels=tuple(levels))
    judged_levels, failures = _judged_levels(plan, levels, counted)
    if levels:
        # Where no level may be used, what its figures say is shown, and not promised.
        shown_levels = [level for level in judged_levels if level.usable] or judged_levels
        by_slo = zip(*(level.slos for level in shown_levels), strict=True)
        slos = [max(results, key=_how_bad) for results in by_slo]
    else:  # nothing was sent
        slos = [SloResult(str(slo), Verdict.inconclusive, allowed=slo.allowed) for slo in plan.slos]
    # Few failures need no proof: only too many are a finding.
    missed = [result for result in failures if result.verdict == Verdict.missed]
    errors = max(missed, key=_how_bad, default=None)
    verdicts = {result.verdict for result in (*slos, *missed)}
    return replace(
        base,
        status=_status(base, levels, ended, verdicts),
        slos=tuple(slos),
        errors=errors,
        levels=tuple(judged_levels),
    )


def _status_without_slos(base: Result, levels: Sequence[Level], ended: str) -> Status:
    if ended == Status.target_failed:
        return Status.target_failed
    if _none_usable(base, levels):
        return Status.invalid
    if base.kind.has_phases or _all_usable(levels):  # a drill judges its expectations one by one
        return Status.measured
    return Status.inconclusive


def _status(
    base: Result, levels: Sequence[Level], ended: str, verdicts: AbstractSet[Verdict]
) -> Status:
    """`verdicts`: on each SLO, and on failures if they are too many."""
    target_failed = ended == Status.target_failed
    unusable = _none_usable(base, levels)
    if Verdict.missed in verdicts and (target_failed or not unusable):
        return Status.missed
    if target_failed:
        return Status.target_failed
    if unusable:
        return Status.invalid
    if verdicts == {Verdict.met} and _all_usable(levels):
        return Status.met
    return Status.inconclusive


def _none_usable(base: Result, levels: Sequence[Level]) -> bool:
    if base.invalid_reason:
        return True
    return bool(levels) and not any(level.usable for level in levels)


def _all_usable(levels: Sequence[Level]) -> bool:
    return all(level.usable for level in levels)


def _judged_levels(
    plan: SearchPlan, levels: Sequence[Level], counted: RunTokenStats
) -> tuple[list[Level], list[SloResult]]:
    """The levels with a verdict on each SLO, and one on the failures of each.

    One analysis of all levels that may be used, as its error rate is that of all of them together;
    of all levels where none may be used.
    """
    if any(level.usable for level in levels):
        are_judged = [level.usable for level in levels]
    else:
        are_judged = [True] * len(levels)
    held_levels = zip(are_judged, counted.levels.items(), strict=True)
    counts = [
        count_level(plan, window, held) for is_judged, (window, held) in held_levels if is_judged
    ]
    decisions = iter(decide(counts))
    levels_with_verdicts = []
    failures = []
    for is_judged, level in zip(are_judged, levels, strict=True):
        if not is_judged:
            levels_with_verdicts.append(level)
            continue
        decision = next(decisions)
        by_slo = zip(decision.slos, plan.slos, strict=True)
        slos = [_at_level(result, level, level.observed(slo)) for result, slo in by_slo]
        levels_with_verdicts.append(replace(level, slos=tuple(slos)))
        failures.append(_at_level(decision.errors, level))
    return levels_with_verdicts, failures


def count_level(plan: SearchPlan, window: Window, held: LevelTokenStats) -> list[SloCounts]:
    """The counts of each SLO and, last, of failures, of a level that was held to its end."""
    return counts_of(
        held.table,
        window,
        plan.slos,
        plan.max_errors,
        judged=held.judged,
        gaps=held.tokens.gaps,
    )


def _at_level(result: SloResult, level: Level, observed: float = nan) -> SloResult:
    """The result with its level, and what was observed there."""
    verdict = result.verdict
    if level.unstable and verdict == Verdict.met:  # only as long as it was held
        verdict = Verdict.inconclusive
    name = result.slo
    if name == ERROR_RATE:  # as asked for: max_errors=1%
        name = f"max_errors={result.allowed:.4%}".rstrip("0%").rstrip(".") + "%"
    return replace(
        result,
        slo=name,
        verdict=verdict,
        observed=observed,
        users=level.users,
        rate_per_s=level.rate_per_s,
    )


def _how_bad(result: SloResult) -> tuple[int, float]:
    share_over = result.n_over / result.n if result.n else inf
    return -WORST_FIRST.index(result.verdict), share_over
