"""Letting the load drain to nothing, so that a server's sums are of one step's requests alone.

vLLM observes TTFT at the first token and its parts when a request ends: only between two instants
at which nothing is under way are they of the same requests (measure/cohort.py). Each level that a
search repeats, on which its answer rests, is held once so where that is cheap. More often would
take time from the search: of 200 simulated knees it found 2% fewer with every repeat drained, 1%
fewer with the first of each level drained up to lifetimes of a third of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.measure.edges import LATE_NS, read_between
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.measure.samples import ServerSample
    from harness.measure.search import Hold

REPEAT: Final = "repeat"
SHARE: Final = 24  # a lifetime is at most this part of the time that the level may be held
SLACK_NS: Final = 5 * SECOND  # for two ticks and a scrape, beside the lifetimes


def worth_it(hold: Hold, life_ns: float, server: ServerSample | None) -> bool:
    """Whether a level is held from empty to empty: a repeated one, of a server that says what runs.

    That costs about four lifetimes: draining before and after, and settling from nothing.
    """
    if hold.purpose != REPEAT or server is None or not server.running >= 0:
        return False
    return 0 < life_ns <= hold.cap_ns / SHARE


@dataclass(slots=True)
class Drain:
    """A drain under way."""

    began_ns: int
    limit_ns: float
    gone_ns: int = -1  # when there was no user left

    def over(self, now_ns: int, running_users: int, server: ServerSample | None) -> bool:
        """Nobody is there, so no request is open; and a later scrape of the server shows none."""
        if running_users:
            self.gone_ns = -1
            return False
        if self.gone_ns < 0:
            self.gone_ns = now_ns
        if server is None or server.running > 0 or server.waiting > 0:
            return False
        return read_between(server)[0] >= self.gone_ns + LATE_NS

    def late(self, now_ns: int) -> bool:
        """Whether it takes longer than it may."""
        return now_ns - self.began_ns > self.limit_ns + SLACK_NS
