"""What a reader says about its own measuring."""

from __future__ import annotations

import resource
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import gevent

from harness.units import SECOND

if TYPE_CHECKING:
    from harness.drive.clock import Clock

LAG_S: Final = 0.02
KEPT: Final = 20_000  # samples: the last seven minutes


class LoopLag:
    """How late the loop wakes a sleeper, sampled by a timer of its own."""

    def __init__(self, clock: Clock) -> None:
        """Begins at once."""
        self._clock = clock
        self.lags_ns: deque[int] = deque(maxlen=KEPT)
        self._loop = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            due = self._clock.now_ns() + round(LAG_S * SECOND)
            gevent.sleep(LAG_S)
            self.lags_ns.append(self._clock.now_ns() - due)

    def figures(self) -> dict[str, float | None]:
        """Milliseconds; None before the first sample."""
        lags = sorted(self.lags_ns)
        return {
            "loop_lag_p99_ms": round(lags[len(lags) * 99 // 100] / 1e6, 3) if lags else None,
            "loop_lag_max_ms": round(lags[-1] / 1e6, 3) if lags else None,
        }

    def close(self) -> None:
        """No more samples."""
        self._loop.kill(block=False)


def cpu_s() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def share(part: int, whole: int) -> float | None:
    """None of nothing."""
    return round(part / whole, 6) if whole else None


Figures = dict[str, Any]
