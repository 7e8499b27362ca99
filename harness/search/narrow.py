"""Which levels would decide the knee soonest, while users never pause.

What all levels show is summed up as a *belief*: a posterior over the knee and over how steeply the
log-odds of a request to be over a limit rise with log(users). From it follows how long a level is
expected to be held until judge.py decides it. So the search holds the two levels that are decided
soonest and are no further apart than the precision asked for. Where the rest of the budget is too
short for that, they lie further apart, up to what `found` allows.

The belief says where to look, and gives the best estimate. It decides no level.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, exp, inf, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.search.judge import PASS_LIFETIMES, log_one_sided
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.search.fit import LevelFit

    Floats = NDArray[np.float64]

KNEE_STEP: Final = 0.01  # of the grid of knees, in log(users)
SLOPES: Final = np.geomspace(2, 80, 10)  # log-odds per log(users): prefill about 4, slots 50
HOLD_SPREAD: Final = 0.15  # log-odds by which holds of a level differ more than their blocks say
WIDTHS: Final = (1.0, 1.5, 2.0, 3.0, 4.0)  # of a pair, in times of the precision
MIXTURE_COST: Final = 1.5  # of log evidence: the test does not know the share beforehand
OVERHEAD_NS: Final = 2 * SECOND  # of a hold, besides its warm-up
WARM_LIFETIMES: Final = 1.5
FAIL_LIFETIMES: Final = 2
# A guess that is not too good: the knee lies so many standard deviations closer to the level.
PESSIMISM: Final = 0.5
# Of the time left: a pair may take so much, if `found` is safe already and if it is not.
MAY_TAKE: Final = {True: 0.9, False: 0.25}
LOCATE_SHARE: Final = 0.4  # of the budget: a pair wider than the precision waits for as long


@dataclass(frozen=True, slots=True)
class Belief:
    """What the levels say about the knee, in users, and about the slope of the log-odds there."""

    knee: float
    spread: float  # standard deviation of log(knee)
    slope: float
    above: float  # probability that the knee is above the highest level


def share_at(margin: Floats | float, allowed: float) -> Floats:
    """The share over the limit at log-odds so far from the allowed ones."""
    log_odds = margin + log(allowed / (1 - allowed))
    return np.asarray(1 / (1 + np.exp(-log_odds)), np.float64)


def effective(level: LevelFit, allowed: float) -> tuple[float, float]:
    """(independent observations that a level is worth, its share over the limit)."""
    share = float(share_at(level.margin, allowed))
    n = level.weight / (share * (1 - share))
    return n, share


def _log_likelihood(level: LevelFit, log_knees: Floats, allowed: float) -> Floats:
    """Of what a level shows, at each slope (row) and each knee (column)."""
    n, share = effective(level, allowed)
    # Holds of a level differ by more than their blocks say, so they count as fewer observations.
    n /= 1 + level.weight * HOLD_SPREAD**2 / level.steps
    margins = np.outer(SLOPES, log(level.count) - log_knees)
    p = share_at(margins, allowed).clip(1e-4, 1 - 1e-4)
    over = share * np.log(p)
    under = (1 - share) * np.log(1 - p)
    return np.asarray(n * (over + under), np.float64)


def _log_gain(share: float, allowed: float) -> float:
    """What an observation adds to the log evidence against `allowed`, in the mean."""
    over = share * log(share / allowed)
    under = (1 - share) * log((1 - share) / (1 - allowed))
    return over + under


def believe(levels: Sequence[LevelFit], allowed: float) -> Belief:
    """The posterior mean of log(knee), from a flat prior up to four times the highest level."""
    lowest = levels[0].count
    highest = levels[-1].count
    log_knees = np.arange(log(lowest * 0.7), log(highest * 4), KNEE_STEP)
    log_likelihood = np.zeros((len(SLOPES), len(log_knees)))
    for level in levels:
        log_likelihood += _log_likelihood(level, log_knees, allowed)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    posterior /= posterior.sum()

    of_knees = posterior.sum(axis=0)
    mean = float(of_knees @ log_knees)
    deviation = float(of_knees @ (log_knees - mean) ** 2) ** 0.5
    log_slope = posterior.sum(axis=1) @ np.log(SLOPES)
    above = of_knees[log_knees >= log(highest)].sum()
    return Belief(
        knee=exp(mean),
        spread=max(deviation, KNEE_STEP / 10),
        slope=float(np.exp(log_slope)),
        above=float(above),
    )


@dataclass(frozen=True, slots=True)
class Pair:
    """Two levels that would decide the knee, and the ns until each is decided; 0: it is."""

    low: int
    high: int
    low_ns: float
    high_ns: float

    @property
    def cost_ns(self) -> float:
        """Of both."""
        return self.low_ns + self.high_ns

    @property
    def first(self) -> tuple[float, int]:
        """(ns, users) of the one to hold now."""
        ends = ((self.low_ns, self.low), (self.high_ns, self.high))
        return min(end for end in ends if end[0] > 0)


@dataclass(frozen=True, slots=True)
class Prospect:
    """What can be decided: from the levels so far, the belief, and the levels that may be held."""

    levels: Sequence[LevelFit]
    belief: Belief
    allowed: float
    alpha: float
    least: int
    most: int
    passed: int  # the highest level that passed; 0: none
    failed: float  # the lowest level above it that failed; inf: none

    def cost_ns(self, users: int, *, over: bool) -> float:
        """Until a level has failed (`over`) or passed; inf: it may be on the other side."""
        sign = 1 if over else -1
        # The distance in log(users) to a knee that lies a bit closer than it is believed to.
        away = log(users / self.belief.knee) - sign * PESSIMISM * self.belief.spread
        if away * sign <= 0:
            return inf
        share = float(share_at(self.belief.slope * away, self.allowed))
        evidence_per_request = _log_gain(share, self.allowed)

        # The nearest level shows how fast observations come, and how long a request takes.
        nearest = min(self.levels, key=lambda level: abs(log(level.count / users)))
        n, _ = effective(nearest, self.allowed)
        requests_per_ns = max(n / nearest.evidence.seconds / SECOND, 1e-18)
        life_ns = nearest.evidence.lifetime_ns

        was_held = nearest.count == users
        evidence = self._evidence_of(nearest, over=over) if was_held else 0.0
        missing = max(MIXTURE_COST - log(self.alpha) - evidence, 0)
        needed_ns = missing / max(evidence_per_request, 1e-12) / requests_per_ns
        least_lifetimes = FAIL_LIFETIMES if over else PASS_LIFETIMES
        held_ns = max(needed_ns, least_lifetimes * life_ns)
        return held_ns + OVERHEAD_NS + WARM_LIFETIMES * life_ns

    def _evidence_of(self, level: LevelFit, *, over: bool) -> float:
        """The log evidence so far that it is on this side; below 0 it leans to the other one."""
        n, share = effective(level, self.allowed)
        evidence = log_one_sided(n, n * share, self.allowed)
        is_over = level.margin > 0
        return evidence if is_over == over else -evidence

    def cheapest(self, width: int) -> Pair | None:
        """The pair `width + 1` apart that is decided soonest; None: there is none."""
        knee = ceil(self.belief.knee)
        first = max(knee - 2 * width - 2, self.least)
        lows = set(range(first, min(knee + width + 2, self.most)))
        if self.passed:
            lows.add(self.passed)
        pairs = [self._pair(low, width) for low in lows]
        useful = [pair for pair in pairs if pair is not None and 0 < pair.cost_ns < inf]
        return min(useful, key=lambda pair: (pair.cost_ns, pair.low), default=None)

    def _pair(self, low: int, width: int) -> Pair | None:
        """The pair that begins at `low`; None: not within the levels that may still be decided."""
        high = int(min(low + width + 1, self.failed))
        if low < self.passed or not low < high <= self.most:
            return None
        low_ns = 0.0 if low == self.passed else self.cost_ns(low, over=False)
        high_ns = 0.0 if high == self.failed else self.cost_ns(high, over=True)
        return Pair(low, high, low_ns, high_ns)

    def narrowest(
        self, precision: float, safe: int, left_ns: float, budget_ns: float
    ) -> tuple[Pair | None, bool]:
        """(the narrowest pair that can be afforded, or the last one considered; whether it can).

        `safe`: the distance of the ends at which the knee counts as found.
        """
        apart = self.failed - 1 - self.passed  # the ends that are decided already
        is_safe = apart <= safe
        is_early = left_ns > (1 - LOCATE_SHARE) * budget_ns
        is_vague = self.belief.spread > precision / 2
        pair = None
        for times in WIDTHS:
            if times > 1 and is_early and is_vague:  # first find out more of where the knee is
                break
            wanted_width = max(1, int(self.belief.knee * precision * times))
            width = min(wanted_width, safe)
            if is_safe and width >= apart:  # it would be no narrower than what is decided
                break
            pair = self.cheapest(width)
            if pair and pair.cost_ns <= left_ns * MAY_TAKE[is_safe]:
                return pair, True
        return pair, False
