"""Where to look next while users never pause: the pair of levels that decides the knee soonest.

What all levels show is summed up as a *belief*: a posterior over the knee and over how steeply the
log-odds of a request to be over a limit rise with log(users). The search climbs until a level is
likely over the limit, holds the most likely knee until that is known well enough, and then the two
levels that are expected to be decided soonest and are not further apart than the precision. Where
the rest of the budget is too short for that, they lie further apart, up to what `found` allows.

The belief chooses levels. It decides none: that is for the tests of judge.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, exp, inf, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.search.judge import PASS_LIFETIMES, log_sided
from harness.measure.states import Decision
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.search.evidence import Evidence
    from harness.measure.search.fit import LevelFit
    from harness.measure.slo import Slo

    Floats = NDArray[np.float64]

KNEE_STEP: Final = 0.01  # of the grid of knees, in log(users)
SLOPES: Final = np.geomspace(2, 80, 10)  # log-odds per log(users); 4: prefill, 50: slots
# Log-odds by which two holds of a level differ by more than their blocks tell.
HOLD_SPREAD: Final = 0.15
LEAN_ALPHA: Final = 0.1  # enough to go on by, and no decision
WIDTHS: Final = (1.0, 1.5, 2.0, 3.0, 4.0)  # times the precision
PENALTY: Final = 1.5  # what the mixture costs against the best single alternative, in log evidence
OVERHEAD_NS: Final = 4 * SECOND  # of a hold, besides its warm-up
WARM_LIFETIMES: Final = 1.5
FAIL_LIFETIMES: Final = 2


@dataclass(frozen=True, slots=True)
class Belief:
    """What the levels say about the knee, in users, and about the slope of the log-odds there."""

    knee: float
    spread: float  # standard deviation of log(knee)
    slope: float
    above: float  # probability that the knee is at or above the top level

    def log_odds(self, users: float, spreads: float = 0.0) -> float:
        """The expected log-odds, minus the allowed ones, with a knee so many spreads away."""
        return self.slope * (log(users / self.knee) + spreads * self.spread)


def leaning(evidence: Evidence, slos: Sequence[Slo], max_errors: float) -> Decision:
    """The side that a level leans to."""
    leans = []
    for i, slo in enumerate(slos):
        sizes, hits = evidence.over(i)
        effect = evidence.effect(i, slo.allowed)
        n, k = sizes.sum() / effect, hits.sum() / effect
        if not n or log_sided(n, k, slo.allowed) < -log(LEAN_ALPHA):
            leans.append(0)
        else:
            leans.append(1 if k > n * slo.allowed else -1)
    if 1 in leans: return Decision.failed
    return Decision.passed if set(leans) == {-1} else Decision.inconclusive


def share_at(margin: Floats | float, allowed: float) -> Floats:
    """The share over the limit at log-odds so far from the allowed ones."""
    return np.asarray(1 / (1 + np.exp(-(margin + log(allowed / (1 - allowed))))), np.float64)


def effective(level: LevelFit, allowed: float) -> tuple[float, float]:
    """(independent observations that a level is worth, its share over the limit)."""
    share = float(share_at(level.margin, allowed))
    return level.weight / (share * (1 - share)), share


def believe(levels: Sequence[LevelFit], allowed: float) -> Belief:
    """The posterior mean of the knee, with a flat prior over log(users)."""
    top = levels[-1].users
    knees = np.arange(log(levels[0].users * 0.7), log(top * 4), KNEE_STEP)
    fit = np.zeros((len(SLOPES), len(knees)))
    for level in levels:
        n, share = effective(level, allowed)
        n /= 1 + level.weight * HOLD_SPREAD**2 / level.steps
        p = share_at(np.outer(SLOPES, log(level.users) - knees), allowed).clip(1e-4, 1 - 1e-4)
        fit += n * (share * np.log(p) + (1 - share) * np.log(1 - p))
    mass = np.exp(fit - fit.max())
    mass /= mass.sum()
    by_knee = mass.sum(axis=0)
    mean = float(by_knee @ knees)
    spread = float((by_knee @ (knees - mean) ** 2) ** 0.5)
    slope = float(np.exp(mass.sum(axis=1) @ np.log(SLOPES)))
    return Belief(exp(mean), max(spread, 1e-3), slope, float(by_knee[knees >= log(top)].sum()))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two levels that would decide the knee, and the time (ns) that each is expected to take."""

    low: int
    high: int
    low_ns: float  # 0: it has passed
    high_ns: float  # 0: it has failed


class Costs:
    """The expected time until a level is decided."""

    def __init__(
        self, levels: Sequence[LevelFit], belief: Belief, allowed: float, alpha: float
    ) -> None:
        self.levels, self.belief, self.allowed = levels, belief, allowed
        self.enough = -log(alpha) + PENALTY

    def of(self, users: int, *, over: bool) -> float:
        """Until it has failed (`over`) or passed; inf: it may well be on the other side."""
        # Half a standard deviation of the knee towards the level: a guess that is not too good.
        margin = self.belief.log_odds(users, -0.5 if over else 0.5)
        if (margin > 0) != over:
            return inf
        near = min(self.levels, key=lambda level: abs(log(level.users / users)))
        n, _ = effective(near, self.allowed)
        per_s = max(n / near.evidence.seconds, 1e-9)
        share, a = float(share_at(margin, self.allowed)), self.allowed
        gain = share * log(share / a) + (1 - share) * log((1 - share) / (1 - a))
        known = 0.0
        if near.users == users:
            hits = n * float(share_at(near.margin, a))
            known = log_sided(n, hits, a) * (1 if (near.margin > 0) == over else -1)
        life_ns = near.evidence.lifetime_ns
        least_ns = (FAIL_LIFETIMES if over else PASS_LIFETIMES) * life_ns
        needed_ns = max(self.enough - known, 0) / max(gain, 1e-12) / per_s * SECOND
        return max(needed_ns, least_ns) + OVERHEAD_NS + WARM_LIFETIMES * life_ns


def cheapest_pair(
    costs: Costs, width: int, passed: int, failed: float, least: int, most: int
) -> Pair | None:
    """The pair `width + 1` apart that is decided soonest; None: there is none.

    `passed` is the highest level that passed, `failed` the lowest one that failed.
    """
    knee, found = costs.belief.knee, []
    reach = range(max(ceil(knee) - 2 * width - 2, least), min(ceil(knee) + width + 2, most))
    for low in {*reach, *([passed] if passed else [])}:
        high = low + width + 1
        if low < passed or high > most or high > failed + width:
            continue
        high = int(min(high, failed))
        low_ns = 0.0 if low == passed else costs.of(low, over=False)
        high_ns = 0.0 if high == failed else costs.of(high, over=True)
        found.append(Pair(low, high, low_ns, high_ns))
    found = [pair for pair in found if 0 < pair.low_ns + pair.high_ns < inf]
    return min(found, key=lambda pair: (pair.low_ns + pair.high_ns, pair.low), default=None)
