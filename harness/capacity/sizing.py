"""Sums of docs/fleet.md and docs/autoscaling.md: replicas, money, leads, the speed of prefill."""

from __future__ import annotations

from math import ceil, floor, nan, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.units import SECOND

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from harness.core.arrays import Floats, Ints

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
    # A quotient that rounding puts just above a whole number does not cost a replica.
    needed = ceil(load / each - 1e-9)
    return max(needed, 1) + survive


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """`price_per_hour` of all GPUs that generate these tokens."""
    return price_per_hour / (tokens_per_s * 3600) * 1e6


def threshold_with_lead(each: float, lead: float, replicas: int = 1) -> int:
    """The target per replica with which `replicas` hold the load until the next one is ready."""
    # It acts above replicas x target by the tolerance; then the load grows by the lead.
    left_of_each = each - lead / replicas
    return floor(left_of_each / (1 + HPA_TOLERANCE) + 1e-9)


def prefill_speed(
    tokens: ArrayLike, sent_ns: ArrayLike, first_ns: ArrayLike
) -> tuple[float, float, float]:
    """Prompt tokens per second by which TTFT grows with a prompt's length, and the 95% interval.

    Of the requests during whose TTFT no other request waited for its first token.
    """
    # What else is in a TTFT (network, front end, the rest of a step) does not depend on the length
    # of the prompt, so the slope of TTFT over tokens is the time of a token. Short prompts cost
    # no more than reading the weights: the slope of the longer half counts, if the other agrees.
    sizes = np.asarray(tokens, np.float64)
    sent = np.asarray(sent_ns, np.float64)
    first = np.asarray(first_ns, np.float64)
    alone = _alone(sent, first)
    sizes = sizes[alone]
    ttft_ns = (first - sent)[alone]
    if not len(sizes):
        return UNKNOWN
    long = sizes >= np.median(sizes)
    of_long = _slope(sizes[long], ttft_ns[long])
    of_short = _slope(sizes[~long], ttft_ns[~long])
    if of_long is None or of_short is None:
        return UNKNOWN
    slope = of_long.ns_per_token
    error = of_long.error
    differ = abs(slope - of_short.ns_per_token) > error + of_short.error
    if error > MAX_ERROR * slope or differ:
        return UNKNOWN
    slowest = SECOND / (slope + error)
    fastest = SECOND / (slope - error)
    return float(SECOND / slope), float(slowest), float(fastest)


def _alone(sent: Floats, first: Floats) -> Ints:
    """The requests, in the order in which they were sent, that waited alone for a first token."""
    order = np.argsort(sent, kind="stable")
    sent = sent[order]
    first = first[order]
    latest_first = np.maximum.accumulate(first)
    earlier_answered = np.append(-np.inf, latest_first)[:-1]
    next_sent = np.append(sent[1:], np.inf)
    waited_alone = (earlier_answered <= sent) & (next_sent >= first)
    return order[waited_alone]


class _Slope(NamedTuple):
    ns_per_token: float
    error: float  # half the width of the 95% interval


def _slope(sizes: Floats, ttft_ns: Floats) -> _Slope | None:
    """The slope of TTFT over tokens; None for too few prompts, or all of one length."""
    if len(sizes) < MIN_PROMPTS or np.ptp(sizes) == 0:
        return None
    line, covariance = np.polyfit(sizes, ttft_ns, 1, cov=True)
    standard_error = covariance[0, 0] ** 0.5
    return _Slope(line[0], 1.96 * standard_error)
