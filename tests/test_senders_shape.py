"""The shape adaptor: what a controller says becomes what Locust is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.load.arrivals import LoadTarget
from harness.senders.session import ControllerShape, say_lost, spawn_rate

if TYPE_CHECKING:
    from harness.records.samples import ServerSample


class Script:
    """Answers from a list."""

    def __init__(self, targets: list[LoadTarget]) -> None:
        self.targets = targets
        self.seen: list[tuple[int, int, int]] = []

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        """The next one."""
        assert server is None
        self.seen.append((now_ns, known_ns, running_users))
        return self.targets[len(self.seen) - 1]


class Users:
    """Stands for Locust's runner: how many users run at each tick."""

    def __init__(self) -> None:
        self.user_count = 0
        self.shape_last_tick: tuple[int, float] | None = None


@pytest.mark.parametrize(
    ("name", "targets", "running", "told"),
    [
        ("up", [1, 4], [0, 1], [1, 4]),
        ("down at once", [4, 2], [0, 4], [4, 2]),
        ("up waits for the drain", [4, 2, 8, 8, 8], [0, 4, 4, 3, 2], [4, 2, 2, 2, 8]),
        ("further down waits too", [8, 4, 2, 2], [0, 8, 7, 4], [8, 4, 4, 2]),
        ("zero does not wait", [8, 4, 0], [0, 8, 7], [8, 4, 0]),
        ("up while spawning does not wait", [4, 8], [0, 2], [4, 8]),
    ],
)
def test_targets_reach_locust(
    name: str, targets: list[int], running: list[int], told: list[int]
) -> None:
    """Locust counts retiring users as users, so a step up waits until a step down has drained."""
    script = Script([LoadTarget(users, 2.0) for users in targets])
    shape = ControllerShape(script, lambda: 7, lambda: 5, lambda: None, lambda: None)
    shape.runner = runner = Users()  # type: ignore[assignment]
    got = []
    for users in running:
        runner.user_count = users
        got.append(shape.tick())
    assert got == [(users, 2.0) for users in told], name
    assert script.seen == [(7, 5, users) for users in running]


def test_it_is_asked_until_the_answer_is_another_one() -> None:
    """Locust is not given what it has; asked by anybody else, or after `start`, it answers."""
    targets = [LoadTarget(users, 2.0) for users in (1, 1, 1, 4, 4)]
    script = Script(targets)
    shape = ControllerShape(
        script, lambda: 7, lambda: 5, lambda: None, lambda: None, asks_per_s=1000
    )
    shape.runner = runner = Users()  # type: ignore[assignment]
    got = []
    for runner.shape_last_tick in (None, (1, 2.0), None):
        got.append(shape.tick())
    assert got == [(1, 2.0), (4, 2.0), (4, 2.0)]
    assert len(script.seen) == 5


def test_a_rate_is_told_once_everybody_is_there() -> None:
    """Locust's users are the three processes that send; the level and its rate go another way."""
    targets = [
        LoadTarget(users, 2.0, pace=pace)
        for users, pace in ((40, (0, 0.4)), (40, (0, 0.4)), (80, (1, 0.8)))
    ]
    told: list[tuple[int, float]] = []
    shape = ControllerShape(
        Script(targets),
        lambda: 7,
        lambda: 5,
        lambda: None,
        lambda: None,
        pace=lambda level, rate: told.append((level, rate)),
        pacers=3,
    )
    shape.runner = runner = Users()  # type: ignore[assignment]
    got = []
    for runner.user_count in (0, 3, 3):
        got.append(shape.tick())
    assert got == [(3, 3.0)] * 3
    assert told == [(0, 0.4), (1, 0.8)]


def test_done_is_said_once_and_holds_the_level() -> None:
    """After `done` the controller is not asked again and Locust is told to change nothing."""
    said: list[bool] = []
    script = Script([LoadTarget(3, 2.0), LoadTarget(0, 2.0, done=True)])
    shape = ControllerShape(script, lambda: 7, lambda: 5, lambda: None, lambda: said.append(True))
    shape.runner = Users()  # type: ignore[assignment]
    assert [shape.tick() for _ in range(4)] == [(3, 2.0)] * 4
    assert said == [True]
    assert len(script.seen) == 2


def test_an_error_of_the_controller_ends_the_run() -> None:
    """It is kept for the session to raise; Locust itself would log it and go on for ever."""
    said: list[bool] = []
    shape = ControllerShape(
        Script([]), lambda: 7, lambda: 5, lambda: None, lambda: said.append(True)
    )
    shape.runner = Users()  # type: ignore[assignment]
    assert shape.tick() == (0, 1.0)
    assert isinstance(shape.error, IndexError)
    assert said == [True]


@pytest.mark.parametrize(
    ("asked", "given"), [(5.0, 5.0), (0.0, 1.0), (float("inf"), 1.0), (float("nan"), 1.0)]
)
def test_spawn_rates_are_ones_that_locust_accepts(asked: float, given: float) -> None:
    """Finite and above zero."""
    assert spawn_rate(asked) == given


@pytest.mark.parametrize(
    ("lost", "want"),
    [
        ((), ""),
        (("worker 0 ended",), "worker 0 ended; see its log, and run again."),
        (("worker 0 ended", "b"), "worker 0 ended (1 more was lost); see its log, and run again."),
        (("worker 0 ended", "b", "c"), "worker 0 ended (2 more were lost); see its log, and run"),
    ],
)
def test_lost_workers(lost: tuple[str, ...], want: str) -> None:
    """The first one is named, the others are counted."""
    said = say_lost(lost)
    assert said.startswith(want)
    assert bool(said) == bool(lost)
