"""A fleet's sums: answers known by hand, and engines in simulated time that do what they promise.

The engine is an 8B model on an H100 with 16 slots and requests of 128 and 32 tokens. Its true knee
for a p95 TTFT of 500 ms is 35 users (`python -m lab.true_knee`), at 48 requests/s.
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

import numpy as np
import pytest
from fleet_model import Fleet, Replica, hpa_replicas
from simulated_sizing import ENGINE, FLEETS, KNEE, LIMIT_MS, RAMPS, REQUESTS_PER_S, TRAFFIC
from stored_statistics import stored

from harness.capacity.sizing import (
    busy_requests,
    cost_per_million_tokens,
    prefill_speed,
    replicas_for,
    requests_in_flight,
    threshold_with_lead,
)
from harness.engine.config import EngineConfig
from harness.engine.shapes import MODELS, roofline
from harness.memory.cards import GPUS
from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable

RESPONSE_S = KNEE / REQUESTS_PER_S


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (requests_in_flight(2000, 0.5), 2000),  # without pauses each user has one
        (requests_in_flight(2000, 0.5, 9.5), 100),  # N R / (R + Z) = 2,000 x 0.5 / 10
        (busy_requests(100, 0.0), 100),
        (busy_requests(100, 0.75), 100 + 1.645 * 75**0.5),  # binomial: N p (1 - p)
        (busy_requests(100, 1.0), 100 + 1.645 * 10),  # Poisson: its variance is its mean
        (replicas_for(2000, 48), 42),
        (replicas_for(2000, 50), 40),
        (replicas_for(2000, 48, survive=2), 44),
        (replicas_for(0.3 * 3, 0.9), 1),  # 0.9000000000000001 / 0.9 is one
        (replicas_for(0, 48, survive=1), 2),  # one at least
        (cost_per_million_tokens(3.6, 1000), 1.0),  # 3.6 / 3,600 s per 1,000 tokens
        (threshold_with_lead(44, 0), 40),  # 40 x 1.1
        (threshold_with_lead(35, 9), 23),  # (35 - 9) / 1.1 = 23.6
        (threshold_with_lead(35, 90), -50),  # one replica cannot hold what comes
        (threshold_with_lead(35, 90, replicas=10), 23),  # ten share it: 9 each
        (hpa_replicas(2, 84, 40), 2),  # 1.05: within the tolerance
        (hpa_replicas(2, 90, 40), 3),
        (hpa_replicas(3, 70, 40), 2),
        (hpa_replicas(3, 0, 40), 1),
    ],
)
def test_known_answers(got: float, want: float) -> None:
    """Little's law, failures to survive, money, leads and what Kubernetes makes of them."""
    assert got == pytest.approx(want)


def seen(engine: EngineConfig, traffic: Traffic) -> tuple[float, float, float]:
    """The speed of prefill by the records of 40 s with 4 users and 40 s with 8."""
    loop = ClosedLoop(engine, traffic, 1)
    for users in (4, 8):
        loop.set_users(users)
        loop.advance(loop.now_ns + 40 * SECOND)
    table = loop.table(0, loop.now_ns)
    table = table.select(table.counts > 0)
    return prefill_speed(table.prompt_tokens, table.sent_ns, table.at_ns[table.offsets[:-1]])


@pytest.mark.parametrize(
    ("model", "gpu", "prompt_tokens"),
    [
        ("llama-3.1-8b", "h100", 2048),
        ("qwen2.5-1.5b", "h200", 1024),
        ("qwen2.5-14b", "a100", 1024),
    ],
)
def test_prefill_speed(model: str, gpu: str, prompt_tokens: int) -> None:
    """Within 3% of what the engine's own time for a prompt token makes."""
    engine = EngineConfig(model=model, gpu=gpu, max_model_len=16384)
    true = 1e9 / roofline(MODELS[model], GPUS[gpu]).token_ns
    speed, low, high = seen(engine, Traffic(prompt_tokens, 64, 0.5, 16384))
    assert speed == pytest.approx(true, rel=0.03)
    assert speed / 1.05 < low < speed < high < speed * 1.06


@pytest.mark.parametrize(
    ("prompt_tokens", "variation"),
    [
        (128, 0.5),  # reading the weights takes longer than computing 295 tokens
        (512, 0.5),  # half of them are shorter than that: the halves disagree
        (2048, 0.0),  # all alike
    ],
)
def test_prefill_speed_is_not_known(prompt_tokens: int, variation: float) -> None:
    """Rather than wrong."""
    speed, _, _ = seen(EngineConfig(), Traffic(prompt_tokens, 64, variation))
    assert isnan(speed)


