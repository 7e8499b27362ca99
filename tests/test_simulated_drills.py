"""The drills that ship, judged over 20 seeds in simulated time, beside what is true."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from simulated_drill import (
    DRILLS,
    SEEDS,
    TRUTH_SEEDS,
    drill_of,
    in_simulated_time,
    loads,
    truths,
)
from simulated_fleet import Client, Fault, Phase, SimulatedDrill, Stream, simulate
from stored_statistics import stored

from harness.core.states import Verdict
from harness.metrics.metrics import ttft
from harness.records.record_table import OUTCOME_CODE
from harness.units import SECOND

JUDGED = stored("drills")
COUNTED = stored("drill_truths")
OTHER = {Verdict.met: Verdict.missed, Verdict.missed: Verdict.met}


def expectations(name: str, times: float) -> list[tuple[str, Verdict, list[Verdict]]]:
    """Of each expectation of a drill: its name, what is true, what each seed is judged."""
    drill = drill_of(name, times)
    true = truths(drill, [COUNTED[name, times, seed] for seed in TRUTH_SEEDS])
    each = zip(*(JUDGED[name, times, seed] for seed in SEEDS), strict=True)
    return [
        (expected.name, verdict, [Verdict(one) for one in said])
        for expected, verdict, said in zip(drill.expectations, true, each, strict=True)
    ]


def test_no_expectation_is_judged_wrong() -> None:
    """Neither of the drills as they ship, nor of two that fail; at most one is inconclusive."""
    wrong = []
    open_ones = []
    for name, times in loads():
        for expected, true, said in expectations(name, times):
            wrong += [(name, expected)] * said.count(OTHER[true])
            if times == 1:
                assert true == Verdict.met, (name, expected)
                open_ones += [expected] * said.count(Verdict.inconclusive)
    assert wrong == []
    assert len(open_ones) <= 1


def test_drills_that_fail_are_seen_to() -> None:
    """Where one replica cannot hold the load, every seed says so."""
    judged = expectations("replica-death", 4)
    (said,) = (said for name, _, said in judged if "after kill" in name)
    assert said == [Verdict.missed] * len(SEEDS)


def faulty(*faults: Fault, **client: float) -> dict[str, Any]:
    """One minute of 20 requests a second, with faults at second 20 to 30."""
    phase = Phase("all", 60, (Stream(20),))
    drill = SimulatedDrill((phase,), faults, Client(**client), drain_s=60)
    seen = simulate(drill, 1)
    table = seen.table
    ms = ttft(table).ns / 1e6
    meanwhile = (table.sent_ns >= 20 * SECOND) & (table.sent_ns < 30 * SECOND)
    failed = {}
    for name, code in OUTCOME_CODE.items():
        count = int((table.outcome == code).sum())
        if name != "ok" and count:
            failed[name] = count
    slowest_ms = float(ms[meanwhile].max())
    others_ms = float(ms[~meanwhile].max())
    return {
        "failed": failed,
        "slowest": round(slowest_ms / 1000, 1),
        "others": round(others_ms / 1000, 1),
    }


# requests take 0.2 s, so about two are under way in each replica
FAULTS = {
    "none": ((), {}, {"failed": {}, "slowest": 0.0, "others": 0.0}),
    "killed": ((Fault("kill", 20, 10),), {}, {"failed": {"truncated": 3}}),
    "paused": ((Fault("pause", 20, 10),), {}, {"failed": {}, "slowest": 10.0}),
    "paused, and clients give up": (
        (Fault("pause", 20, 10),),
        {"timeout_s": 5},
        {"others": 0.0},
    ),
    "cut off": ((Fault("cut", 20, 10),), {}, {"failed": {}, "slowest": 10.0}),
    "slow": ((Fault("slow", 20, 10, factor=5),), {}, {"failed": {}, "slowest": 0.1}),
    "both killed": (
        (Fault("kill", 20, 10), Fault("kill", 20, 10, replica=1)),
        {},
        {"slowest": inf},
    ),
}


@pytest.mark.parametrize(("faults", "client", "want"), FAULTS.values(), ids=FAULTS)
def test_faults(faults: tuple[Fault, ...], client: dict[str, float], want: dict[str, Any]) -> None:
    """What a fault does to requests that are sent while it lasts, and to no others."""
    got = faulty(*faults, **client)
    assert {key: got[key] for key in want} == want


def test_a_drill_in_simulated_time_has_the_load_of_its_plan() -> None:
    """Bursts, and the prompts of others."""
    loads = {}
    for path in DRILLS:
        phases = in_simulated_time(drill_of(path.stem)).phases
        loads[path.stem] = []
        for phase in phases:
            rates = [round(stream.rate_per_s, 2) for stream in phase.streams]
            loads[path.stem].append((phase.seconds, rates))
    assert loads["retry-storm"] == [(30, [6]), (8, [42]), (7, [6]), (35, [6])]
    assert loads["long-prompts"][1] == (18, [10, round(60 / 18, 2)])
