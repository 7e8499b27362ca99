"""`vllm-harness run` and `sweep`: hold given levels, judge each, search nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.search.next_level import Done, Hold, SearchPlan
from harness.measure.states import Purpose, Status, StopRule
from harness.study.study_options import RATE_STEP_PER_S
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.study.experiment import Wanted
    from harness.study.level_state import ChooseNext, HeldLevel
    from harness.study.study_options import RunOptions

SLACK_NS = 3600 * SECOND  # a held level ends by its own time, not by a budget


def given(options: RunOptions) -> list[Hold]:
    """The levels in the order of the run. Repeats take turns, so that a drift meets all alike."""
    length, batch = options.duration_ns or 0, options.load.batch
    stop = StopRule.time if length else StopRule.batch if batch else StopRule.requests
    one = Hold(1, Purpose.sequential, stop, length, batch or options.requests or 0)
    purpose = Purpose.batch if batch else Purpose.hold
    once = [one] * bool(batch) + [replace(one, users=n, purpose=purpose) for n in options.users]
    return once * options.repeats


def in_turn(holds: Sequence[Hold]) -> ChooseNext:
    """Hold each once: a level that proves invalid is not held again."""

    def choose(_plan: SearchPlan, levels: Sequence[HeldLevel], _spent_ns: int) -> Hold | Done:
        return holds[len(levels)] if len(levels) < len(holds) else Done(Status.measured, None)

    return choose


def wanted_levels(options: RunOptions) -> Wanted:
    """The experiment that holds them."""
    from harness.study.experiment import Wanted  # noqa: PLC0415 - Locust: levels need none

    kind, users, holds = options.command, options.users, given(options)
    step = RATE_STEP_PER_S if options.load.arrivals else 0.0
    plan = SearchPlan(
        slos=options.slos,
        min_users=min(users),
        max_users=max(users),
        budget_ns=sum(hold.max_ns for hold in holds) + SLACK_NS,
        max_errors=options.max_errors,
        seed=options.load.seed,
        rate_step_per_s=step,
    )
    most, n_levels = max(users), len(holds)
    return Wanted(kind, options.target, options.load, options.output, plan, most, n_levels)
