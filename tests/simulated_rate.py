"""Searches for a rate in simulated time, on engines whose knee is known by formula.

An engine with one slot and fixed lengths serves Poisson arrivals as an M/D/1 queue: each request
takes the same time S, and Erlang's formula says how many wait longer than t.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, factorial, floor
from typing import TYPE_CHECKING

from open_loop import OpenLoop

from harness.engine.config import EngineConfig
from harness.load.plan import seeded_random
from harness.measure.search.next_level import SearchPlan
from harness.measure.slo import Slo
from harness.simulator.closed_loop import Traffic
from harness.study.controller import KneeController
from harness.study.knee_estimate import KneeEstimate, estimate_knee
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.study.level_state import HeldLevel

SEEDS = range(100)
STEP_PER_S = 0.01
BUDGET_NS = 3600 * SECOND  # holds of three minutes: 1,500 to 6,000 requests near the knee
TRAFFIC = Traffic(16, 2, 0.0)  # a prompt in one step, then one token: two steps of the engine


@dataclass(frozen=True)
class Server:
    """An engine with one slot, and an SLO on the time to the first token."""

    engine: EngineConfig
    slo: Slo
    service_ns: float
    first_ns: float  # of it, until the first token

    def met(self, rate_per_s: float) -> float:
        """The share of the requests that wait no longer than the SLO leaves (Erlang's M/D/1)."""
        rate, wait = rate_per_s / SECOND, self.slo.limit_ns - self.first_ns
        busy = rate * self.service_ns
        if busy >= 1:
            return 0.0
        terms = (
            rate * (k * self.service_ns - wait) for k in range(floor(wait / self.service_ns) + 1)
        )
        return (1 - busy) * sum(x**k / factorial(k) * exp(-x) for k, x in enumerate(terms))

    @property
    def knee_per_s(self) -> float:
        """The highest rate at which enough of them do."""
        low, high = 0.0, SECOND / self.service_ns
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self.met(middle) >= 1 - self.slo.allowed else (low, middle)
            )
        return low


def server(seed: int) -> Server:
    """Service times of 10 to 40 ms, limits of 2 to 5 of them, and p90 or p95."""
    draw = seeded_random("rate", seed)
    engine = EngineConfig(max_num_seqs=1, jitter=0.0, time_scale=draw.uniform(0.5, 2.0))
    loop = OpenLoop(engine, TRAFFIC, seed, arrivals="constant")
    loop.set_rate(0, 1.0)
    loop.advance(3 * SECOND)
    alone = loop.table(0, loop.now_ns)
    service = float((alone.done_ns - alone.sent_ns)[0])
    limit_ms = draw.uniform(2, 5) * service / MS
    slo = Slo.parse(f"ttft_{draw.choice(['p90', 'p95'])}={limit_ms:.3f}ms")
    return Server(engine, slo, service, float(alone.at_ns[0] - alone.sent_ns[0]))


def search(case: Server, seed: int) -> tuple[KneeEstimate, list[HeldLevel]]:
    """`knee --load rate` from 1/s with an hour's budget, ticked once a simulated second."""
    plan = SearchPlan(
        (case.slo,),
        min_users=100,
        max_users=51_200,
        budget_ns=BUDGET_NS,
        seed=seed,
        rate_step_per_s=STEP_PER_S,
    )
    loop = OpenLoop(case.engine, TRAFFIC, seed)
    controller = KneeController(plan, loop)
    tick_ns = 0
    while True:
        tick_ns += SECOND
        loop.advance(tick_ns)
        target = controller.tick(loop.now_ns, 1, loop.sample())
        if target.done:
            assert controller.result is not None
            return estimate_knee(plan, controller.levels, controller.result), controller.levels
        assert target.pace is not None
        loop.set_rate(*target.pace)


def found_rate(seed: int) -> KneeEstimate:
    """The answer for one seed, in steps of the rate."""
    return search(server(seed), seed)[0]


def known_rates() -> dict[int, float]:
    """Seed -> the knee in requests per second, by the formula."""
    return {seed: server(seed).knee_per_s for seed in SEEDS}
