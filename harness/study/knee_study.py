"""`vllm-harness knee`: find the largest number of users within every SLO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.search.next_level import SearchPlan
from harness.study.conduct import conduct
from harness.study.experiment import Wanted
from harness.study.study_options import RATE_STEP_PER_S

if TYPE_CHECKING:
    from harness.server.probe import Capabilities
    from harness.study.conduct import Front
    from harness.study.study_options import KneeOptions


def plan_of(options: KneeOptions) -> SearchPlan:
    """The search that the options ask for."""
    return SearchPlan(
        slos=options.slos,
        min_users=options.min_users,
        max_users=options.max_users,
        budget_ns=options.budget_ns,
        max_errors=options.max_errors,
        seed=options.load.seed,
        rate_step_per_s=RATE_STEP_PER_S if options.load.arrivals else 0.0,
    )


def run_knee(options: KneeOptions, url: str, known: Capabilities, front: Front) -> int:
    """The exit code, for a target that is checked."""
    plan = plan_of(options)
    wanted = Wanted(
        "knee",
        options.target,
        options.load,
        options.output,
        plan,
        options.max_users,
        plan_users=options.plan_users,
        at_least=options.at_least,
        baseline=str(options.baseline or ""),
        tolerance=options.tolerance,
    )
    return conduct(wanted, url, known, front)
