"""Replay of a search: from the windows and records to the same levels and the same answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.measure.search.evidence import Evidence, Window, gather_evidence, pool_evidence
from harness.measure.search.judge import Judgement
from harness.measure.search.next_level import Done, SearchPlan
from harness.measure.states import Decision, Purpose, Status
from harness.study.controller import HARD_FAILED
from harness.study.level_state import HeldLevel, next_level

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.study.token_stats import RunTokenStats


@dataclass(frozen=True, slots=True)
class LoggedLevel:
    """A line of levels.jsonl: the window of a level, and why it is invalid ('' if it is valid)."""

    window: Window
    invalid: str
    decision: str  # as the live run took it
    audited: bool = True  # False: the audit has not run yet
    reason: str = ""  # for the decision


@dataclass(frozen=True, slots=True)
class Replay:
    """The recomputed levels, the end of the search, and how it differs from the live run."""

    levels: list[HeldLevel]
    done: Done
    differences: list[str]


def replay(
    plan: SearchPlan,
    logged: Sequence[LoggedLevel],
    counted: RunTokenStats,
    *,
    searched: bool = True,
    audit: Callable[[Window], str] | None = None,
) -> Replay:
    """Recompute the evidence and decision of each window, and ask the search at each turn.

    `counted` has the windows of `logged`; `audit` returns why a level that was not audited yet is
    invalid. `searched` is False if the levels were given (`run`, `sweep`).
    """
    levels: list[HeldLevel] = []
    differences: list[str] = []
    began = logged[0].window.chosen_ns if logged else 0
    for entry in logged:
        window = entry.window
        # A level of purpose `down` was chosen by the controller after a hard failure, not by the
        # search.
        if searched and window.purpose != Purpose.down:
            action = next_level(plan, levels, window.chosen_ns - began)
            if isinstance(action, Done) or action.users != window.users:
                now = (
                    f"it would have ended as {action.status}"
                    if isinstance(action, Done)
                    else f"it would hold {action.users}"
                )
                differences.append(
                    f"level {window.index + 1} held {window.users} users; by the records {now}"
                )
        invalid = entry.invalid if entry.audited or audit is None else audit(window)
        evidence, judgement = _judged(plan, levels, window, counted)
        if entry.decision == Decision.held:  # its SLOs are judged by held_levels.py
            judgement = Judgement(Decision.held, "", leans_to_fail=False)
        if entry.reason == HARD_FAILED:  # decided live, from the few requests of ten seconds
            judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        level = HeldLevel(window, evidence, judgement, invalid)
        if entry.decision != level.judgement.decision and not invalid:
            differences.append(
                f"level {window.index + 1} was {entry.decision}; the records say "
                f"{level.judgement.decision}"
            )
        levels.append(level)
    spent = logged[-1].window.judged_ns - began if logged else 0
    if not searched:
        return Replay(levels, Done(Status.measured, None), differences)
    # If the search would go on, the live run was cut short by its budget or an interrupt.
    end = next_level(plan, levels, spent)
    done = end if isinstance(end, Done) else Done(Status.inconclusive, None)
    return Replay(levels, done, differences)


def _judged(
    plan: SearchPlan, before: Sequence[HeldLevel], window: Window, counted: RunTokenStats
) -> tuple[Evidence, Judgement]:
    level = counted.levels[window]
    evidence = gather_evidence(level.known, window, plan.slos, level.judged)
    same = [s.evidence for s in before if s.window.users == window.users and not s.invalid]
    return evidence, plan.judge(pool_evidence([*same, evidence]))
