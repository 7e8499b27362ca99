"""The field's searches for the highest number of users within an SLO, as pure functions.

In: `hold`, which holds a level and returns what was seen; out: an Answer. Written after each tool's
documentation and source; duel_words.md, which ends results/duel.md, names these and says what was
adapted. Where a tool measures an SLO by a definition of its own, the SLO's own quantity is used
here: the duel is about searches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

from lab.duel_probes import Length

if TYPE_CHECKING:
    from lab.duel_probes import Seen

Hold = Callable[[int], "Seen"]

PRECISION: Final = 0.05  # aiperf: AIPERF_SEARCH_PLANNER_SLA_PRECISION_DEFAULT
AIPERF_MOST: Final = 1000
MONOTONIC_ITERATIONS: Final = 20
MONOTONIC_TRIALS: Final = 2  # that agree
GOODPUT_INITIAL, GOODPUT_MOST = 4, 1024
GOODPUT_TOLERANCE: Final = 0.1
GOODPUT_PROBES: Final = 15
GOODPUT_ATTAINMENT: Final = 0.95
GOODPUT_Z: Final = NormalDist().inv_cdf((1 + 0.95) / 2)
LADDER_STEP: Final = 1.05
LADDER_MOST: Final = 512


@dataclass(frozen=True, slots=True)
class Answer:
    """The largest level that is said to meet the SLO; the bracket around it, where there is one."""

    users: int | None
    lo: int | None
    hi: int | None
    conclusive: bool  # False: the method itself says that its answer is not settled


@dataclass(frozen=True, slots=True)
class Sampling:
    """How long a method holds a level."""

    warm_s: float = 0.0
    warm_again_s: float = 0.0  # where the level has been held before
    seconds: float = 0.0
    requests: int = 0
    requests_per_user: int = 0
    drained: bool = True

    def length(self, users: int, trial: int) -> Length:
        warm_s = self.warm_again_s if trial else self.warm_s
        requests = max(self.requests, self.requests_per_user * users)
        return Length(warm_s, self.seconds, requests, self.drained)


@dataclass(slots=True)
class Bracket:
    """The highest level that met the SLO and the lowest that did not, without contradictions."""

    low: int | None = None
    high: int | None = None

    def add(self, users: int, met: bool) -> None:
        if met and (self.high is None or users < self.high):
            self.low = max(self.low or 0, users)
        if not met and (self.low is None or users > self.low):
            self.high = min(self.high or users, users)

    def ends(self) -> tuple[int, int]:
        assert self.low is not None  # noqa: S101 - called once both ends are known
        assert self.high is not None  # noqa: S101 - as above
        return self.low, self.high

    @property
    def precise(self) -> bool:
        """By aiperf's rule."""
        if self.low is None or self.high is None:
            return False
        gap = self.high - self.low
        return gap <= 1 or gap / self.high < PRECISION

    def answer(self, *, conclusive: bool) -> Answer:
        return Answer(self.low, self.low, self.high and self.high - 1, conclusive)


# ai-dynamo/aiperf, src/aiperf/orchestrator/search_planner/monotonic.py at 9ebae576; the limits are
# those of src/aiperf/search_recipes/_max_concurrency_under_sla.py at 03333435.
def aiperf_monotonic(hold: Hold) -> Answer:
    """Double from 1 until the SLO is missed, then bisect; a verdict needs two trials that agree."""
    found, votes, users = Bracket(), Counter[tuple[int, bool]](), 1
    for _ in range(MONOTONIC_ITERATIONS):
        met = hold(users).margin_ms < 0
        votes[users, met] += 1
        if votes[users, met] < MONOTONIC_TRIALS:
            continue
        found.add(users, met)
        if found.high is None:
            if users >= AIPERF_MOST:
                break
            users = min(2 * users, AIPERF_MOST)
        elif found.low is None or found.precise:
            break
        else:
            users = (found.low + found.high) // 2
    return found.answer(conclusive=found.precise)


# vllm-project/guidellm, src/guidellm/benchmark/profiles/goodput.py at 37c0434c; the defaults are
# those of src/guidellm/schemas/benchmark/profiles/goodput.py at b9ae3df4.
def guidellm_goodput(hold: Hold) -> Answer:
    """Double from 4 until too few requests meet the SLO, then bisect to 10%.

    Wilson's interval does not steer the search: it flags levels that were held too briefly, and an
    answer with such a level comes with a warning.
    """
    found, users, resolved = Bracket(), GOODPUT_INITIAL, True
    for _ in range(GOODPUT_PROBES):
        seen = hold(users)
        lo, hi = wilson_interval(seen.within, seen.requests)
        resolved &= lo >= GOODPUT_ATTAINMENT or hi < GOODPUT_ATTAINMENT
        # Here a contradiction moves an end: the bracket may close or turn over.
        if seen.within >= GOODPUT_ATTAINMENT:
            found.low = max(found.low or 0, users)
        else:
            found.high = min(found.high or users, users)
        if found.high is None:
            if users >= GOODPUT_MOST:
                break
            users = min(2 * users, GOODPUT_MOST)
        elif found.low is None:
            if users <= 1:
                break
            users = found.high // 2
        elif found.high - found.low <= max(1, GOODPUT_TOLERANCE * found.low):
            return found.answer(conclusive=resolved)
        else:
            users = (found.low + found.high) // 2
    return found.answer(conclusive=False)


def wilson_interval(share: float, trials: int) -> tuple[float, float]:
    """The 95% interval of a share of so many independent trials."""
    if not trials:
        return 0.0, 1.0
    part = GOODPUT_Z**2 / trials
    center = (share + part / 2) / (1 + part)
    half = (part * share * (1 - share) + part**2 / 4) ** 0.5 / (1 + part)
    return max(0.0, center - half), min(1.0, center + half)


# mlcommons/inference, loadgen/loadgen.cc (FindPeakPerformanceMode, FindBoundaries) and
# test_settings_internal.h (find_peak_performance) at b66003e1.
def loadgen_peak(hold: Hold) -> Answer:
    """FindPeakPerformance, in users where LoadGen has queries per second.

    Double from 1 until the latency percentile is over its limit, then bisect down to one unit of
    precision: one user, as there are no tenths of users.
    """
    low = 1
    if hold(low).margin_ms > 0:
        return Answer(None, None, None, conclusive=False)
    high = 2 * low
    while hold(high).margin_ms <= 0:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if hold(middle).margin_ms <= 0 else (low, middle)
    return Answer(low, None, None, conclusive=True)


def fixed_ladder(hold: Hold) -> Answer:
    """Levels 5% or one user apart, up to the first that misses the SLO."""
    found, users = Bracket(), 1
    while found.high is None and users <= LADDER_MOST:
        found.add(users, met=hold(users).margin_ms <= 0)
        users = max(users + 1, int(users * LADDER_STEP))
    return found.answer(conclusive=found.low is not None and found.high is not None)
