"""`vllm-harness run` and `sweep`: hold given levels, judge each, search nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.search.next_level import Done, Hold, SearchPlan
from harness.measure.states import Purpose, Status, StopRule
from harness.study.conduct import conduct
from harness.study.experiment import Wanted
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.server.probe import Capabilities
    from harness.study.conduct import Front
    from harness.study.level_state import ChooseNext, HeldLevel
    from harness.study.study_options import RunOptions

SLACK_NS = 3600 * SECOND  # a held level ends by its own time, not by a budget


def levels(users: Sequence[int], duration_ns: int | None, requests: int | None) -> ChooseNext:
    """Hold each of `users` in turn, once: a level that proves invalid is not held again."""

    def choose(_plan: SearchPlan, levels: Sequence[HeldLevel], _spent_ns: int) -> Hold | Done:
        if len(levels) == len(users):
            return Done(Status.measured, None)
        level = users[len(levels)]
        if duration_ns is not None:
            return Hold(level, Purpose.hold, StopRule.time, max_ns=duration_ns)
        return Hold(level, Purpose.hold, StopRule.requests, max_requests=requests or 1)

    return choose


def run_levels(options: RunOptions, url: str, known: Capabilities, front: Front) -> int:
    """The exit code of `run` and of `sweep`, for a target that is checked."""
    kind, users, length = options.command, options.users, options.duration_ns or 0
    plan = SearchPlan(
        slos=options.slos,
        min_users=min(users),
        max_users=max(users),
        budget_ns=length * len(users) + SLACK_NS,
        max_errors=options.max_errors,
        seed=options.load.seed,
    )
    most, n_levels = max(users), len(users)
    wanted = Wanted(kind, options.target, options.load, options.output, plan, most, n_levels)
    choose = levels(users, options.duration_ns, options.requests)
    return conduct(wanted, url, known, front, choose=choose)
