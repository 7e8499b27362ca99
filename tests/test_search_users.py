"""Users with think time and sessions in simulated time: their knees, their hits, their audits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from measure_tables import window
from planned_users import PlannedUsers
from simulated_truths import SEEDS
from simulated_users import KINDS, known_truths
from stored_statistics import stored

from harness.core.states import Status
from harness.diagnosis.audit import (
    KV_BLOCK_TOKENS,
    apply_littles_law,
    audit_sentence,
    prefix_hits,
)
from harness.engine.config import EngineConfig
from harness.load.lengths import Lengths
from harness.load.workloads import WORKLOADS, Workload
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.metrics.level_figures import PrefixHits

CONTEXT = 8192


def close(users: int | None, true: int) -> bool:
    """Within 5% or one user; no estimate is a miss."""
    return users is not None and abs(users - true) <= max(1, 0.05 * true)


def check(kind: str, answers: dict[int, list[Any]], figure: Callable[[str], None]) -> None:
    """The estimate is within 5% or one user in 95%; the interval covers in 90%.

    What is promised then does hold in 95%, but for one.
    """
    truths = known_truths(kind)
    n = len(answers)
    hits = []
    covers = 0
    n_found = 0
    promised = {}
    for seed, (status, users, low, high, holds) in answers.items():
        if close(users, truths[seed]):
            hits.append(seed)
        covers += low <= truths[seed] <= high
        n_found += status == Status.found
        if status in {Status.found, Status.holds}:
            promised[seed] = holds
    kept = sum(holds <= truths[s] for s, holds in promised.items())
    figure(
        f"knee of {kind} users within 5% or one user of the truth: {len(hits) / n:.1%} of {n}; "
        f"interval covers {covers / n:.1%}; found in {n_found}; "
        f"{kept} of {len(promised)} promises hold"
    )
    assert len(hits) >= 0.95 * n
    assert covers >= 0.90 * n
    assert kept >= 0.95 * len(promised) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_knee_over_all_configurations(kind: str, figure: Callable[[str], None]) -> None:
    """As `make statistics` has stored them."""
    answers = stored(kind)
    assert list(answers) == list(known_truths(kind))
    check(kind, answers, figure)


@pytest.mark.parametrize(("kind", "seed"), [(kind, seed) for kind in KINDS for seed in SEEDS[kind]])
def test_the_stored_truths_are_those_of_this_engine(kind: str, seed: int) -> None:
    """A change of the engine or of the plan that moves a true knee is noticed."""
    assert stored("truths")[kind, seed] == known_truths(kind)[seed]


def held(
    workload: Workload, users: int, seed: int = 1, **engine: Any
) -> tuple[PlannedUsers, PrefixHits | None, str]:
    """Four minutes at a level: the loop, the hits of the last three, and what an audit says."""
    workload = replace(workload, max_model_len=CONTEXT)
    loop = PlannedUsers(EngineConfig(**engine), workload, seed)
    samples = []
    loop.set_users(users)
    for second in range(1, 241):
        loop.advance(second * SECOND)
        samples.append(loop.sample())
    span = window(users, 60, 240)
    table = loop.table(span.settled_ns, span.end_ns)
    said = audit_sentence(table, span, samples, workload.system_tokens)
    law = apply_littles_law(table, span)
    assert abs(law.error) < 0.05
    shared = workload.system_tokens, KV_BLOCK_TOKENS
    return loop, prefix_hits(table, span, samples, shared), said


def policy(name: str, **changes: Any) -> Workload:
    """A workload with sessions of another kind."""
    talk = WORKLOADS[name].conversation
    assert talk is not None
    return replace(WORKLOADS[name], conversation=replace(talk, **changes))


@pytest.mark.parametrize("users", [3, 40])
@pytest.mark.parametrize(
    "workload",
    [
        WORKLOADS["conversation"],
        WORKLOADS["agent"],
        policy("agent", history="last:2"),
        policy("conversation", history="budget:600"),
        policy("conversation", session_budget=4000),
        replace(WORKLOADS["conversation"], think_ms=None),
    ],
)
def test_expected_hits_are_those_of_the_cache(workload: Workload, users: int) -> None:
    """Within a block a request while nothing is evicted, and no level is thrown out."""
    _, hits, said = held(workload, users, max_num_seqs=64)
    assert said == ""
    assert hits is not None
    assert hits.requests > 50
    # requests sent just before a scrape are looked up after it
    edges = 2 * hits.expected / hits.requests
    assert abs(hits.counted - hits.expected) <= KV_BLOCK_TOKENS * hits.requests + edges


def test_fewer_hits_under_pressure_are_no_fault() -> None:
    """A cache too small for all histories: less than expected, and the level counts."""
    loop, hits, said = held(WORKLOADS["agent"], 40, max_num_seqs=64, num_gpu_blocks=2000)
    assert said == ""
    assert hits is not None
    assert 0 < hits.counted < 0.8 * hits.expected
    assert loop.engine.kv.total == 2000


@pytest.mark.parametrize("think_ms", [Lengths("fixed", 3000), Lengths("lognormal", 10_000, 1.0)])
def test_think_time_is_no_idle_client(think_ms: Lengths) -> None:
    """Little's law has it in it, and without sessions there are no hits to expect."""
    _, hits, said = held(replace(WORKLOADS["chat"], think_ms=think_ms), 24)
    assert hits is None
    assert said == ""
