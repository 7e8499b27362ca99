"""When new users send their first request: spread over the time that a request takes.

Locust starts a second's users at once; without this they would stay in lockstep where requests are
alike, and each level would begin with a wave. With more users requests take longer, which shows as
soon as the first of them end. So a user that has waited its part of the time that requests took
when it came asks again what they take by now. Before any request has ended users enter over some
seconds, as 256 that entered a vLLM server at once kept sending together for the whole minute. Then
those that still wait enter over a few times what the first requests took, which are the shortest.
The run's first user waits for nothing: alone it makes no wave, and its request tells the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.load.plan import seeded_random
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.senders.drive_options import DriveOptions

LEAST_STAGGER_S: Final = 0.3  # new users start spread over this at least
MOST_STAGGER_S: Final = 10.0
UNKNOWN_STAGGER_S: Final = 4.0  # while nobody knows what requests take: most take less
UNKNOWN_WAIT_S: Final = 0.1  # after which a user asks again meanwhile
FIRST_LIFETIMES: Final = 3  # of the first requests, over which the users of a first level enter
FIRST_USER: Final = 0  # its number in the run
START_S: Final = 0.001  # from one user's start to the next's: a start costs half of it
SMOOTHING: Final = 0.1  # weight of the latest request in the mean service time


@dataclass(slots=True)
class Entry:
    """A user that has come and has not started."""

    came_s: float
    part: float  # of the time over which users are spread
    is_first: bool  # nobody knew what requests take when it came
    waits_for_end: bool  # nobody does so far
    start_s: float | None = None  # its turn among those that are due


class Stagger:
    """Of one process; its users ask it again and again, until there is nothing left to wait."""

    def __init__(self, options: DriveOptions) -> None:
        self._options = options
        self._service_s = 0.0  # smoothed
        self._next_start_s = 0.0
        self._entries: dict[int, Entry] = {}

    def note_service_time(self, e2e_s: float) -> None:
        """Of a request that has ended well."""
        # The first one counts fully, as there is no mean yet.
        weight = SMOOTHING if self._service_s else 1.0
        self._service_s += weight * (e2e_s - self._service_s)

    def wait_s(self, user: int) -> float:
        """How long the user waits before it asks again; 0: it starts now."""
        now_s = time.monotonic()
        if user not in self._entries:
            is_first = not self._service_s
            self._entries[user] = Entry(now_s, self._part(user), is_first, is_first)
        entry = self._entries[user]
        if entry.waits_for_end and self._service_s:
            self._first_end(entry, now_s)
        if entry.start_s is None:
            due_s = entry.came_s + entry.part * self._window_s(entry)
            if due_s > now_s:
                return self._shortly(due_s - now_s)
            # never so many at once that starting them keeps this process from its reads
            self._next_start_s = max(self._next_start_s, now_s) + START_S
            entry.start_s = self._next_start_s
        if entry.start_s > now_s:
            return entry.start_s - now_s
        self.forget(user)
        return 0.0

    def _part(self, user: int) -> float:
        """By the user's number: runs with the same seed stagger in the same way."""
        if user == FIRST_USER:
            return 0.0
        return seeded_random(self._options.seed, "stagger", user).random()

    def _shortly(self, wait_s: float) -> float:
        """As long, or less where the first request to end says more."""
        return wait_s if self._service_s else min(wait_s, UNKNOWN_WAIT_S)

    def _first_end(self, entry: Entry, now_s: float) -> None:
        """The first request has ended: those that still wait are spread from now on."""
        entry.waits_for_end = False
        entered = min((now_s - entry.came_s) / UNKNOWN_STAGGER_S, entry.part)
        entry.came_s = now_s
        entry.part = (entry.part - entered) / (1 - entered)

    def forget(self, user: int) -> None:
        """It has started, or has left."""
        self._entries.pop(user, None)

    def _window_s(self, entry: Entry) -> float:
        if self._options.batch:  # its users start together
            return 0.0
        window_s = min(max(self._spread_s(entry), LEAST_STAGGER_S), MOST_STAGGER_S)
        think = self._options.workload.think_ms
        if think:  # a user may begin with what is left of a pause
            window_s += think.mean * MS / SECOND
        return window_s

    def _spread_s(self, entry: Entry) -> float:
        """Over what new users are to be spread, by what is known."""
        if not entry.is_first:
            return self._service_s
        first_s = FIRST_LIFETIMES * self._service_s or UNKNOWN_STAGGER_S
        return max(self._service_s, min(first_s, UNKNOWN_STAGGER_S))
