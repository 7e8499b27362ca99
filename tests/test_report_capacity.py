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
         ["Each replica holds 48, so 2,000 users need R = ceil(2,000 / 48) = 42 replicas."]),
        (51, (50, 52), 2000, "found",  # exactly 40
         ["Each replica holds 50, so 2,000 users need R = ceil(2,000 / 50) = 40 replicas."]),
        (51, (48, 52), 48, "found",
         ["Each replica holds 48, so 48 users need R = ceil(48 / 48) = 1 replica."]),
        (51, (48, 52), None, "found",
         ["Each replica holds 48, so U users need R = ceil(U / 48) replicas."]),
        (1, (0, 2), 2000, "found", []),  # an interval that reaches 0 promises nothing
        (None, (4, 64), 2000, "inconclusive", []),
        (None, (64, 64), 2000, "not_reached",  # a bound: the knee lies higher
         [("Each replica holds at least 64, so 2,000 users need at most R = ceil(2,000 / 64) = "
           "32 replicas.")]),
        (None, (64, 64), None, "not_reached", []),
    ],
)  # fmt: skip
def test_replicas(users, ci95, planned, status, want):
    """Only a knee that was found says what a replica holds, and by its cautious end."""
    assert explanation(facts(users, ci95, planned, status)) == want


TWO_GPUS = "Each server of 2 GPUs holds 48, so"
TWO_SERVERS = "Each group of 2 servers holds 48, so"


def test_a_power_knee_holds_nothing() -> None:
    """Without an SLO nothing was promised."""
    found = facts(51, (48, 52), None, "found")
    power = replace(found, result=replace(found.result, slos=()))
    best_at = "Each replica is best at 48, so U users need R = ceil(U / 48) replicas."
    assert explanation(power) == [best_at]


@pytest.mark.parametrize(
    ("target", "planned", "want"),
    [
        (Target(gpus=1), None, "Each replica holds 48, so U users need R = ceil(U / 48) replicas."),
        # tensor or data parallel
        (
            Target(gpus=2),
            None,
            f"{TWO_GPUS} U users need R = ceil(U / 48) servers.",
        ),
        (
            Target(gpus=2),
            100,
            f"{TWO_GPUS} 100 users need R = ceil(100 / 48) = 3 servers (6 GPUs).",
        ),
        # behind a balancer, measured as one
        (
            Target(servers=2, gpus=4),
            100,
            f"{TWO_SERVERS} 100 users need R = ceil(100 / 48) = 3 groups (12 GPUs).",
        ),
        (
            Target(servers=2),
            None,
            f"{TWO_SERVERS} U users need R = ceil(U / 48) groups.",
        ),
    ],
)
def test_what_a_replica_is(target: Target, planned: int | None, want: str) -> None:
    """What was measured, as a whole: all engines and GPUs of a server, all servers of a target."""
    assert explanation(facts(51, (48, 52), planned, "found", target)) == [want]
