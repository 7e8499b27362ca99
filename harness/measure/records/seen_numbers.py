"""Which request numbers have been seen; a run of consecutive ones is kept as one integer."""

from __future__ import annotations


class SeenNumbers:
    """A set of (worker, number) keys in space proportional to what arrived out of order."""

    def __init__(self) -> None:
        self._below: dict[int, int] = {}  # worker: every number below this one was added
        self._above: dict[int, set[int]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        worker, number = key
        return number < self._below.get(worker, 0) or number in self._above.get(worker, ())

    def add(self, key: tuple[int, int]) -> bool:
        """Add a key; False if it was there already."""
        if key in self:
            return False
        worker, number = key
        above = self._above.setdefault(worker, set())
        above.add(number)
        below = self._below.get(worker, 0)
        while below in above:
            above.remove(below)
            below += 1
        self._below[worker] = below
        return True

    def missing(self) -> dict[int, int]:
        """For each worker with gaps, how many numbers below its highest one were never added."""
        return {
            worker: max(above) + 1 - self._below[worker] - len(above)
            for worker, above in sorted(self._above.items())
            if above
        }
