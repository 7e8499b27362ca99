"""By which SLO, and at which level, the cause of the knee is judged: that of what binds there.

A level far above the knee may show the cause of a queue that something else would have kept short:
of one server gaps were too long at the knee, and first tokens at twice as many users. So the SLO
is that whose own knee is lowest, and the level is at most 25% above the knee. Where no such level
breaks the SLO, the lowest that does is taken, and the answer says how far away it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.load import Number
    from harness.metrics.result import KneeCurve, Level
    from harness.metrics.slo import Slo

NEAR_KNEE: Final = 1.25  # times the knee: a level up to here shows what binds at the knee
LONG_SHARE: Final = 0.5  # of the longest hold near the knee: so long shows rates as well
SAME_LIMIT: Final = 1e-6  # by how much a limit may be rounded, as a share


@dataclass(frozen=True, slots=True)
class SloKnee:
    """The knee of one SLO alone, with its 95% interval."""

    slo: Slo
    estimate: Number
    low: Number
    high: Number

    def covers(self, other: SloKnee) -> bool:
        return self.low <= other.estimate <= self.high


def first_to_break(
    slos: Sequence[Slo], curves: Sequence[KneeCurve], knee: Number, levels: Sequence[Level]
) -> list[Slo]:
    """The SLO with the lowest knee, then those whose knee cannot be told from its; [] if unknown.

    Two knees cannot be told apart where each lies within the other's interval. `knee`: of all SLOs
    together.
    """
    if not curves:
        return []
    knees = []
    for slo in slos:
        own = _own_knee(slo, curves)
        # Beyond the knee gaps may be in time again, as requests queue elsewhere: then no level is
        # above the knee of ITL, although ITL sets that of all.
        if own is None and _breaks_near(slo, knee, levels):
            own = SloKnee(slo, knee, knee / NEAR_KNEE, knee * NEAR_KNEE)
        if own is not None:
            knees.append(own)
    knees.sort(key=lambda own: own.estimate)
    return [own.slo for own in knees if own.covers(knees[0]) and knees[0].covers(own)]


def _own_knee(slo: Slo, curves: Sequence[KneeCurve]) -> SloKnee | None:
    """The knee of an SLO at its own limit; None: not known."""
    for curve in curves:
        if curve.slo != slo.name:
            continue
        for limit, estimate, low, high in curve.points:
            if abs(limit - slo.limit) <= SAME_LIMIT * slo.limit:
                return SloKnee(slo, estimate, low, high)
    return None


def _breaks_near(slo: Slo, knee: Number, levels: Sequence[Level]) -> bool:
    """Whether all levels near the knee together are over the limit more often than allowed."""
    over = 0.0
    weights = 0.0
    for level in levels:
        share = level.over_share.get(slo.name, nan)
        if not level.usable or not knee < level.load or not is_near(level.load, knee):
            continue
        if not isnan(share):
            weight = level.load * level.seconds
            over += weight * share
            weights += weight
    return over > slo.allowed * weights


def is_near(load: Number, knee: Number) -> bool:
    """Whether what binds at a level above the knee is what binds at the knee."""
    is_next = isinstance(load, int) and load - knee <= 1
    return load <= NEAR_KNEE * knee or is_next


def times_the_knee(load: Number, knee: Number) -> float:
    """How far a level is above the knee; NaN: it is near, or the knee is not known."""
    if not knee or is_near(load, knee):
        return nan
    return round(load / knee, 2)


def worst(slos: Sequence[Slo], level: Level) -> tuple[float, Slo | None]:
    """(share over the limit / allowed share, SLO) of the SLO that is broken most."""
    worst_ratio = nan
    worst_slo = None
    for slo in slos:
        ratio = level.over_share.get(slo.name, nan) / slo.allowed
        is_worse = ratio > worst_ratio or (isnan(worst_ratio) and not isnan(ratio))
        if worst_slo is None or is_worse:
            worst_ratio = ratio
            worst_slo = slo
    return worst_ratio, worst_slo


def cause_level(slos: Sequence[Slo], knee: Number, levels: Sequence[Level]) -> Level | None:
    """The hold that shows why one of these SLOs is broken; None: there is no level.

    Near the knee it is the lowest that breaks one and was held long: a quick check may have only
    three scrapes, one of them between two batches. Else it is the lowest that does, and without
    any, the first one above the knee, or the highest of all.
    """
    above = [level for level in levels if level.usable and level.load > knee]
    if not above:
        return max(levels, key=lambda level: (level.load, level.seconds), default=None)
    # A single scrape shows no rates: on an H200 one second at 144 users hid a full KV cache that
    # 160 users showed.
    with_rates = [level for level in above if level.server.samples > 1] or above
    broken = [level for level in with_rates if worst(slos, level)[0] > 1]
    near = [level for level in broken if is_near(level.load, knee)]
    if near:
        longest_s = max(level.seconds for level in near)
        candidates = [level for level in near if level.seconds >= LONG_SHARE * longest_s]
    else:
        candidates = broken or with_rates
    # Just above the knee the bottleneck is saturated and nothing else is yet.
    return min(candidates, key=lambda level: (level.load, -level.seconds))
