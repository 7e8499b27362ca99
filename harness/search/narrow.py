"""Which level narrows the promise most for its time, while users never pause.

What all levels show is summed up as a *belief*: a posterior over the knee and over how steeply the
log-odds of a request to be over a limit rise with log(users). From it follows how long a level is
expected to be held until judge.py decides it. First the ends of the promise are unknown, and levels
far from the knee give both within seconds; the closer they are, the longer a closer one takes. So
the search holds the level by which the promise is expected to narrow most for its time: a wide
promise comes first, and a narrower one as long as time remains.

The belief says where to look, and gives the best estimate. It decides no level.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision
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
# Points of a normal distribution that stand for the belief, in standard deviations, and the
# probability of each. A belief is never surer than the least spread: its model is a guess. It errs
# by more while no level near the knee has passed, or failed: what is then held too close to it is
# not decided.
DEVIATIONS: Final = np.array([-1.6, -0.9, -0.4, 0.0, 0.4, 0.9, 1.6])
PROBABILITIES: Final = np.array([0.1, 0.15, 0.16, 0.18, 0.16, 0.15, 0.1])
LEAST_SPREAD: Final = 0.02
FIRST_SPREAD: Final = 0.1
NEAR_TIMES: Final = 1.35  # the knee over a level that passed, a level that failed over the knee
# Levels to consider, as shares of the likely knee; above it, the knee is such a share of the level.
NEAR_SHARES: Final = np.concatenate([np.arange(0.4, 0.9, 0.04), np.arange(0.9, 1.0, 0.01)])
# Late and without a promise a low one is better than none: lower levels are considered, and a
# promise counts by how many times this share of the likely knee it is (decision 37).
LATE_SHARES: Final = np.concatenate([np.arange(0.28, 0.4, 0.04), NEAR_SHARES])
NO_PROMISE: Final = 0.25
# Where none is expected to pass in the time left, this share of the likely knee is held to the end.
LAST_SHARE: Final = 0.5
# An end that is not shown counts as so many times the likely knee, or as such a part of it.
UNKNOWN_TIMES: Final = 2.0
# What may not be decided counts for less than its chance: time near the knee is mostly lost.
CAUTION: Final = 1.5
MOST_SHARE: Final = 1 - 1e-9  # over a limit: the log-odds of 1 are not finite
MIXTURE_COST: Final = 1.2  # of log evidence: the test does not know the share beforehand
OVERHEAD_NS: Final = 2 * SECOND  # of a hold, besides its warm-up
WARM_LIFETIMES: Final = 1.5
FAIL_LIFETIMES: Final = 2
MAY_TAKE: Final = 0.9  # of the time left, by a single hold
# In request lifetimes: with less time left and nothing that has passed, a level that is to fail, or
# only to show where the knee is, would take the time in which another one could pass (decision 36).
LATE_LIFETIMES: Final = 40


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


def _log_gain(share: Floats, allowed: float) -> Floats:
    """What an observation adds to the log evidence against `allowed`, in the mean."""
    over = share * np.log(share / allowed)
    under = (1 - share) * np.log((1 - share) / (1 - allowed))
    return np.asarray(over + under, np.float64)


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
class Attempt:
    """A hold that may move an end of the promise."""

    count: int
    wants: Decision  # what it is to show
    need_ns: float  # after so long it is expected to be decided, or given up
    rate: float  # log of the narrowing that is expected of it, per ns


@dataclass(frozen=True, slots=True)
class Prospect:
    """What can be decided: from the levels so far, the belief, and the levels that may be held."""

    levels: Sequence[LevelFit]
    belief: Belief
    allowed: float
    alpha: float
    precision: float
    least: int
    most: int
    passed: int  # the highest level that passed; 0: none
    failed: float  # the lowest level above it that failed; inf: none

    def best(self, left_ns: float) -> Attempt | None:
        """The one that narrows the promise most for its time; None: none can be afforded."""
        knee = max(1, round(self.belief.knee))
        shares = LATE_SHARES if self.must_pass(knee, left_ns) else NEAR_SHARES
        attempts = []
        for share in shares:
            attempts += self._attempts(round(self.belief.knee * share), Decision.passed, left_ns)
            attempts += self._attempts(round(self.belief.knee / share), Decision.failed, left_ns)
        return max(attempts, key=lambda attempt: attempt.rate, default=None)

    def must_pass(self, count: int, left_ns: float) -> bool:
        """Whether nothing has passed, and it is late: a level near `count` is held to pass only."""
        life_ns = self._nearest(count).evidence.lifetime_ns
        return not self.passed and left_ns < LATE_LIFETIMES * life_ns

    def to_pass(self, left_ns: float) -> Attempt | None:
        """As `best`, late and without a promise; None: no time is left for any to pass."""
        return self.best(left_ns) or self._last_chance(left_ns)

    def _last_chance(self, left_ns: float) -> Attempt | None:
        """A level far below the likely knee, held to the end; None: it could not pass by then."""
        most = self.levels[-1].count
        count = min(max(self.least, round(LAST_SHARE * self.belief.knee)), most)
        if self._soonest_pass_ns(count) > left_ns:
            return None
        return Attempt(count, Decision.passed, left_ns, 0.0)

    def _soonest_pass_ns(self, count: int) -> float:
        """Until a level can pass at best: if no request is over a limit from now on."""
        life_ns = self._nearest(count).evidence.lifetime_ns
        shown, held_ns = self._so_far(count, Decision.passed)
        missing = max(-log(self.alpha) - max(shown, 0), 0)
        missing_requests = missing / -log(1 - self.allowed)
        sending_ns = missing_requests / count * life_ns
        least_ns = PASS_LIFETIMES * life_ns - held_ns
        return max(sending_ns, least_ns) + WARM_LIFETIMES * life_ns + OVERHEAD_NS

    def _nearest(self, count: int) -> LevelFit:
        """The level that shows how fast observations come, and how long a request takes."""
        return min(self.levels, key=lambda level: abs(log(level.count / count)))

    def _attempts(self, count: int, wants: Decision, left_ns: float) -> list[Attempt]:
        """To have a level pass, or fail, each held as long as the knee's place may demand."""
        if not self.least <= count <= self.most:
            return []
        narrowing = self._narrowing(count, wants)
        if self.must_pass(count, left_ns):
            narrowing = self._first_promise(count, wants)
        if narrowing <= 0:
            return []
        needs_ns = self.needs_ns(count, wants)
        attempts = []
        for need_ns in needs_ns[needs_ns <= MAY_TAKE * left_ns]:
            chance = PROBABILITIES[needs_ns <= need_ns].sum()
            expected_ns = PROBABILITIES @ np.minimum(needs_ns, need_ns)
            rate = narrowing * chance**CAUTION / expected_ns
            attempts.append(Attempt(count, wants, float(need_ns), float(rate)))
        return attempts

    def _narrowing(self, count: int, wants: Decision) -> float:
        """By how much the promise narrows if a level shows what it is to show, as a logarithm."""
        if not self.passed < count < self.failed:
            return 0.0
        now = self._width(self.passed, self.failed)
        if wants == Decision.passed:
            return log(now / self._width(count, self.failed))
        return log(now / self._width(self.passed, count))

    def _first_promise(self, count: int, wants: Decision) -> float:
        """What a promise of so many is worth, late and without one, as a logarithm."""
        if wants == Decision.failed or count >= self.failed:
            return 0.0
        return log(count / (NO_PROMISE * self.belief.knee))

    def _width(self, low: int, high: float) -> float:
        """Of a promise between two levels; nothing is gained below the precision, or one user."""
        knee = self.belief.knee
        least = low or min(knee, high) / UNKNOWN_TIMES
        most = max(knee, least) * UNKNOWN_TIMES if high == inf else high
        return max((most - 1 - least) / least, self.precision, 1 / knee)

    def _lacks_end(self, wants: Decision) -> bool:
        """Whether nothing near the knee has passed, or failed, so far."""
        if wants == Decision.passed:
            return self.passed * NEAR_TIMES < self.belief.knee
        return self.failed > NEAR_TIMES * self.belief.knee

    def needs_ns(self, count: int, wants: Decision) -> Floats:
        """Until a level shows what it is to show, by each place of the knee; inf: it never does."""
        fails = wants == Decision.failed
        sign = 1 if fails else -1
        is_first = self._lacks_end(wants)
        spread = max(self.belief.spread, FIRST_SPREAD if is_first else LEAST_SPREAD)
        away = log(count / self.belief.knee) - spread * DEVIATIONS
        share = share_at(self.belief.slope * away, self.allowed).clip(max=MOST_SHARE)

        nearest = self._nearest(count)
        n = self._worth(nearest, wants)
        observations_per_ns = max(n / nearest.evidence.seconds / SECOND, 1e-18)
        life_ns = nearest.evidence.lifetime_ns

        shown, was_held_ns = self._so_far(count, wants)
        missing = max(MIXTURE_COST - log(self.alpha) - shown, 0)
        missing_n = missing / np.maximum(_log_gain(share, self.allowed), 1e-12)
        least_lifetimes = FAIL_LIFETIMES if fails else PASS_LIFETIMES
        least_ns = max(least_lifetimes * life_ns - was_held_ns, 0)
        held_ns = np.maximum(missing_n / observations_per_ns, least_ns)
        needs_ns = held_ns + OVERHEAD_NS + WARM_LIFETIMES * life_ns
        return np.where(sign * away > 0, needs_ns, inf)

    def _so_far(self, count: int, wants: Decision) -> tuple[float, float]:
        """(log evidence that a level has shown, ns for which it was held): not asked again."""
        nearest = self._nearest(count)
        if nearest.count != count:
            return 0.0, 0.0
        n = self._worth(nearest, wants)
        return self._shown(nearest, n, wants), nearest.evidence.seconds * SECOND

    def _worth(self, level: LevelFit, wants: Decision) -> float:
        """Independent observations that a level is worth, to the test of this side."""
        n, _ = effective(level, self.allowed)
        if wants == Decision.failed:
            return n
        for i in range(len(level.evidence.grids)):
            sizes, _ = level.evidence.over(i)
            n = min(n, float(sizes.sum()) / level.evidence.floored_effect(i, self.allowed))
        return n

    def _shown(self, level: LevelFit, n: float, wants: Decision) -> float:
        """The log evidence so far that it is on this side; below 0 it leans to the other one.

        `n`: independent observations that it is worth.
        """
        _, share = effective(level, self.allowed)
        evidence = log_one_sided(n, n * share, self.allowed)
        is_over = level.margin > 0
        return evidence if is_over == (wants == Decision.failed) else -evidence
