"""The true knee of a configuration: long simulated runs at fixed users, with separate seeds.

A level runs until its criterion is many standard errors away from the limit, or for `longest_ns`.
The knee is the largest level, found by bisection, whose quantiles are within all limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.load import Users
from harness.core.states import Purpose
from harness.metrics.evidence import Evidence, Window, gather_evidence, pool_evidence, worst_ratio
from harness.metrics.statistics import resample_weights
from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.metrics.slo import Slo

CHUNK_NS: Final = 60 * SECOND
LONGEST_NS: Final = 2400 * SECOND
CERTAIN: Final = 5.0  # standard errors from the limit at which a level is decided
OWN_SEED: Final = 1_000_003  # searches use small seeds: the reference must not share their draws


@dataclass(frozen=True, slots=True)
class Truth:
    """The true knee, and log(quantile / limit) of each level that was run."""

    users: int  # 0: even the lowest level breaks an SLO
    levels: dict[int, float]


def worst_log_ratio(
    config: EngineConfig,
    traffic: Traffic,
    slos: Sequence[Slo],
    users: int,
    *,
    longest_ns: int = LONGEST_NS,
    start: Callable[[int], ClosedLoop] | None = None,
) -> float:
    """Return log(quantile / limit) of the worst SLO at `users`, in the long run.

    `start`: the users of a seed, in place of those of `traffic`.
    """
    seed = OWN_SEED + users
    loop = start(seed) if start else ClosedLoop(config, traffic, seed)
    loop.set_users(users)
    begin = warm_up(loop)
    gathered: list[Evidence] = []
    z = float("nan")
    while begin < longest_ns:
        loop.advance(begin + CHUNK_NS)
        now = loop.now_ns
        window = Window(0, Users(users), Purpose.hold, begin, begin, begin, now, now)
        gathered.append(gather_evidence(loop.table(begin, now), window, slos))
        begin = now
        joined = pool_evidence(gathered)
        z = float(worst_ratio(joined, slos)[0])
        draws = worst_ratio(joined, slos, resample_weights(joined.blocks, users, 60))
        error = float(np.nanstd(draws))
        if len(gathered) > 1 and abs(z) > CERTAIN * max(error, 1e-4):
            break
    return z


def warm_up(loop: ClosedLoop) -> int:
    """Run until users ended three requests on average, at least a minute; return the time."""
    begin = CHUNK_NS
    loop.advance(begin)
    while loop.sample().requests_total < 3 * loop.users and begin < LONGEST_NS:
        begin += CHUNK_NS
        loop.advance(begin)
    return loop.now_ns


def true_knee(
    config: EngineConfig,
    traffic: Traffic,
    slos: Sequence[Slo],
    *,
    min_users: int = 1,
    max_users: int = 512,
    longest_ns: int = LONGEST_NS,
    start: Callable[[int], ClosedLoop] | None = None,
) -> Truth:
    """Return the largest number of users that meets every SLO; `max_users` if all levels do."""
    levels: dict[int, float] = {}

    def good(users: int) -> bool:
        if users not in levels:
            levels[users] = worst_log_ratio(
                config, traffic, slos, users, longest_ns=longest_ns, start=start
            )
        return levels[users] <= 0

    low, high = min_users, min_users
    while good(high) and high < max_users:
        low, high = high, min(2 * high, max_users)
    if good(high) or high == min_users:
        return Truth(high if good(high) else 0, levels)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return Truth(low, levels)
