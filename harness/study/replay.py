"""The search again, offline: from windows and records to the same levels and the same answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.measure.evidence import Evidence, Window, gather, pool
from harness.measure.search import Done
from harness.study.controller import Step, search

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.judge import Judgement
    from harness.measure.search import SearchPlan
    from harness.measure.table import RecordTable


@dataclass(frozen=True, slots=True)
class Logged:
    """What steps.jsonl says of a step: its window, and why it was not used ('' if it was)."""

    window: Window
    invalid: str
    decision: str  # as it was taken then


@dataclass(frozen=True, slots=True)
class Replay:
    """Steps gathered again, the search's end, and where it went another way than it had."""

    steps: list[Step]
    done: Done
    differences: list[str]


def replay(
    plan: SearchPlan, logged: Sequence[Logged], table: RecordTable, *, searched: bool = True
) -> Replay:
    """Gather and judge each window again and ask the search at each turn.

    `searched` False: the levels were given (`run`, `sweep`), so no search is asked.
    """
    steps: list[Step] = []
    differences: list[str] = []
    began = logged[0].window.chosen_ns if logged else 0
    for entry in logged:
        window = entry.window
        if searched and window.purpose != "down":  # "down" follows a hard failure, not the search
            used = [s.evidence for s in steps if not s.invalid]
            action = search(plan, used, window.chosen_ns - began)
            if isinstance(action, Done) or action.users != window.users:
                differences.append(f"step {window.index} held {window.users}, now {action}")
        step = Step(window, *_judged(plan, steps, window, table), entry.invalid)
        if step.judgement.decision != entry.decision and not entry.invalid:
            differences.append(
                f"step {window.index} was {entry.decision}, now {step.judgement.decision}"
            )
        steps.append(step)
    spent = logged[-1].window.judged_ns - began if logged else 0
    if not searched:
        return Replay(steps, Done("held", None), differences)
    end = search(plan, [s.evidence for s in steps if not s.invalid], spent)
    done = end if isinstance(end, Done) else Done("undecided", None)
    return Replay(steps, done, differences)


def _judged(
    plan: SearchPlan, before: Sequence[Step], window: Window, table: RecordTable
) -> tuple[Evidence, Judgement]:
    seen = table.select(table.done_ns >= window.settled_ns).until(window.end_ns)
    evidence = gather(seen, window, plan.slos)
    same = [s.evidence for s in before if s.window.users == window.users and not s.invalid]
    return evidence, plan.judge(pool([*same, evidence]))
