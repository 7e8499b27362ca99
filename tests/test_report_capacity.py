"""How many replicas that makes: the sentence under the answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.core.states import Status, Verdict
from harness.metrics.result import Knee, Result, SloResult, Target
from harness.records.folder_reader import Damage, Run
from harness.records.record_table import concat_tables
from harness.report.answer import explanation
from harness.report.report_data import ReportData

if TYPE_CHECKING:
    from collections.abc import Sequence


def facts(
    users: int | None,
    ci95: Sequence[int],
    planned: int | None,
    status: str,
    target: Target = Target(),  # noqa: B008 - frozen
) -> ReportData:
    """A finished search that was asked for `planned` users."""
    holds = (ci95[0] or None) if status == "not_reached" else None
    knee = Knee(holds=holds, estimate=users, ci95=tuple(ci95))
    info = {"config": {"plan_users": planned}}
    run = Run(Path(), info, concat_tables([]), [], [], [], [], [], Damage())
    slos = (SloResult("e2e_p95=9s", Verdict.met),)
    return ReportData(run, Result(status=Status(status), target=target, knee=knee, slos=slos))


@pytest.mark.parametrize(
    ("users", "ci95", "planned", "status", "want"),
    [
        # by the interval's lower end: 2,000 / 48 = 41.7
        (51, (48, 52), 2000, "found",
         ["Each replica holds 48, so 2,000 users need 42 replicas (2,000 / 48, rounded up)."]),
        (51, (50, 52), 2000, "found",  # exactly 40
         ["Each replica holds 50, so 2,000 users need 40 replicas (2,000 / 50, rounded up)."]),
        (51, (48, 52), 48, "found",
         ["Each replica holds 48, so 48 users need 1 replica (48 / 48, rounded up)."]),
        (51, (48, 52), None, "found",
         ["Each replica holds 48: U concurrent requests need U / 48 replicas, rounded up."]),
        (1, (0, 2), 2000, "found", []),  # an interval that reaches 0 promises nothing
        (None, (4, 64), 2000, "inconclusive", []),
        (None, (64, 64), 2000, "not_reached",  # a bound: the knee lies higher
         [("Each replica holds at least 64, so 2,000 users need at most 32 replicas "
           "(2,000 / 64, rounded up).")]),
        (None, (64, 64), None, "not_reached", []),
    ],
)  # fmt: skip
def test_replicas(users, ci95, planned, status, want):
    """Only a knee that was found says what a replica holds, and by its cautious end."""
    assert explanation(facts(users, ci95, planned, status)) == want


def test_a_power_knee_holds_nothing() -> None:
    """Without an SLO nothing was promised."""
    found = facts(51, (48, 52), None, "found")
    power = replace(found, result=replace(found.result, slos=()))
    best_at = "Each replica is best at 48: U concurrent requests need U / 48 replicas, rounded up."
    assert explanation(power) == [best_at]


@pytest.mark.parametrize(
    ("target", "planned", "want"),
    [
        (Target(gpus=1), None, "replica holds 48: U concurrent requests need U / 48 replicas"),
        # tensor or data parallel
        (
            Target(gpus=2),
            None,
            "server of 2 GPUs holds 48: U concurrent requests need U / 48 servers",
        ),
        (
            Target(gpus=2),
            100,
            "server of 2 GPUs holds 48, so 100 users need 3 servers with 6 GPUs (100 / 48",
        ),
        # behind a balancer, measured as one
        (
            Target(servers=2, gpus=4),
            100,
            "group of 2 servers holds 48, so 100 users need 3 groups with 12 GPUs (100 / 48",
        ),
        (
            Target(servers=2),
            None,
            "group of 2 servers holds 48: U concurrent requests need U / 48 groups",
        ),
    ],
)
def test_what_a_replica_is(target: Target, planned: int | None, want: str) -> None:
    """What was measured, as a whole: all engines and GPUs of a server, all servers of a target."""
    (said,) = explanation(facts(51, (48, 52), planned, "found", target))
    assert said.startswith(f"Each {want}, rounded up")
