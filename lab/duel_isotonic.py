"""aiperf's `smooth_isotonic` search, as the others in duel_methods.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lab.duel_curve import is_cliff, mean_interval, replicates, root, too_flat
from lab.duel_methods import AIPERF_MOST, PRECISION, Answer, Bracket

if TYPE_CHECKING:
    from collections.abc import Callable

    from lab.duel_methods import Hold

    Phase = Callable[[], "Phase | None"]

ITERATIONS: Final = 30
REFITS: Final = 3
FIRST, MORE = (0.25, 0.5, 0.75), (0.125, 0.625)  # levels inside the bracket, as shares of it


# ai-dynamo/aiperf, src/aiperf/orchestrator/search_planner/: smooth_isotonic.py at 8a0fabaf,
# _smooth_isotonic_phases.py at 44d0b42e and _replicate_budget.py at f3f25b61.
def aiperf_smooth_isotonic(hold: Hold) -> Answer:
    """Double until the SLO is missed, then hold levels where a smooth rising curve crosses 0."""
    return SmoothIsotonic(hold).answer()


class SmoothIsotonic:
    """Three levels inside the bracket, a curve, its zero, and so on until the bracket is narrow.

    Where the curve has a cliff the bracket is bisected. If the highest level happens to have been
    held twice, its noise may ask for replicates of the candidate.
    """

    def __init__(self, hold: Hold) -> None:
        self._hold, self._left = hold, ITERATIONS
        self._found = Bracket()
        self._margins: dict[int, list[float]] = {}
        self._queue: list[int] = []
        self._last = self._candidate = self._fits = 0
        self._limit_ms = 0.0

    def answer(self) -> Answer:
        if not self._bracketed():
            return self._found.answer(conclusive=False)
        self._add(FIRST)
        phase: Phase | None = self._fit
        while phase is not None and self._left:
            # With nothing queued the last level is held once more.
            self._see(self._queue.pop(0) if self._queue else self._last)
            if not self._queue:
                phase = phase()
        return self._found.answer(conclusive=self._found.precise)

    def _bracketed(self) -> bool:
        """Double until the SLO is missed; whether both ends are known then."""
        users = 1
        while self._found.high is None:
            self._see(users)
            if users >= AIPERF_MOST:
                break
            users = min(2 * users, AIPERF_MOST)
        return self._found.low is not None and self._found.high is not None

    def _see(self, users: int) -> None:
        seen = self._hold(users)
        self._left -= 1
        self._last, self._limit_ms = users, seen.limit_ms
        self._margins.setdefault(users, []).append(seen.margin_ms)
        self._found.add(users, met=seen.margin_ms < 0)

    def _add(self, shares: tuple[float, ...]) -> None:
        """Queue new whole levels at these shares of the bracket."""
        low, high = self._found.ends()
        if high - low > 1:
            wanted = (low + max(1, round((high - low) * share)) for share in shares)
            levels = dict.fromkeys(min(users, high - 1) for users in wanted)
            self._queue += [users for users in levels if users not in self._margins]

    def _fit(self) -> Phase | None:
        """The curve's zero is the next level, unless there is too little for a curve."""
        self._fits += 1
        low, high = self._found.ends()
        middle = (low + high) // 2
        crossing = root(self._margins, low, high)
        if crossing is None and high - low <= 1:
            return None
        inside = middle if crossing is None else min(max(round(crossing), low + 1), high - 1)
        self._candidate = inside
        if too_flat(self._margins) and self._fits < REFITS:
            self._add(MORE)
            return self._fit
        if self._found.precise:
            return None
        if high - low > PRECISION * AIPERF_MOST and is_cliff(self._margins, self._last):
            self._queue = [middle]
            return self._cliff
        if times := replicates(self._margins, self._limit_ms):
            self._queue = [self._candidate] * times
            return self._replicate
        self._queue = [self._candidate]
        return self._fit

    def _cliff(self) -> Phase | None:
        self._queue = [sum(self._found.ends()) // 2]
        return None if self._found.precise else self._cliff

    def _replicate(self) -> Phase | None:
        """The end, if the replicates lie on one side of the limit."""
        lo, hi = mean_interval(self._margins[self._candidate])
        if not lo <= 0 <= hi:
            return None
        self._add(MORE)
        return self._fit
