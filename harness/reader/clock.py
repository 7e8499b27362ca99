"""The records' clock: nanoseconds since the Unix epoch that never step.

CLOCK_REALTIME is read once against CLOCK_MONOTONIC and then only the latter counts. Kernel stamps
are CLOCK_REALTIME, so the difference between the two is sampled again beside the reads. NTP slews
both alike: their difference changes only when somebody sets the clock, and then stamps around that
moment mean nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

STEP_NS: Final = 100_000  # smaller corrections change nothing that we report, and are followed
SHARP_NS: Final = 20_000  # a sample whose two readings lie further apart says nothing
READINGS: Final = 20
TRIES: Final = 5


class Clock:
    """`now_ns` for records; `offset_ns` for kernel stamps. The two readers can be replaced."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        # of many readings the sharpest: one that is torn apart would be a step at the next sample
        self._unsure_ns, self.anchor_ns = min(self._reading() for _ in range(READINGS))
        self.offset_ns = 0  # realtime minus the records' clock; the sharpest sample so far sets it
        self.steps = 0

    def now_ns(self) -> int:
        return self._monotonic_ns() + self.anchor_ns

    def shift(self, by_ns: int) -> None:
        """Set it forward, before anything is stamped by it: to another machine's, say."""
        self.anchor_ns += by_ns
        self.offset_ns -= by_ns

    def _reading(self) -> tuple[int, int]:
        """(how far its two monotonic instants are apart, realtime minus monotonic), in ns."""
        before = self._monotonic_ns()
        real = self._realtime_ns()
        after = self._monotonic_ns()
        # Against the middle: it is wrong by half of the distance at most.
        return after - before, real - (before + after) // 2

    def sample(self) -> tuple[int, bool]:
        """(records' time now, whether the realtime clock was set since the last sample)."""
        # Who was preempted between the readings would miss a step, and believe stamps beside it.
        for _ in range(TRIES):
            window, ahead = self._reading()
            if window <= SHARP_NS:
                break
        else:
            return self.now_ns(), False
        offset = ahead - self.anchor_ns
        change = abs(offset - self.offset_ns)
        # A vague sample never takes a sharp one's place, unless the two cannot both be right.
        if window < self._unsure_ns or change > window + self._unsure_ns:
            self.offset_ns = offset
            self._unsure_ns = window
        stepped = change > STEP_NS
        if stepped:
            self.steps += 1
        return self.now_ns(), stepped


CLOCK: Final = Clock()
