"""What to hold next: the search, or whatever else a run is given to choose by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from harness.measure.power import next_power_action
from harness.measure.search import Done, Hold, SearchPlan, next_action
from harness.measure.states import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Evidence
    from harness.study.controller import Step

INVALID_TWICE: Final = 2  # steps of one level: the next would be too


class Choice(Protocol):
    """What to hold next, from the plan, the evidence so far and the time spent (ns)."""

    def __call__(
        self, plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int, /
    ) -> Hold | Done:
        """Deterministic in its arguments."""


def search(plan: SearchPlan, evidences: Sequence[Evidence], spent_ns: int) -> Hold | Done:
    """The next action: by the SLOs, or by power where there are none."""
    return (next_action if plan.slos else next_power_action)(plan, evidences, spent_ns)


def unless_invalid(action: Hold | Done, steps: Sequence[Step]) -> Hold | Done:
    """`action`, unless the answer hangs on a level whose steps cannot be used: then it is invalid.

    That is so where the search asks for a level that was invalid twice running, or ends without an
    answer right after a step that was.
    """
    last = steps[-INVALID_TWICE:]
    if isinstance(action, Done):
        lacking = action.status == Status.inconclusive and bool(last) and bool(last[-1].invalid)
        return Done(Status.invalid, None) if lacking else action
    twice = len(last) == INVALID_TWICE and all(
        s.invalid and s.window.users == action.users for s in last
    )
    return Done(Status.invalid, None) if twice else action
