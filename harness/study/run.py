"""`vllm-harness run` and `sweep`: hold given levels, judge each, search nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import EXIT_OK
from harness.measure.search import Done, Hold, SearchPlan
from harness.measure.states import Purpose, Status
from harness.study.experiment import Wanted, ready
from harness.study.session import conduct, said_to
from harness.units import SECOND, say_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.evidence import Evidence
    from harness.study.choosing import Choice
    from harness.study.options import RunOptions, SweepOptions
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


def run_level(options: RunOptions, front: Front) -> int:
    """The exit code of `run`. Raises HarnessError before any load is sent."""
    return _hold("run", options, (options.users,), front)


def run_sweep(options: SweepOptions, front: Front) -> int:
    """The exit code of `sweep`. Raises HarnessError before any load is sent."""
    return _hold("sweep", options, options.users, front)


def _hold(
    kind: str, options: RunOptions | SweepOptions, users: tuple[int, ...], front: Front
) -> int:
    length = options.duration_ns or 0
    plan = SearchPlan(
        slos=options.slos,
        min_users=min(users),
        max_users=max(users),
        budget_ns=length * len(users) + SLACK_NS,
        max_errors=options.max_errors,
        seed=options.load.seed,
    )
    most, levels_ = max(users), len(users)
    wanted = Wanted(kind, options.target, options.load, options.output, plan, most, levels_)
    with ready(wanted) as (url, known):
        if options.dry_run:
            each = say_ns(length) if length else f"{options.requests} requests"
            said_to(options.output).write(
                f"Would hold {', '.join(map(str, users))} users of {known.model} for {each} each "
                f"and write {options.output.out_dir}. Nothing was sent but the probe.\n"
            )
            return EXIT_OK
        choose = levels(users, options.duration_ns, options.requests)
        return conduct(wanted, url, known, front, choose=choose)
