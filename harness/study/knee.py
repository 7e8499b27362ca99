"""`vllm-harness knee`: find the largest number of users within every SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import EXIT_OK
from harness.measure.search import SearchPlan
from harness.study.experiment import Wanted, ready
from harness.study.session import conduct, said_to
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.study.options import KneeOptions
    from harness.study.session import Front


def plan_of(options: KneeOptions) -> SearchPlan:
    """The search that the options ask for."""
    return SearchPlan(
        slos=options.slos,
        min_users=options.min_users,
        max_users=options.max_users,
        budget_ns=options.budget_ns,
        max_errors=options.max_errors,
        seed=options.load.seed,
    )


def run_knee(options: KneeOptions, front: Front) -> int:
    """The exit code. Raises HarnessError before any load is sent."""
    plan = plan_of(options)
    wanted = Wanted("knee", options.target, options.load, options.output, plan, options.max_users)
    with ready(wanted) as (url, known):
        if options.dry_run:
            said_to(options.output).write(dry_run(options, plan, known.model))
            return EXIT_OK
        return conduct(wanted, url, known, front, plan_users=options.plan_users)


def climb(plan: SearchPlan) -> list[int]:
    """The levels of the way up, if none of them is bad."""
    levels = [plan.min_users]
    while levels[-1] < plan.max_users:
        levels.append(min(levels[-1] * 2, plan.max_users))
    return levels


def dry_run(options: KneeOptions, plan: SearchPlan, model: str) -> str:
    """What would be done: levels, tokens, minutes at most."""
    work = options.load.workload
    each = work.prompt.mean + work.output.mean
    slos = " and ".join(str(slo) for slo in plan.slos) or "none: the power knee"
    lines = [
        f"Would measure {model} with workload {work.name}, about {work.prompt.mean} prompt tokens",
        f"and {work.output.mean} output tokens a request ({each} in all).",
        f"SLO: {slos}; at most {plan.max_errors:.1%} of requests may fail.",
        f"Levels on the way up: {', '.join(map(str, climb(plan)))} users, until one is bad;",
        "then halving between the last good and the first bad one until 5 % or one user is left,",
        "then both ends again.",
        f"Ends after {say_ns(plan.budget_ns)} of load at the latest, and a minute to drain.",
        f"Results would go to {options.output.out_dir}. Nothing was sent but the probe.",
    ]
    return "\n".join(lines) + "\n"
