"""The sweet spot: the range of levels whose throughput over latency is near its peak.

The power knee is one level. Between levels that are within SHARE of its throughput over latency a
service may choose: at the lower end answers come sooner, at the upper end there are more tokens/s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from harness.metrics.result import Level

SHARE: Final = 0.9
LEAST_LEVELS: Final = 3  # fewer show no peak


@dataclass(frozen=True, slots=True)
class SweetSpot:
    """Levels, both included; the same twice if no measured level beside the best is near it."""

    first: float
    last: float
    best: float
    is_highest: bool = False  # no level above `last` was held, so it may reach further


def sweet_spot(levels: Sequence[Level]) -> SweetSpot | None:
    """Around the level with the most tokens/s for its mean e2e; None: too few levels.

    A level that was held several times counts by the mean of its holds.
    """
    by_load: dict[float, list[float]] = {}
    for level in levels:
        power = level.output_tokens_per_s / level.e2e_ms.mean if level.e2e_ms.mean else 0.0
        if isfinite(power):
            by_load.setdefault(level.load, []).append(power)
    loads = sorted(by_load)
    if len(loads) < LEAST_LEVELS:
        return None
    powers = [sum(by_load[load]) / len(by_load[load]) for load in loads]
    best = powers.index(max(powers))
    enough = SHARE * powers[best]
    first = best
    while first > 0 and powers[first - 1] >= enough:
        first -= 1
    last = best
    highest = len(loads) - 1
    while last < highest and powers[last + 1] >= enough:
        last += 1
    return SweetSpot(loads[first], loads[last], loads[best], is_highest=last == highest)
