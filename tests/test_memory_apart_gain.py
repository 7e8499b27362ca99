"""The gain of prefill apart: what is chosen by its interval, and what the interval follows from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.memory.apart_gain import Choice, Gain, Together, gain
from harness.memory.prefill_apart import Limits, Replica, layouts

# a token of a prompt takes 25 us; one user alone has gaps of 10.5 ms, each further one adds 0.5 ms
REPLICA = Replica(
    prompt_tokens=2000,
    answer_tokens=200,
    prefill_tokens_s=40_000,
    users=100,
    user_tokens_s=1 / 0.06,
    step_tokens=8192,
    kv_bytes=1e8,
    alone_tokens_s=1 / 0.0105,
)
LINK = 50e9


@pytest.mark.parametrize(
    ("low", "likely", "high", "want"),
    [
        (1.01, 1.5, 2.0, Choice.APART),
        (1.0, 1.5, 2.0, Choice.OPEN),
        (0.5, 1.5, 2.0, Choice.OPEN),
        (0.5, 0.9, 1.0, Choice.OPEN),
        (0.5, 0.7, 0.99, Choice.TOGETHER),
    ],
)
def test_what_is_chosen(low: float, likely: float, high: float, want: Choice) -> None:
    """Apart and together only where the whole interval says so."""
    assert Gain(likely, low, high, "users").choice is want


def gain_of(replica: Replica, limits: Limits, replicas: int = 4) -> Gain:
    """Of the layout with the most users."""
    ways = layouts(replica, replicas, LINK, limits)
    return gain(replica, max(ways, key=lambda way: way.users), LINK, limits)


@pytest.mark.parametrize(
    ("limits", "of", "want"),
    [
        # prompts of 50 ms may be in 5% of the gaps: of answers of 40 tokens those of two users
        (Limits(5.0, 0.045), "users", Choice.APART),
        # any gap may have prompts in it, so all GPUs can do both
        (Limits(2.0, 1.0), "users", Choice.TOGETHER),
        # without users who wait the two are nearer to each other
        (Limits(itl_s=0.045), "requests/s", Choice.OPEN),
    ],
)
def test_which_limits_choose(limits: Limits, of: str, want: Choice) -> None:
    """A tight ITL is what prefill apart is for."""
    found = gain_of(replace(REPLICA, answer_tokens=40), limits)
    assert (found.of, found.choice) == (of, want)
    assert found.low <= found.likely <= found.high


def test_the_same_each_time() -> None:
    """What is drawn is drawn alike."""
    limits = Limits(1.0, 0.05)
    assert gain_of(REPLICA, limits) == gain_of(REPLICA, limits)


def users_together(replica: Replica, limits: Limits) -> float:
    """Of one replica."""
    return float(Together([replica], limits).most().users[0])


@pytest.mark.parametrize(
    ("changes", "limits", "want"),
    [
        # prompts of one token: 20.5 ms are 10.5 and 20 more users of 0.5 each
        ({"prompt_tokens": 1}, Limits(1.0, 0.0205), 21),
        # a prompt of 50 ms in 5% of the steps at most: of 200 tokens that are ten users
        ({"variation": 0.01}, Limits(1.0, 0.04), 10.5),
        ({}, Limits(0.04, 1.0), 0),  # a prompt alone takes 50 ms
        ({}, Limits(1.0, 0.01), 0),  # the gaps of one user are longer
        ({"users": 20}, Limits(10.0, 10.0), 20),  # the KV cache has no room for more
    ],
)
def test_users_together(changes: dict[str, Any], limits: Limits, want: float) -> None:
    """Of one replica that prefills and decodes, to a user or so."""
    assert users_together(replace(REPLICA, **changes), limits) == pytest.approx(want, abs=1.5)


def test_users_wait_for_prompts_before_theirs() -> None:
    """Prompts beyond a step's budget of tokens stay for the next: a smaller one, a later token."""
    few = Together([replace(REPLICA, step_tokens=1024)], Limits())
    many = Together([REPLICA], Limits())
    decoding = np.array([40.0])
    assert few.at(decoding).users[0] > many.at(decoding).users[0]
