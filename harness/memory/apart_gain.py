"""What prefill apart gains over all replicas together within limits, with a 95% interval.

The gain is users by users; where TTFT has no limit any number may wait, and it is requests/s by
requests/s. What is not known is drawn, always the same: how fast the GPUs really are, which lengths
the requests have, and how far this arithmetic is off. The interval has the middle 95% of what
follows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import isfinite
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.memory.prefill_apart import (
    LATE,
    Apart,
    Limits,
    Replica,
    apart_requests_s,
    gap_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    # One value for each draw; a column of them, with a row for each draw; a value for each step.
    Values = NDArray[np.float64]
    Column = NDArray[np.float64]
    Steps = NDArray[np.float64]

DRAWS: Final = 400
SEED: Final = 35
# Standard deviations of logarithms, and a mean of one: docs/decisions/0035-prefill-apart.md has
# what they come from.
SPEED_SPREAD: Final = 0.25  # of the real speed of prefill, or of decode, over the arithmetic's
OWN_SPREAD: Final = 0.15  # of the gain over a simulated one, with the speeds of the simulation
OWN_MEAN: Final = 0.05
REQUESTS: Final = 500  # of a measurement, whose mean lengths are drawn
STEPS: Final = 250  # of a replica that prefills and decodes, for each draw and load
HALVINGS: Final = 12  # of the range of users
HALF_A_USER: Final = 0.5  # more for each: a knee lies between two numbers of users
QUANTILES: Final = (0.025, 0.5, 0.975)


class Choice(StrEnum):
    """How to use the replicas."""

    APART = "apart"
    TOGETHER = "together"
    OPEN = "open"  # the interval has 1 in it: only measuring both can tell
    NONE = "none"  # no layout keeps the limits


@dataclass(frozen=True, slots=True)
class Gain:
    """Apart by together: the median of what was drawn, and the ends of the interval."""

    likely: float
    low: float
    high: float
    of: str  # users, or requests/s

    @property
    def choice(self) -> Choice:
        """The gain lies in its interval, so nothing is chosen against it."""
        if self.low > 1:
            return Choice.APART
        if self.high < 1:
            return Choice.TOGETHER
        return Choice.OPEN


def counted(way: Apart, limits: Limits) -> float:
    """Return what layouts are compared by: users, or requests/s where any number may wait."""
    return way.users if isfinite(limits.ttft_s) else way.requests_s


def gain(replica: Replica, way: Apart, link_bytes_s: float, limits: Limits) -> Gain:
    """Return the gain of a layout over as many replicas together."""
    rng = np.random.default_rng(SEED)
    drawn = [_drawn(replica, rng) for _ in range(DRAWS)]
    own_error = np.exp(OWN_MEAN + OWN_SPREAD * rng.standard_normal(DRAWS))
    ways = [apart_requests_s(one, way.prefill, way.decode, link_bytes_s, limits) for one in drawn]
    load = Together(drawn, limits).most()
    apart = np.array([counted(one, limits) for one in ways])
    half = np.full(DRAWS, HALF_A_USER)
    of = "users"
    of_one = load.users
    if not isfinite(limits.ttft_s):
        half /= np.array([_alone_s(one) for one in drawn])
        of = "requests/s"
        of_one = load.requests_s
    together = (way.prefill + way.decode) * of_one
    gains = (apart + half) / (together + half) / own_error
    low, likely, high = np.quantile(gains, QUANTILES)
    return Gain(float(likely), float(low), float(high), of)


def _drawn(replica: Replica, rng: Generator) -> Replica:
    """The replica as it may really be, with requests as they may come."""
    prefill, decode = np.exp(SPEED_SPREAD * rng.standard_normal(2))
    prompt, answer = np.exp(replica.variation / np.sqrt(REQUESTS) * rng.standard_normal(2))
    return replace(
        replica,
        prompt_tokens=max(round(replica.prompt_tokens * prompt), 1),
        answer_tokens=max(round(replica.answer_tokens * answer), 1),
        kv_bytes=replica.kv_bytes * prompt,
        prefill_tokens_s=replica.prefill_tokens_s * prefill,
        user_tokens_s=replica.user_tokens_s * decode,
        alone_tokens_s=replica.alone_tokens_s * decode,
    )


def _alone_s(replica: Replica) -> float:
    """The time of a request that nobody else delays."""
    return replica.prefill_s + replica.answer_tokens * gap_of(replica, 1)


@dataclass(frozen=True, slots=True)
class Load:
    """What one replica does that prefills and decodes, for each draw."""

    users: Values  # who decode, or wait for their first token
    requests_s: Values
    is_kept: NDArray[np.bool_]  # whether both limits are


class Together:
    """Replicas, one for each draw, that prefill and decode in the same steps.

    Each step, every user who decodes gets a token, and one of `answer_tokens` of them sends the
    next prompt: so prompts come by a Poisson distribution in each step, however long it takes. A
    step takes prompts up to its budget of tokens; the rest waits. Reading memory and computing
    overlap, so that the slower of the two is a step's time.
    """

    def __init__(self, drawn: Sequence[Replica], limits: Limits) -> None:
        def each(read: Callable[[Replica], float]) -> Values:
            return np.array([read(one) for one in drawn], dtype=np.float64)

        self._limits = limits
        self._prompt_tokens = each(lambda one: one.prompt_tokens)
        self._answer_tokens = each(lambda one: one.answer_tokens)
        self._token_s = each(lambda one: 1 / one.prefill_tokens_s)
        self._step_tokens = each(lambda one: one.step_tokens)
        self._variation = each(lambda one: one.variation)
        self._most_users = each(lambda one: one.users)
        self._alone_s = each(lambda one: gap_of(one, 1))
        self._each_s = each(lambda one: gap_of(one, 2)) - self._alone_s

    def most(self) -> Load:
        """Return the most that is kept, for each draw; none where no load is."""
        low = np.zeros_like(self._most_users)
        high = self._most_users
        users = np.zeros_like(low)
        requests_s = np.zeros_like(low)
        for _ in range(HALVINGS):
            decoding = (low + high) / 2
            load = self.at(decoding)
            low = np.where(load.is_kept, decoding, low)
            high = np.where(load.is_kept, high, decoding)
            users = np.where(load.is_kept, load.users, users)
            requests_s = np.where(load.is_kept, load.requests_s, requests_s)
        return Load(users, requests_s, users > 0)

    def at(self, decoding: Values) -> Load:
        """Return the load where so many decode at once."""
        # The same numbers at each load, so that a draw is not by chance kept at a higher one.
        rng = np.random.default_rng(SEED)
        prompts, tokens = self._sent(decoding, rng)
        room = np.maximum(self._step_tokens - decoding, 1)[:, np.newaxis]
        waiting = _waiting(tokens, room)
        step_s = self._step_s(decoding, np.minimum(waiting, room))
        steps, rest = np.divmod(waiting, room)
        prefilled_s = steps * self._step_s(decoding, room) + self._step_s(decoding, rest)
        # A prompt comes at any instant of the step before.
        ttft_s = rng.random(step_s.shape) * np.roll(step_s, 1, axis=1) + prefilled_s
        is_late = ttft_s > self._limits.ttft_s
        late_prompts = _mean_of_prompts(is_late, prompts)
        late_gaps = (step_s > self._limits.itl_s).mean(axis=1)
        requests_s = decoding / (self._answer_tokens * step_s.mean(axis=1))
        users = decoding + requests_s * _mean_of_prompts(ttft_s, prompts)
        is_kept = (late_prompts <= LATE) & (late_gaps <= LATE) & (users <= self._most_users)
        return Load(users, requests_s, is_kept)

    def _sent(self, decoding: Values, rng: Generator) -> tuple[Steps, Steps]:
        """Prompts that come in each step, and all of their tokens."""
        shape = (len(decoding), STEPS)
        mean = (decoding / self._answer_tokens)[:, np.newaxis]
        prompts = rng.poisson(mean, shape).astype(np.float64)
        # A sum of lognormal lengths is nearly lognormal, with less variation.
        variance = self._variation[:, np.newaxis] ** 2 / np.maximum(prompts, 1)
        spread = np.sqrt(np.log1p(variance))
        lengths = np.exp(spread * rng.standard_normal(shape) - spread**2 / 2)
        return prompts, self._prompt_tokens[:, np.newaxis] * prompts * lengths

    def _step_s(self, decoding: Values, tokens: Steps) -> Steps:
        """The time of a step with so many tokens of prompts."""
        gap_s = self._alone_s + self._each_s * (decoding - 1)
        computed = tokens + decoding[:, np.newaxis]
        compute_s = computed * self._token_s[:, np.newaxis]
        slower_s: Steps = np.maximum(gap_s[:, np.newaxis], compute_s)
        return slower_s


def _waiting(tokens: Steps, room: Column) -> Steps:
    """The tokens of prompts that each step finds: those that came, and those left over before."""
    walk = np.cumsum(tokens - room, axis=1)
    left = walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0)
    left_before = np.roll(left, 1, axis=1)
    left_before[:, 0] = 0
    return left_before + tokens


def _mean_of_prompts(values: Steps | NDArray[np.bool_], prompts: Steps) -> Values:
    """The mean over prompts of what each step means for those that came in it."""
    sums = (values * prompts).sum(axis=1)
    means: Values = sums / np.maximum(prompts.sum(axis=1), 1)
    return means
