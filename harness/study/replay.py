"""The search again, offline: from windows and records to the same levels and the same answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.measure.evidence import Evidence, Window, gather, pool
from harness.measure.judge import Judgement
from harness.measure.search import Done
from harness.measure.states import Decision, Purpose, Status
from harness.study.choosing import search, unless_invalid
from harness.study.controller import HARD_FAILED, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.search import SearchPlan
    from harness.study.counted import Counted


@dataclass(frozen=True, slots=True)
class Logged:
    """What steps.jsonl says of a step: its window, and why it was not used ('' if it was)."""

    window: Window
    invalid: str
    decision: str  # as it was taken then
    audited: bool = True  # False: `invalid` is still to be found out
    reason: str = ""  # of the decision


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps gathered again, the search's end, and where it went another way than it had."""

    steps: list[Step]
    done: Done
    differences: list[str]


def replay(
    plan: SearchPlan,
    logged: Sequence[Logged],
    counted: Counted,
    *,
    searched: bool = True,
    audit: Callable[[Window], str] | None = None,
) -> Replay:
    """Gather and judge each window again and ask the search at each turn.

    `counted` has the windows of `logged`; `audit` says why a step that was not audited yet must not
    be used.

    `searched` False: the levels were given (`run`, `sweep`), so no search is asked.
    """
    steps: list[Step] = []
    differences: list[str] = []
    began = logged[0].window.chosen_ns if logged else 0
    for entry in logged:
        window = entry.window
        if searched and window.purpose != Purpose.down:
            used = [s.evidence for s in steps if not s.invalid]
            action = search(plan, used, window.chosen_ns - began)
            if isinstance(action, Done) or action.users != window.users:
                now = (
                    f"it would have ended as {action.status}"
                    if isinstance(action, Done)
                    else f"it would hold {action.users}"
                )
                differences.append(
                    f"step {window.index + 1} held {window.users} users; by the records {now}"
                )
        invalid = entry.invalid if entry.audited or audit is None else audit(window)
        evidence, judgement = _judged(plan, steps, window, counted)
        if entry.reason == HARD_FAILED:  # a few of slow requests are enough for that
            judgement = Judgement(Decision.failed, HARD_FAILED, leans_to_fail=True)
        step = Step(window, evidence, judgement, invalid)
        if entry.decision not in (Decision.held, step.judgement.decision) and not invalid:
            differences.append(
                f"step {window.index + 1} was {entry.decision}; by the records it is "
                f"{step.judgement.decision}"
            )
        steps.append(step)
    spent = logged[-1].window.judged_ns - began if logged else 0
    if not searched:
        return Replay(steps, Done(Status.measured, None), differences)
    end = unless_invalid(search(plan, [s.evidence for s in steps if not s.invalid], spent), steps)
    done = end if isinstance(end, Done) else Done(Status.inconclusive, None)
    return Replay(steps, done, differences)


def _judged(
    plan: SearchPlan, before: Sequence[Step], window: Window, counted: Counted
) -> tuple[Evidence, Judgement]:
    step = counted.steps[window]
    evidence = gather(step.known, window, plan.slos, step.judged)
    same = [s.evidence for s in before if s.window.users == window.users and not s.invalid]
    return evidence, plan.judge(pool([*same, evidence]))
