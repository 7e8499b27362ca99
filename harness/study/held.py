"""Levels that were given (`run`, `sweep`, `locust`): one planned look at each when all is over."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.decide import ERRORS, counts_of, decide
from harness.measure.evidence import Window
from harness.measure.result import SloResult
from harness.measure.states import WORST_FIRST, Decision, Purpose, Status, Verdict
from harness.study.controller import BUSY_SHARE, TURNOVERS
from harness.study.replay import Logged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.result import Level, Result
    from harness.measure.search import SearchPlan
    from harness.measure.table import RecordTable
    from harness.study.counted import Counted

LOCUST: Final = "locust"  # the kind of a run that the `locust` command made


def held_by_locust(table: RecordTable) -> list[Logged]:
    """The one level of a run that the `locust` command made, as far as its records show it.

    The level begins when nearly all users are busy; it has settled when two requests per user have
    ended since, as under our own controller; it ends when the last request was sent.
    """
    if not len(table):
        return []
    sent, done = np.sort(table.sent_ns), np.sort(table.done_ns)
    busy = np.arange(1, len(sent) + 1) - np.searchsorted(done, sent, "right")
    users = int(busy.max())
    ramped = int(sent[np.argmax(busy >= BUSY_SHARE * users)])
    since = done[done > ramped]
    settled = int(since[TURNOVERS * users - 1]) if len(since) >= TURNOVERS * users else ramped
    first, last = int(sent[0]), max(int(sent[-1]), settled)
    window = Window(0, users, Purpose.hold, first, ramped, settled, last, last)
    return [Logged(window, "", Decision.held, audited=False)]


def judged(
    told: Result, plan: SearchPlan, levels: Sequence[Level], counted: Counted, ended: str
) -> Result:
    """Each SLO of each level, and the run's word on it: that of the level where it fares worst.

    Without an SLO nothing is judged. `ended`: the status that the live run ended with; where the
    target failed, that is the finding, whatever else does not add up.
    """
    status, gave_up = Status.invalid, ended == Status.target_failed
    usable = gave_up or (not told.invalid_reason and all(level.usable for level in levels))
    if not plan.slos:
        if gave_up:
            status = Status.target_failed
        elif usable:
            status = Status.measured
        return replace(told, status=status, levels=tuple(levels))
    steps = list(counted.steps.items())
    decided = decide(
        [
            counts_of(
                step.table,
                window,
                plan.slos,
                plan.max_errors,
                judged=step.judged,
                gaps=step.tokens.gaps,
            )
            for window, step in steps
        ]
    )
    said, failures = [], []
    for level, found in zip(levels, decided, strict=True):
        slos = [
            _said(one, level, level.observed(slo))
            for one, slo in zip(found.slos, plan.slos, strict=True)
        ]
        said.append(replace(level, slos=tuple(slos)))
        failures.append(_said(found.errors, level))
    by_slo = zip(*(level.slos for level in said), strict=True)
    slos = [max(results, key=_how_bad) for results in by_slo]
    if not levels:  # nothing was sent
        slos = [SloResult(str(slo), Verdict.inconclusive, allowed=slo.allowed) for slo in plan.slos]
    # few failures need not be shown: only too many are a finding
    missed = [one for one in failures if one.verdict == Verdict.missed]
    errors = max(missed, key=_how_bad, default=None)
    verdicts = {one.verdict for one in (*slos, *missed)}
    if usable and Verdict.missed in verdicts:
        status = Status.missed
    elif gave_up:
        status = Status.target_failed
    elif usable:
        met = {one.verdict for one in slos} == {Verdict.met}
        status = Status.met if met else Status.inconclusive
    return replace(told, status=status, slos=tuple(slos), errors=errors, levels=tuple(said))


def _said(found: SloResult, level: Level, observed: float = nan) -> SloResult:
    name = f"max_errors={found.allowed:.4%}".rstrip("0%").rstrip(".") + "%"
    name = name if found.slo == ERRORS else found.slo
    return replace(found, slo=name, observed=observed, users=level.users)


def _how_bad(one: SloResult) -> tuple[int, float]:
    return -WORST_FIRST.index(one.verdict), one.n_over / one.n if one.n else inf
