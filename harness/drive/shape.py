"""Locust's LoadTestShape, told what to do by a controller that knows nothing of Locust."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from locust import LoadTestShape

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records.samples import ServerSample


class ShapeTarget(Protocol):
    """What the load should be: any object with these attributes."""

    @property
    def users(self) -> int:
        """Users that should run."""

    @property
    def spawn_per_s(self) -> float:
        """How fast to get there, users per second."""

    @property
    def pace(self) -> tuple[int, float] | None:
        """(level, requests per second) of an open loop, whatever `users` is."""

    @property
    def done(self) -> bool:
        """Whether the run is over."""


class Controller(Protocol):
    """Decides about the load. Pure: time and the server's figures are passed in."""

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> ShapeTarget:
        """Called about once a second; both instants are on the records' clock.

        All that happened before `known_ns` is in the sinks.
        """


class ControllerShape(LoadTestShape):
    """Asks the controller once a second and hands its answer to Locust's runner.

    Locust counts users that were told to retire as users until their request has ended: another
    target before that would spawn too few, or retire the wrong ones, and leave the level short
    when they go. So the next target waits until the backlog of a step down has drained; only zero
    does not, since there everybody leaves.

    After `done` the shape keeps its last answer: ending the run in order is the session's part,
    and returning None would let Locust kill the open requests first.
    """

    def __init__(
        self,
        controller: Controller,
        now_ns: Callable[[], int],
        known_ns: Callable[[], int],
        sample: Callable[[], ServerSample | None],
        done: Callable[[], None],
        *,
        pace: Callable[[int, float], None] = lambda _level, _rate: None,
        pacers: int = 1,
    ) -> None:
        """`sample` gives the server's latest figures; `done` is called once, at the end.

        In an open loop `pace` is told the level and its rate, and Locust's users are `pacers`.
        """
        super().__init__()
        self.controller = controller
        self.now_ns = now_ns
        self.known_ns = known_ns
        self.sample = sample
        self.done = done
        self.pace, self.pacers = pace, pacers
        self.current: tuple[int, float] = (0, 1.0)
        self.over = False
        self.error: Exception | None = None  # what the controller raised

    def tick(self) -> tuple[int, float]:
        """Users and spawn rate for Locust."""
        if not self.over:
            try:
                self._ask()
            except Exception as error:  # noqa: BLE001 - Locust would log it and go on for ever
                self.error = error
                self._end()
        return self.current

    def _ask(self) -> None:
        running: int = self.get_current_user_count()
        target = self.controller.tick(self.now_ns(), running, self.sample(), self.known_ns())
        draining = running > self.current[0]
        if target.done:
            self._end()
        elif target.pace is not None:
            self.current = self.pacers, float(self.pacers)
            if running == self.pacers:  # one that comes later would begin late
                self.pace(*target.pace)
        elif not draining or target.users == 0:
            self.current = target.users, spawn_rate(target.spawn_per_s)

    def _end(self) -> None:
        self.over = True
        self.done()


def spawn_rate(users_per_s: float) -> float:
    """A rate that Locust accepts: finite and above zero."""
    return users_per_s if math.isfinite(users_per_s) and users_per_s > 0 else 1.0
