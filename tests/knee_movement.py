"""How far the simulated knee moves when a resource is doubled: rough, fast, for comparison only.

A knee is where log(quantile / limit) crosses 0, interpolated between two levels at most 20% apart,
each held for some hundred requests on the same draws. Exact ones: lab/reference_knee.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, isnan, log
from typing import TYPE_CHECKING, Final

from planted_bottlenecks import RESOURCES

from harness.core.load import Users
from harness.core.states import Purpose
from harness.metrics.evidence import Window, gather_evidence, worst_ratio
from harness.units import SECOND
from lab.closed_loop import ClosedLoop

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from lab.engine_configurations import Configuration

OWN_SEED: Final = 2_000_003  # the levels that a verdict reads have other draws
REQUESTS: Final = {"ttft": 400, "itl": 200}  # ended in a level's window, in this time:
SHORTEST_NS: Final = 12 * SECOND
LONGEST_NS: Final = 60 * SECOND
NEAR: Final = 1.2  # levels so near to each other are interpolated
STRIDE: Final = 1.5
MOST: Final = 400  # users
FURTHEST: Final = 3.0  # a doubling that moves the knee further is not followed


@dataclass(slots=True)
class Knee:
    """Of one engine: log(quantile / limit) by users."""

    case: Configuration
    engine: EngineConfig
    levels: dict[int, float] = field(default_factory=dict)

    def at(self, users: int) -> float:
        """Held once."""
        if users not in self.levels:
            self.levels[users] = held(self.case, self.engine, users)
        return self.levels[users]

    def find(self, low: int, high: int, most: int) -> tuple[float, int, int]:
        """The knee in users, 0 below one user, at most `most`; the levels around it.

        It is looked for between `low` and `high` first, then around them.
        """
        while self.at(high) <= 0:
            if high >= most:
                return float(most), high, high
            low, high = high, min(max(int(high * STRIDE), high + 1), most)
        while self.at(low) > 0:
            if low == 1:
                return 0.0, low, high
            low, high = max(int(low / STRIDE), 1), low
        while high - low > 1 and high > NEAR * low:
            middle = min(max(round((low * high) ** 0.5), low + 1), high - 1)
            low, high = (middle, high) if self.at(middle) <= 0 else (low, middle)
        below, above = self.at(low), self.at(high)
        part = -below / (above - below) if above > below else 0.0
        return exp(log(low) + part * (log(high) - log(low))), low, high


def held(case: Configuration, engine: EngineConfig, users: int) -> float:
    """log(quantile / limit) of the worst SLO; far below where nothing was seen."""
    loop = ClosedLoop(engine, case.traffic, OWN_SEED + users)
    loop.set_users(users)
    begin = warm(loop, users)
    while True:
        loop.advance(loop.now_ns + SHORTEST_NS // 2)
        ended, length = loop.ended(begin, loop.now_ns)[0], loop.now_ns - begin
        enough = ended >= REQUESTS[case.slos[0].metric] and length >= SHORTEST_NS
        if enough or length >= LONGEST_NS:
            break
    window = Window(0, Users(users), Purpose.hold, begin, begin, begin, loop.now_ns, loop.now_ns)
    z = float(
        worst_ratio(gather_evidence(loop.table(begin, loop.now_ns), window, case.slos), case.slos)[
            0
        ]
    )
    return -9.0 if isnan(z) else z


def warm(loop: ClosedLoop, users: int) -> int:
    """Play until each user has ended two requests on average; the time."""
    while loop.sample().requests_total < 2 * users and loop.now_ns < LONGEST_NS:
        loop.advance(loop.now_ns + 2 * SECOND)
    return loop.now_ns


def movements(
    case: Configuration, least: float = 1.0, most: int = MOST
) -> tuple[float, dict[str, float]]:
    """(the knee in users, resource -> log of how far doubling it moves the knee).

    Nothing is doubled where the knee is not from `least` to `most`.
    """
    base = Knee(case, case.engine)
    users, low, high = base.find(8, 12, most + 1)
    if not least <= users <= most:
        return users, {}
    moved = {}
    for name, resource in RESOURCES.items():
        knee = Knee(case, resource.doubled(case.engine))
        if knee.at(high) == base.at(high):  # the same to the last digit: it is never short
            moved[name] = 0.0
            continue
        found, _, _ = knee.find(low, high, max(int(FURTHEST * users), high + 1))
        moved[name] = log(max(found, 0.5) / users)
    return users, moved