def test_prefill_speed_of_nothing() -> None:
    """And of requests that all waited together."""
    assert isnan(prefill_speed([], [], [])[0])
    ones = np.arange(1, 100)
    assert isnan(prefill_speed(ones * 10, ones, ones + 1000)[0])


def p95_ms(fleet: Fleet, seconds: int = 80) -> float:
    """Of the TTFT, after 20 s."""
    fleet.advance(seconds * SECOND)
    return fleet.seen.ttft_ms(0.95, 20 * SECOND)


@pytest.mark.parametrize(("choose", "users", "think_s", "holds"), FLEETS)
def test_the_p95_of_a_fleet(choose: str, users: int, think_s: float, holds: bool) -> None:
    """Four replicas: the p95 of all requests, not only their mean, is within the SLO."""
    busy = busy_requests(
        requests_in_flight(users, RESPONSE_S, think_s), think_s / (RESPONSE_S + think_s)
    )
    by_sum = replicas_for(busy, KNEE) <= 4
    p95, median = stored("fleets")[choose, users, think_s]
    assert (p95 <= LIMIT_MS) == holds
    assert (by_sum and choose == "least") == holds
    assert median < LIMIT_MS  # the median shows nothing


@pytest.mark.parametrize("choose", ["least", "random"])
def test_the_p95_of_a_rate(choose: str) -> None:
    """Poisson arrivals on two replicas: 70 in the busiest 5% of the time means 78.8 per second."""
    rate_per_s = 78.8
    busy = busy_requests(rate_per_s * RESPONSE_S, 1.0)
    fleet = Fleet(ENGINE, TRAFFIC, 2, choose=choose)
    fleet.arrive(rate_per_s, 80)
    assert replicas_for(busy, KNEE) == 2
    assert p95_ms(fleet) < LIMIT_MS


@pytest.mark.parametrize("survive", [0, 1])
def test_a_replica_that_fails(survive: int) -> None:
    """Of the replicas for 70 users one is lost after 40 s: with one to spare the p95 holds."""
    replicas = replicas_for(2 * KNEE, KNEE, survive)
    fleet = Fleet(ENGINE, TRAFFIC, replicas)
    fleet.set_users(2 * KNEE)
    fleet.advance(40 * SECOND)
    fleet.replicas[0].ready_ns = 1 << 62
    fleet.advance(80 * SECOND)
    assert (fleet.seen.ttft_ms(0.95, 45 * SECOND) < LIMIT_MS) == (survive == 1)


@pytest.mark.parametrize(("target", "replicas", "holds"), RAMPS)
def test_a_ramp_to_twice_the_knee(target: float, replicas: int, holds: bool) -> None:
    """KEDA's formula on scrapes and syncs of 15 s; a replica takes half a minute to start."""
    asked, worst_ms = stored("ramps")[target]
    assert asked == replicas
    assert (worst_ms <= LIMIT_MS) == holds


def queued_tokens(replica: Replica) -> int:
    """What vLLM compares with --max-num-queued-tokens: whole prompts without a first token."""
    engine = replica.engine
    return sum(x.prompt_tokens for x in (*engine.waiting, *engine.prefilling.values()))


SERVED = 128 * REQUESTS_PER_S  # prompt tokens/s at the knee
MEAN_OF_P95 = 399 / 482  # of the TTFT at the knee


@pytest.mark.parametrize(
    ("admit", "holds"),
    [
        (lambda _: True, False),
        # what `rules --form admission` gives
        (
            lambda one: one.in_flight < KNEE and queued_tokens(one) < 0.5 * MEAN_OF_P95 * SERVED,
            True,
        ),
        # vLLM's formula: the mean is 500 ms, the p95 is not
        (lambda one: queued_tokens(one) < 0.5 * SERVED, False),
        # with the GPU's own speed, of which decoding leaves a sixth
        (lambda one: queued_tokens(one) < 0.5 * 36_949, False),
    ],
)
def test_admission(admit: Callable[[Replica], bool], holds: bool) -> None:
    """Twice the rate of the knee: what is admitted keeps its p95, and no throughput is lost."""
    fleet = Fleet(ENGINE, TRAFFIC, 1, admit=admit)
    fleet.arrive(2 * REQUESTS_PER_S, 80)
    assert (p95_ms(fleet) <= LIMIT_MS) == holds
    if holds:
        answered = sum(1 for sent, _ in fleet.seen.ttft if sent >= 20 * SECOND) / 60
        assert answered == pytest.approx(REQUESTS_PER_S, rel=0.02)
