"""Sums of docs/fleet.md and docs/autoscaling.md: replicas, money, leads, the speed of prefill."""

from __future__ import annotations

from math import ceil, floor, nan, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Z95: Final = 1.645  # standard deviations that a normal variable exceeds 5% of the time
HPA_TOLERANCE: Final = 0.1  # --horizontal-pod-autoscaler-tolerance of Kubernetes
UNKNOWN: Final = (nan, nan, nan)  # value, low, high
MIN_PROMPTS: Final = 20  # in each half of the lengths
MAX_ERROR: Final = 0.05  # of the slope, either way; beyond it the slope is not known


def requests_in_flight(users: float, response_s: float, think_s: float = 0.0) -> float:
    """Little's law: of users who wait for an answer and then think, how many wait on average."""
    return users * response_s / (response_s + think_s)


def busy_requests(mean: float, idle_share: float) -> float:
    """Requests in flight that are exceeded 5% of the time, where a share of the users thinks.

    Their number is binomial: constant without pauses, Poisson in an open loop (a share of 1).
    """
    return mean + Z95 * sqrt(mean * idle_share)


def replicas_for(load: float, each: float, survive: int = 0) -> int:
    """Replicas that hold a load, and as many more as may fail."""
    return max(ceil(load / each - 1e-9), 1) + survive


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """`price_per_hour` of all GPUs that generate these tokens."""
    return price_per_hour / (tokens_per_s * 3600) * 1e6


def threshold_with_lead(each: float, lead: float, replicas: int = 1) -> int:
    """The target per replica with which `replicas` hold the load until the next one is ready."""
    # It acts above replicas x target by the tolerance; then the load grows by the lead.
    return floor((each - lead / replicas) / (1 + HPA_TOLERANCE) + 1e-9)


def prefill_speed(
    tokens: ArrayLike, sent_ns: ArrayLike, first_ns: ArrayLike
) -> tuple[float, float, float]:
    """Prompt tokens per second by which TTFT grows with a prompt's length, and the 95% interval.

    Of the requests during whose TTFT no other request waited for its first token.
    """
    # What else is in a TTFT (network, front end, the rest of a step) does not depend on the length
    # of the prompt, so the slope of TTFT over tokens is the time of a token. Short prompts cost
    # no more than reading the weights: the slope of the longer half counts, if the other agrees.
    size, sent, first = (np.asarray(x, np.float64) for x in (tokens, sent_ns, first_ns))
    order = np.argsort(sent, kind="stable")
    size, sent, first = size[order], sent[order], first[order]
    answered = np.concatenate([[-np.inf], np.maximum.accumulate(first)])[:-1]
    alone = (answered <= sent) & (np.append(sent[1:], np.inf) >= first)
    size, ttft = size[alone], (first - sent)[alone]
    long = size >= np.median(size) if len(size) else alone[:0]
    halves = [(size[half], ttft[half]) for half in (long, ~long)]
    if any(len(x) < MIN_PROMPTS or np.ptp(x) == 0 for x, _ in halves):
        return UNKNOWN
    fits = [np.polyfit(x, y, 1, cov=True) for x, y in halves]
    (slope, error), (other, its_error) = ((a, 1.96 * c[0, 0] ** 0.5) for (a, _), c in fits)
    if error > MAX_ERROR * slope or abs(slope - other) > error + its_error:
        return UNKNOWN
    return float(1e9 / slope), float(1e9 / (slope + error)), float(1e9 / (slope - error))
