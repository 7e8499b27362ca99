"""Open-loop requests against the scheduler in simulated time: each is sent when it is due.

`advance` and `table` are those of `ClosedLoop`; `set_rate` takes the place of `set_users`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.load.arrivals import POISSON, Schedule, Stripe
from lab.closed_loop import ClosedLoop, Traffic

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig


class OpenLoop(ClosedLoop):
    """Sends by schedule, whether or not other requests have ended."""

    def __init__(
        self,
        config: EngineConfig,
        traffic: Traffic,
        seed: int,
        *,
        arrivals: str = POISSON,
        sent_ns: Callable[[int], int] = int,
    ) -> None:
        """`sent_ns`: of when a request is due, when it is sent; later where the sender stalls."""
        super().__init__(config, traffic, seed)
        self._stripe = Stripe(arrivals, seed)
        self._sent_ns = sent_ns
        self._told = (-1, 0.0)

    def set_rate(self, level: int, rate_per_s: float) -> None:
        """From now on; the same as before is not begun again."""
        if self._told != (level, rate_per_s):
            self._told = level, rate_per_s
            self._stripe.tell(Schedule(level, rate_per_s, self.now_ns))

    def _arrive(self, now_ns: int) -> None:
        while (due := self._stripe.ahead()) is not None and due.at_ns <= now_ns:
            self._stripe.take()
            self._records.scheduled[self._count] = due.at_ns
            self._send(self._sent_ns(due.at_ns))
        super()._arrive(now_ns)

    def _next_ns(self) -> int:
        following, due = super()._next_ns(), self._stripe.ahead()
        return following if following >= 0 or due is None else max(due.at_ns, self.now_ns)

    def _follow(self, at_ns: int) -> None:
        """The end of a request leads to nothing."""
