"""The records' clock: nanoseconds since the Unix epoch that never step.

CLOCK_REALTIME is read once against CLOCK_MONOTONIC and then only the latter counts. Kernel stamps
are CLOCK_REALTIME, so the difference between the two is sampled again beside the reads; when it
jumps, somebody set the clock and stamps around that moment mean nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_NS: Final = 2_000_000  # a larger change between two samples is a step, not slewing
SHARP_NS: Final = 20_000  # a sample whose two readings lie further apart says nothing


class Clock:
    """`now_ns` for records; `convert` for kernel stamps. The two readers can be replaced."""

    def __init__(
        self,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        realtime_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Take the anchor now."""
        self._monotonic_ns = monotonic_ns
        self._realtime_ns = realtime_ns
        self.anchor_ns = realtime_ns() - monotonic_ns()
        self.offset_ns = 0  # realtime minus the records' clock, as last sampled
        self.steps = 0

    def now_ns(self) -> int:
        """The records' time."""
        return self._monotonic_ns() + self.anchor_ns

    def sample(self) -> tuple[int, bool]:
        """(records' time now, whether the realtime clock stepped since the last sample)."""
        before = self._monotonic_ns()
        real = self._realtime_ns()
        after = self._monotonic_ns()
        now = after + self.anchor_ns
        if after - before > SHARP_NS:
            return now, False
        offset = real - (before + after) // 2 - self.anchor_ns
        stepped = abs(offset - self.offset_ns) > STEP_NS
        self.steps += stepped
        self.offset_ns = offset
        return now, stepped


CLOCK: Final = Clock()


def now_ns() -> int:
    """This process's records' clock."""
    return CLOCK.now_ns()
