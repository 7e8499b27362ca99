"""Searches for a rate in simulated time, on engines whose knee is known by formula.

An engine with one slot and fixed lengths serves Poisson arrivals as an M/D/1 queue: each request
takes the same time S, and Erlang's formula says how many wait longer than t.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, factorial, floor
from typing import TYPE_CHECKING, Any

from open_loop import OpenLoop

from harness.core.load import REQUESTS_PER_S, Rate
from harness.core.states import Purpose
from harness.engine.config import EngineConfig
from harness.load.plan import seeded_random
from harness.metrics.evidence import Window, backlog_growth
from harness.metrics.slo import Slo
from harness.search.controller import KneeController
from harness.search.knee_estimate import KneeEstimate, estimate_knee
from harness.search.next_level import SearchPlan
from harness.units import MS, SECOND
from lab.closed_loop import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.record_table import RecordTable
    from harness.search.level_state import HeldLevel

SEEDS = range(100)
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
        unit=REQUESTS_PER_S,
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


def answer(seed: int) -> list[Any]:
    """Status, knee, the ends of its interval, what is promised: in steps of the rate."""
    found, _ = search(server(seed), seed)
    return [found.status, found.count, found.lo, found.hi, found.holds]


def cases() -> Iterator[tuple[int]]:
    """Each seed."""
    return ((seed,) for seed in SEEDS)


def known_rates() -> dict[int, float]:
    """Seed -> the knee in requests per second, by the formula."""
    return {seed: server(seed).knee_per_s for seed in SEEDS}


def window(rate_per_s: float, start_ns: int, end_ns: int) -> Window:
    """Of a level that is held at a rate."""
    at = (start_ns, start_ns, start_ns, end_ns, end_ns)
    return Window(0, Rate(rate_per_s), Purpose.hold, *at)


def held(
    seed: int, share: float, arrivals: str, seconds: int, slower: float = 1.0
) -> tuple[RecordTable, Window]:
    """A level at a share of the capacity of an engine, after a warm-up of ten seconds.

    `slower`: the engine in its place takes so many times as long.
    """
    case = server(seed)
    rate = round(share * SECOND / case.service_ns, 2)
    engine = replace(case.engine, time_scale=case.engine.time_scale * slower)
    loop = OpenLoop(engine, TRAFFIC, seed, arrivals=arrivals)
    loop.set_rate(0, rate)
    end = (10 + seconds) * SECOND
    loop.advance(end)
    return loop.table(0, end), window(rate, 10 * SECOND, end)


# shares of the capacity with their arrivals, and of 20 seeds the fewest and the most unstable ones
BACKLOGS = [
    (0.5, "poisson", 0, 0),
    (0.8, "poisson", 0, 0),
    (0.9, "gamma:2", 0, 1),  # bursts at 90%: long queues that come and go
    (0.99, "constant", 0, 0),
    (1.05, "constant", 20, 20),
    (1.1, "poisson", 13, 20),
    (1.3, "poisson", 20, 20),
    (2.0, "gamma:2", 20, 20),
]


def backlog(share: float, arrivals: str, seed: int) -> list[Any]:
    """Of a level of 30 s: whether it is unstable, and the growth as a share of the rate."""
    table, level = held(seed, share, arrivals, 30)
    growth, unstable = backlog_growth(table, level)
    return [bool(unstable), growth / level.load.rate_per_s]


def backlog_cases() -> Iterator[tuple[float, str, int]]:
    """20 seeds of each."""
    return ((share, arrivals, seed) for share, arrivals, *_ in BACKLOGS for seed in range(20))
