"""Fleets in simulated time: four replicas under many users, and a ramp that an autoscaler follows.

The engine is an 8B model on an H100 with 16 slots and requests of 128 and 32 tokens. Its true knee
for a p95 TTFT of 500 ms is 35 users (`python -m lab.true_knee`), at 48 requests/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_model import Fleet, hpa_replicas

from harness.capacity.sizing import threshold_with_lead
from harness.engine.config import EngineConfig
from harness.units import SECOND
from lab.closed_loop import Traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE, TRAFFIC = EngineConfig(max_num_seqs=16), Traffic(128, 32, 0.4)
KNEE, REQUESTS_PER_S, LIMIT_MS = 35, 48.0, 500
# how a replica is chosen, users, think time, whether the p95 is within the SLO
FLEETS = [
    ("least", 4 * KNEE, 0.0, True),
    ("round", 4 * KNEE, 0.0, False),  # as many for each on average, and queues by chance
    ("random", 4 * KNEE, 0.0, False),
    # N R / (R + Z) = 140 in flight on average; the busiest 5% of the time have 19 more
    ("least", 2060, 10.0, False),
    # 121 on average, 140 in the busiest 5%
    ("least", 1781, 10.0, True),
]


def fleet_ms(choose: str, users: int, think_s: float) -> list[float]:
    """The TTFT of four replicas from 20 s to 80 s: its p95 and its median."""
    fleet = Fleet(ENGINE, TRAFFIC, 4, choose=choose, think_s=think_s)
    fleet.set_users(users, round((think_s + 1) * SECOND))
    fleet.advance(80 * SECOND)
    return [fleet.seen.ttft_ms(q, 20 * SECOND) for q in (0.95, 0.5)]


def fleet_cases() -> Iterator[tuple[str, int, float]]:
    """Each of FLEETS."""
    return ((choose, users, think_s) for choose, users, think_s, _ in FLEETS)


START_S, SCRAPE_S, SYNC_S, GROWTH_PER_S = 30, 15, 15, 0.2
LEAD = GROWTH_PER_S * (START_S + SCRAPE_S + SYNC_S)


# the autoscaler's target, the replicas that it asks for, whether the worst minute is within the SLO
RAMPS = [
    (threshold_with_lead(KNEE, LEAD), 4, True),  # 20: it acts at 22, 34 when it is ready
    (KNEE, 2, False),  # it acts at 38
]


def ramp(target: float) -> tuple[int, float]:
    """From 18 users to 70, twice the knee: replicas asked for, the worst minute's p95."""
    fleet, asked, scraped = Fleet(ENGINE, TRAFFIC, 1), 1, 0
    end_s = 20 + round((2 * KNEE - 18) / GROWTH_PER_S) + 60
    for second in range(end_s):
        fleet.set_users(min(18 + round(max(second - 20, 0) * GROWTH_PER_S), 2 * KNEE))
        fleet.advance(second * SECOND)
        if second % SCRAPE_S == 5:
            scraped = fleet.in_flight
        if (
            target
            and second % SYNC_S == 0
            and (want := hpa_replicas(asked, scraped, target)) > asked
        ):
            for _ in range(want - asked):
                fleet.add_replica((second + START_S) * SECOND)
            asked = want
    minutes = range(20, end_s - 59, 15)
    worst = max(fleet.seen.ttft_ms(0.95, x * SECOND, (x + 60) * SECOND) for x in minutes)
    return asked, worst


def ramp_cases() -> Iterator[tuple[float]]:
    """Each of RAMPS."""
    return ((target,) for target, *_ in RAMPS)
