"""When new users send their first request."""

from __future__ import annotations

import heapq
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from harness.load.plan import seeded_random
from harness.load.workloads import workload
from harness.senders.drive_options import DriveOptions
from harness.senders.stagger import START_S, Stagger

if TYPE_CHECKING:
    from collections.abc import Callable

USERS = 100
SEED = 1


def started(
    monkeypatch: pytest.MonkeyPatch,
    service_s: Callable[[float], float],
    batch: int = 0,
    first_end_s: float = 0.0,
) -> dict[int, float]:
    """User -> when it starts, if all come at 0; `service_s`: what requests take that end then.

    None ends before `first_end_s`; at 0 there was a level before.
    """
    clock = SimpleNamespace(now_s=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr("harness.senders.stagger.time", fake)
    options = DriveOptions("http://127.0.0.1:9", "m", workload("chat"), seed=SEED, batch=batch)
    stagger = Stagger(options)
    for _ in range(0 if first_end_s else 100):  # of the level before
        stagger.note_service_time(service_s(0.0))
    asking = [(0.0, user) for user in range(USERS)]
    found = {}
    while asking:
        clock.now_s, user = heapq.heappop(asking)
        for _ in range(10 if clock.now_s >= first_end_s else 0):
            stagger.note_service_time(service_s(clock.now_s))
        wait_s = stagger.wait_s(user)
        if wait_s > 0:
            heapq.heappush(asking, (clock.now_s + wait_s, user))
        else:
            found[user] = clock.now_s
    return found


def parts() -> dict[int, float]:
    """What each user draws; the first of all waits for nothing."""
    drawn = {user: seeded_random(SEED, "stagger", user).random() for user in range(USERS)}
    return drawn | {0: 0.0}


@pytest.mark.parametrize(("takes_s", "spread_s"), [(2.0, 2.0), (0.01, 0.3), (60.0, 10.0)])
def test_users_start_spread_over_what_requests_take(
    takes_s: float, spread_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least over 0.3 s, at most over 10."""
    got = started(monkeypatch, lambda _: takes_s)
    want = {user: part * spread_s for user, part in parts().items()}
    assert got == pytest.approx(want, abs=20 * START_S)


def test_users_wait_for_longer_once_requests_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first half second on, twice as long: who has not started by then."""
    got = started(monkeypatch, lambda now_s: 1.0 if now_s < 0.5 else 2.0)
    want = {user: part if part < 0.5 else 2 * part for user, part in parts().items()}
    early_or_late = {user for user, part in parts().items() if abs(part - 0.5) > 0.05}
    for user in early_or_late:
        assert got[user] == pytest.approx(want[user], abs=0.1), user


@pytest.mark.parametrize(
    ("takes_s", "first_end_s", "all_in_s"),
    [(60.0, 60.0, 4.0), (1.0, 1.0, 4.0), (0.5, 0.5, 2.0), (0.05, 0.1, 0.4)],
)
def test_the_first_users_enter_over_some_seconds(
    takes_s: float, first_end_s: float, all_in_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 until a request has ended; then who still waits, over three times what that took."""
    got = started(monkeypatch, lambda _: takes_s, first_end_s=first_end_s)
    before = first_end_s / 4.0
    after_s = all_in_s - first_end_s
    want = {}
    for user, part in parts().items():
        want[user] = 4.0 * part
        if part > before:
            want[user] = first_end_s + (part - before) / (1 - before) * after_s
    assert got == pytest.approx(want, abs=0.15)


@pytest.mark.parametrize("name", ["chat", "conversation"])
def test_the_first_user_waits_for_nothing(name: str) -> None:
    """Not for a part of a pause either; the others do not begin with it."""
    options = DriveOptions("http://127.0.0.1:9", "m", workload(name), seed=SEED)
    stagger = Stagger(options)
    assert stagger.wait_s(0) < 2 * START_S
    assert min(stagger.wait_s(user) for user in range(1, 9)) > 2 * START_S


def test_no_two_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the users of a batch, which wait for nothing else."""
    got = started(monkeypatch, lambda _: 1.0, batch=USERS)
    want = [START_S * (i + 1) for i in range(USERS)]
    assert sorted(got.values()) == pytest.approx(want)


def test_a_user_that_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with its number that came later would wait from the beginning."""
    clock = SimpleNamespace(now_s=0.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now_s)
    monkeypatch.setattr("harness.senders.stagger.time", fake)
    stagger = Stagger(DriveOptions("http://127.0.0.1:9", "m", workload("chat"), seed=SEED))
    waits_s = stagger.wait_s(7)
    clock.now_s = 5.0
    stagger.forget(7)
    assert stagger.wait_s(7) == pytest.approx(waits_s)
