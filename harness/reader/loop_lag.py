"""What keeps the loop from the sockets: how late it wakes a sleeper, and the garbage collector.

A full collection of a Locust process takes tens of milliseconds, at a moment of its own choosing.
So automatic collection is off while load is sent. New objects are looked through once a second,
which takes a fraction of a millisecond, those that survived one look only when there are many, and
all others between loads (`sweep`).
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

import gevent

from harness.units import SECOND

if TYPE_CHECKING:
    from harness.reader.clock import Clock

LAG_S: Final = 0.02
RECENT_S: Final = 1.0
FINE: Final = 16  # bins from one power of two to the next: a lag is known to 6%


class LoopLag:
    """How late the loop wakes a sleeper, sampled by a timer of its own."""

    def __init__(self, clock: Clock, every_s: float = LAG_S) -> None:
        self._clock = clock
        self._every_s = every_s
        self._recent_ns: deque[int] = deque(maxlen=round(RECENT_S / every_s))
        self._bins: Counter[int] = Counter()  # by the bin's upper end, ns
        self._most_ns = 0
        self._loop = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            due_ns = self._clock.now_ns() + round(self._every_s * SECOND)
            gevent.sleep(self._every_s)
            self.add(self._clock.now_ns() - due_ns)

    def add(self, lag_ns: int) -> None:
        self._recent_ns.append(lag_ns)
        self._most_ns = max(self._most_ns, lag_ns)
        # so wide that FINE of them lie between the powers of two around this lag
        shift = max(lag_ns.bit_length() - FINE.bit_length(), 0)
        width_ns = 1 << shift
        end_ns = (lag_ns // width_ns + 1) * width_ns
        self._bins[end_ns] += 1

    def recent_ms(self) -> float:
        """The worst of the last second."""
        return round(max(self._recent_ns, default=0) / 1e6, 3)

    def figures(self) -> dict[str, float | None]:
        """Milliseconds, of the whole run; the p99 at most 7% too high; None without a sample.

        Asked for with each batch of records, on the reader's loop: a few hundred bins are looked
        at, however long the run.
        """
        p99_ms = None
        max_ms = None
        if self._bins:
            p99_ns = min(self._p99_ns(), self._most_ns)  # a bin's upper end may lie above all lags
            p99_ms = round(p99_ns / 1e6, 3)
            max_ms = round(self._most_ns / 1e6, 3)
        return {
            "loop_lag_recent_ms": self.recent_ms(),
            "loop_lag_p99_ms": p99_ms,
            "loop_lag_max_ms": max_ms,
        }

    def _p99_ns(self) -> int:
        n = self._bins.total()
        above = n - 1 - n * 99 // 100  # samples that are greater than the p99
        for end_ns in sorted(self._bins, reverse=True):
            above -= self._bins[end_ns]
            if above < 0:
                return end_ns
        return 0

    def close(self) -> None:
        self._loop.kill(block=False)


EVERY_S: Final = 1.0
MANY_OLD: Final = 200_000  # objects that survived the youngest generation


class Collecting:
    """Automatic collection is off from here until `close`."""

    def __init__(self) -> None:
        """What exists now is set aside: nothing looks at it again."""
        self._was_on = gc.isenabled()
        gc.collect()
        gc.freeze()
        gc.disable()
        self._old = 0
        self._loop = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            gevent.sleep(EVERY_S)
            # New objects since the last look, and so at least those that survive this one.
            self._old += gc.get_count()[0]
            gc.collect(0)
            if self._old > MANY_OLD:
                self._old = 0
                # Not generation 2: what has survived twice lives as long as the load, and looking
                # through all of it takes the tens of milliseconds that this class is here to avoid.
                gc.collect(1)

    def close(self) -> None:
        self._loop.kill(block=False)
        gc.unfreeze()
        if self._was_on:
            gc.enable()


def sweep() -> None:
    """Between loads: look at everything, also at what was set aside, and set the rest aside again.

    A run's records hang in cycles with its session, which was there when the load began.
    """
    gc.unfreeze()
    gc.collect()
    if not gc.isenabled():
        gc.freeze()
