"""aiperf's `adaptive_scale`: one continuous load, more users after each window, then a hold.

In: `watch`, which holds so many users for a window and returns the requests that completed in it;
out: a Found. The rules are those of aiperf 0.13.0, src/aiperf/timing/strategies/: adaptive_scale.py
(windows, steps), adaptive_scale_controller.py (what follows from a window), adaptive_scale_sla.py
(quantiles); the defaults are those of timing/adaptive_config.py.

- Windows follow one another without a warm-up or a drain. A window has the requests that completed
  in it, also those that were sent when there were fewer users.
- *Discover*: a window that meets the SLO adds users, more of them far below the limit. The first
  that misses it ends the climb, and the last number of users that met it is held.
- *Sustain*: these are held for so many windows, the last of which meets the SLO. Here only requests
  count that were sent in this phase. A window that misses the SLO takes a step back; two such
  windows in a row end the run as failed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop
from lab.duel_table import ContinuousRow

if TYPE_CHECKING:
    from lab.engine_configurations import Configuration

BASE_STEP: Final = 10  # users
MOST_STEPS: Final = 4  # at once, by the margin to the limit
FEWEST, MOST = 1, 512  # users; there is no default for the most: `knee` has this one


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a run. Those that have no default are the tutorial's: an hour, half of it sustained."""

    window_s: float = 30.0
    sustain_windows: int = 60
    most_windows: int = 120
    step_percent: float = 0.0  # of the users; 0: by the margin, the default

    def within(self, budget_s: float, windows: int) -> Settings:
        """The same with windows so long that as many take this budget."""
        return replace(self, window_s=budget_s / windows, most_windows=windows)


@dataclass(frozen=True, slots=True)
class Seen:
    """What completed in a window."""

    requests: int
    observed_ms: float  # the SLO's quantile; nan without a request


@dataclass(frozen=True, slots=True)
class Found:
    """What the tool's summary says at the end of a run."""

    users: int | None  # the last number of users that met the SLO
    first_failing: int | None  # that ended the climb
    boundary: int | None  # users at the beginning of the hold
    boundary_s: float | None  # when it began
    sustained: bool  # the hold lasted as long as was asked for
    seconds: float  # of load
    windows: int


# Holds so many users for so many seconds: requests sent before an instant (s) are left out.
Watch = Callable[[int, float, float], Seen]


class AdaptiveScale:
    """A run on one server."""

    def __init__(self, watch: Watch, limit_ms: float, settings: Settings) -> None:
        self._watch = watch
        self._limit_ms = limit_ms
        self._settings = settings
        self._users = FEWEST
        self._windows = 0
        self._last_passing: int | None = None
        self._first_failing: int | None = None
        self._boundary: int | None = None
        self._boundary_at = 0  # windows before the hold began
        self._stepped_back = False  # since the last window that met the SLO
        self._sustained = False
        self._over = False

    def run(self) -> Found:
        window_s = self._settings.window_s
        while not self._over and self._windows < self._settings.most_windows:
            seen = self._watch(self._users, window_s, self._boundary_at * window_s)
            self._windows += 1
            if seen.requests:  # else nothing follows from it
                self._assess(seen)
        return Found(
            users=self._last_passing,
            first_failing=self._first_failing,
            boundary=self._boundary,
            boundary_s=None if self._boundary is None else self._boundary_at * window_s,
            sustained=self._sustained,
            seconds=self._windows * window_s,
            windows=self._windows,
        )

    def _assess(self, seen: Seen) -> None:
        passes = seen.observed_ms <= self._limit_ms
        if passes:
            self._last_passing = self._users
            self._stepped_back = False
        if self._boundary is not None:
            self._sustain(seen, passes=passes)
        elif passes:
            self._climb(seen)
        else:
            self._begin_to_sustain()

    def _climb(self, seen: Seen) -> None:
        if self._users >= MOST:
            self._over = True
            return
        self._users = min(MOST, self._users + self._step(seen))

    def _begin_to_sustain(self) -> None:
        self._first_failing = self._users
        if self._last_passing is None:
            self._over = True
            return
        self._users = self._last_passing
        self._boundary = self._users
        self._boundary_at = self._windows

    def _sustain(self, seen: Seen, *, passes: bool) -> None:
        if passes:
            held = self._windows - self._boundary_at
            self._sustained = held >= self._settings.sustain_windows
            self._over = self._sustained
            return
        lower = max(FEWEST, self._users - self._step(seen))
        if self._stepped_back or lower == self._users:
            self._over = True
            return
        self._stepped_back = True
        self._users = lower

    def _step(self, seen: Seen) -> int:
        """By how many users: a share of them, or more the further the limit is."""
        if self._settings.step_percent:
            return max(1, ceil(self._users * self._settings.step_percent / 100))
        margin = max(0.0, 1 - seen.observed_ms / self._limit_ms)
        return BASE_STEP * max(1, int(margin * MOST_STEPS))


class AtOnce(ClosedLoop):
    """New users start at once, as a raised limit on concurrent requests lets them."""

    def set_users(self, users: int) -> None:
        more = users - self.users
        kept = min(max(more, 0), self._retiring)
        self._retiring += -kept if more > 0 else -more
        for _ in range(more - kept):
            self._send(self.now_ns)
        self.users = users


class Continuous:
    """An engine under one load; its draws are those of our own search."""

    def __init__(self, case: Configuration, seed: int) -> None:
        (self._slo,) = case.slos
        self._loop = AtOnce(case.engine, case.traffic, seed)
        self._until_ns = 0

    @property
    def sent(self) -> int:
        """Requests so far."""
        return int(self._loop.sample().requests_total) + self._loop.running_users

    def watch(self, users: int, seconds: float, sent_from_s: float) -> Seen:
        """A window; the SLO is judged by its own quantity, over requests or over all gaps."""
        if users != self._loop.users:
            self._loop.set_users(users)
        begin_ns = self._until_ns
        self._until_ns += round(seconds * SECOND)
        self._loop.advance(self._until_ns)
        table = self._loop.table(begin_ns, self._until_ns)
        completed = ~table.is_open & (table.done_ns > begin_ns)
        table = table.select(completed & (table.sent_ns >= sent_from_s * SECOND))
        if self._slo.metric == "itl":
            # A gap precedes every event but a request's first one.
            follows = np.ones(len(table.at_ns), bool)
            follows[table.offsets[:-1]] = False
            ends = np.flatnonzero(follows)
            values_ns = table.at_ns[ends] - table.at_ns[ends - 1]
        else:
            values_ns = table.at_ns[table.offsets[:-1]] - table.sent_ns
        if not len(table):
            return Seen(0, np.nan)
        return Seen(len(table), float(np.quantile(values_ns, self._slo.q)) / MS)


def adaptive_row(case: Configuration, seed: int, settings: Settings) -> ContinuousRow:
    """The search on one engine, and what it cost."""
    server = Continuous(case, seed)
    (slo,) = case.slos
    found = AdaptiveScale(server.watch, slo.limit_ns / MS, settings).run()
    return ContinuousRow(
        users=found.users,
        lo=found.users,
        hi=None if found.first_failing is None else found.first_failing - 1,
        conclusive=found.sustained,
        seconds=round(found.seconds, 1),
        requests=server.sent,
        levels=found.windows,
        first_promise=found.boundary,
        first_promise_s=None if found.boundary_s is None else round(found.boundary_s, 1),
    )
