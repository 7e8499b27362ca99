"""`vllm-harness run` and `sweep`: hold given levels, judge each, search nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.search import Done, Hold, SearchPlan
from harness.measure.states import Purpose, Status
from harness.study.experiment import Wanted
from harness.study.session import conduct
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Evidence
    from harness.server.probe import Capabilities
    from harness.study.choosing import Choice
    from harness.study.options import RunOptions
    from harness.study.session import Front

SLACK_NS = 3600 * SECOND  # a held level ends by its own time, not by a budget


def levels(users: Sequence[int], duration_ns: int | None, requests: int | None) -> Choice:
    """Hold each of `users` in turn, once: a level that proves invalid is not held again."""
    left = iter(users)

    def choose(_plan: SearchPlan, _evidences: Sequence[Evidence], _spent_ns: int) -> Hold | Done:
        level = next(left, None)
        if level is None:
            return Done(Status.measured, None)
        if duration_ns is not None:
            return Hold(level, Purpose.hold, "time", duration_ns)
        return Hold(level, Purpose.hold, "requests", requests or 1)

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
