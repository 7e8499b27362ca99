"""Given levels (`run`, `sweep`, `locust`): held in turn, one planned analysis of each after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.result import Level, Result, SloResult
from harness.measure.search.decide import ERROR_RATE, counts_of, decide
from harness.measure.search.evidence import Window
from harness.measure.search.next_level import Done, Hold, SearchPlan
from harness.measure.states import WORST_FIRST, Decision, Purpose, Status, Verdict
from harness.study.controller import BUSY_SHARE, TURNOVERS
from harness.study.replay import LoggedLevel, RunTokenStats

if TYPE_CHECKING:
    from harness.measure.records.record_table import RecordTable
    from harness.study.level_state import ChooseNext, HeldLevel

LOCUST: Final = "locust"  # the kind of a run by `vllm-harness locust`
DRILL: Final = "drill"


def in_turn(holds: Sequence[Hold]) -> ChooseNext:
    """Hold each once: a level that proves invalid is not held again."""

    def choose(_plan: SearchPlan, levels: Sequence[HeldLevel], _spent_ns: int) -> Hold | Done:
        return holds[len(levels)] if len(levels) < len(holds) else Done(Status.measured, None)

    return choose


def locust_levels(table: RecordTable) -> list[LoggedLevel]:
    """The single level of a run by `vllm-harness locust`, inferred from its records.

    It begins when nearly all users are busy, has settled when two requests per user have ended
    since (as in our own controller), and ends when the last request was sent.
    """
    if not len(table):
        return []
    sent, done = np.sort(table.sent_ns), np.sort(table.done_ns)
    # Users in flight or thinking just after each send: the sends so far minus the pauses over.
    over = np.sort(table.done_ns + table.think_ns.clip(min=0))
    busy = np.arange(1, len(sent) + 1) - np.searchsorted(over, sent, "right")
    users = int(busy.max())
    ramped = int(sent[np.argmax(busy >= BUSY_SHARE * users)])
    since = done[done > ramped]
    settled = int(since[TURNOVERS * users - 1]) if len(since) >= TURNOVERS * users else ramped
    first, last = int(sent[0]), max(int(sent[-1]), settled)
    window = Window(0, users, Purpose.hold, first, ramped, settled, last, last)
    return [LoggedLevel(window, "", Decision.held, audited=False)]


def judge_given_levels(
    base: Result, plan: SearchPlan, levels: Sequence[Level], counted: RunTokenStats, ended: str
) -> Result:
    """Judge each SLO at each level; the verdict of the run is that of the worst level.

    Without an SLO nothing is judged. `ended` is the status at the end of the live run: if the
    target failed, that is the finding, even where an audit failed too.
    """
    status, target_failed = Status.invalid, ended == Status.target_failed
    usable = target_failed or (not base.invalid_reason and all(level.usable for level in levels))
    if not plan.slos:
        if target_failed:
            status = Status.target_failed
        elif usable:
            status = Status.measured
        return replace(base, status=status, levels=tuple(levels))
    holds = list(counted.levels.items())
    decided = decide(
        [
            counts_of(
                held_level.table,
                window,
                plan.slos,
                plan.max_errors,
                judged=held_level.judged,
                gaps=held_level.tokens.gaps,
            )
            for window, held_level in holds
        ]
    )
    judged_levels, failures = [], []
    for level, decision in zip(levels, decided, strict=True):
        slos = [
            _said(one, level, level.observed(slo))
            for one, slo in zip(decision.slos, plan.slos, strict=True)
        ]
        judged_levels.append(replace(level, slos=tuple(slos)))
        failures.append(_said(decision.errors, level))
    by_slo = zip(*(level.slos for level in judged_levels), strict=True)
    slos = [max(results, key=_how_bad) for results in by_slo]
    if not levels:  # nothing was sent
        slos = [SloResult(str(slo), Verdict.inconclusive, allowed=slo.allowed) for slo in plan.slos]
    # Few failures need no proof: only too many are a finding.
    missed = [one for one in failures if one.verdict == Verdict.missed]
    errors = max(missed, key=_how_bad, default=None)
    verdicts = {one.verdict for one in (*slos, *missed)}
    if usable and Verdict.missed in verdicts:
        status = Status.missed
    elif target_failed:
        status = Status.target_failed
    elif usable:
        met = {one.verdict for one in slos} == {Verdict.met}
        status = Status.met if met else Status.inconclusive
    return replace(
        base, status=status, slos=tuple(slos), errors=errors, levels=tuple(judged_levels)
    )


def _said(found: SloResult, level: Level, observed: float = nan) -> SloResult:
    name = f"max_errors={found.allowed:.4%}".rstrip("0%").rstrip(".") + "%"
    name = name if found.slo == ERROR_RATE else found.slo
    if level.unstable and found.verdict == Verdict.met:  # only as long as it was held
        found = replace(found, verdict=Verdict.inconclusive)
    users, rate = level.users, level.rate_per_s
    return replace(found, slo=name, observed=observed, users=users, rate_per_s=rate)


def _how_bad(one: SloResult) -> tuple[int, float]:
    return -WORST_FIRST.index(one.verdict), one.n_over / one.n if one.n else inf
