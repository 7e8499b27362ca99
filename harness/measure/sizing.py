"""Sums for a fleet: replicas for users, money, what an autoscaler asks for, speed of prefill.

Pure functions with units in their names; docs/fleet.md and docs/autoscaling.md have the sources.
"""

from __future__ import annotations

from math import ceil, floor, nan, sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Z95: Final = 1.645  # standard deviations that a normal variable exceeds 5% of the time
HPA_TOLERANCE: Final = 0.1  # --horizontal-pod-autoscaler-tolerance of Kubernetes
MIN_PROMPTS: Final = 40  # with fewer, the slope's interval is too wide to be of use
MAX_PROMPTS: Final = 600  # the slopes between all pairs of so many are looked at
MAX_HALF_WIDTH: Final = 0.1  # of the slope's interval; beyond it the slope is not known


def requests_in_flight(users: float, response_s: float, think_s: float = 0.0) -> float:
    """Little's law: of users who wait for an answer and then think, how many wait on average."""
    return users * response_s / (response_s + think_s)


def busy_requests(mean: float, idle_share: float) -> float:
    """Requests in flight that are exceeded 5% of the time.

    Users who think independently leave a binomial number of requests in flight: `idle_share` of the
    users think at any moment. Without pauses the number is constant; an open loop's is Poisson (1).
    """
    return mean + Z95 * sqrt(mean * idle_share)


def replicas_for(load: float, each: float, survive: int = 0) -> int:
    """Replicas that hold a load, and as many more as may fail."""
    return max(ceil(load / each - 1e-9), 1) + survive


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """`price_per_hour` of all GPUs that generate these tokens."""
    return price_per_hour / (tokens_per_s * 3600) * 1e6


def hpa_replicas(current: int, total: float, each: float, tolerance: float = HPA_TOLERANCE) -> int:
    """What a HorizontalPodAutoscaler, and so KEDA, asks for with a target of type AverageValue."""
    # Kubernetes changes nothing while total / (target x replicas) is within the tolerance of 1.
    within = abs(total / (each * current) - 1) <= tolerance
    return current if within else max(ceil(total / each), 1)


def threshold_with_lead(
    each: float, lead: float, replicas: int = 1, tolerance: float = HPA_TOLERANCE
) -> int:
    """The target per replica with which `replicas` still hold the load when the next one is ready.

    The autoscaler acts at replicas x target x (1 + tolerance); then the load grows by `lead`. More
    replicas share it, so the smallest number of them decides. Below 1: they cannot hold it.
    """
    return floor((each - lead / replicas) / (1 + tolerance))


class PrefillSpeed(NamedTuple):
    """Prompt tokens per second by which TTFT grows with a prompt's length; NaN: not known."""

    tokens_per_s: float = nan
    low: float = nan
    high: float = nan


def prefill_speed(tokens: ArrayLike, sent_ns: ArrayLike, first_ns: ArrayLike) -> PrefillSpeed:
    """Of the requests during whose TTFT no other request waited for its first token."""
    # What else is in a TTFT (network, front end, the rest of a step) does not depend on the prompt's
    # length, so the slope of TTFT over tokens is the time of a token. Short prompts cost nothing
    # but the reading of the weights: the slope of the longer half counts, if the other half agrees.
    size, sent, first = (np.asarray(x, np.float64) for x in (tokens, sent_ns, first_ns))
    order = np.argsort(sent, kind="stable")
    size, sent, first = size[order], sent[order], first[order]
    answered = np.concatenate([[-np.inf], np.maximum.accumulate(first)])[:-1]
    alone = (answered <= sent) & (np.append(sent[1:], np.inf) >= first)
    size, ttft = size[alone], (first - sent)[alone]
    if len(size) < MIN_PROMPTS:
        return PrefillSpeed()
    long = size >= np.median(size)
    slope, low, high = _slope(size[long], ttft[long])
    _, low_short, high_short = _slope(size[~long], ttft[~long])
    if not (max(slope - low, high - slope) < MAX_HALF_WIDTH * slope):
        return PrefillSpeed()
    agree = low_short <= high and low <= high_short
    return PrefillSpeed(1e9 / slope, 1e9 / high, 1e9 / low) if agree else PrefillSpeed()


def _slope(x: NDArray[Any], y: NDArray[Any]) -> tuple[float, float, float]:
    """Theil-Sen: the median slope of all pairs, its interval by Kendall's rank statistic."""
    every = -(-len(x) // MAX_PROMPTS) or 1
    x, y = x[::every], y[::every]
    a, b = np.triu_indices(len(x), 1)
    pairs = x[a] != x[b]
    slopes = np.sort(((y[b] - y[a])[pairs]) / (x[b] - x[a])[pairs])
    if not len(slopes):
        return nan, nan, nan
    half = 1.96 * sqrt(len(x) * (len(x) - 1) * (2 * len(x) + 5) / 18) / 2
    ranks = np.clip([len(slopes) / 2 - half, len(slopes) / 2 + half], 0, len(slopes) - 1)
    low, high = slopes[ranks.astype(int)]
    return float(np.median(slopes)), float(low), float(high)
