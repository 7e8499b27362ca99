"""When requests of an open loop are due, and which of them are this process's.

Every process computes the whole schedule of a level from the seed and sends its stripe of it: of
`processes` the requests k with k mod processes = worker. Nobody hands out numbers, so there is no
gap and no repeat, however late a process is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, count, islice, repeat
from random import Random
from typing import Final, NamedTuple

from harness.errors import ConfigError
from harness.load.lengths import FROM_DATA
from harness.load.plan import seeded_random
from harness.units import SECOND

POISSON: Final = "poisson"
# gaps alike, exponential, gamma with this coefficient of variation, as timestamps say
ARRIVALS: Final = ("constant", POISSON, "gamma:CV", FROM_DATA)
MAX_CV: Final = 10.0


@dataclass(frozen=True, slots=True)
class LoadTarget:
    users: int
    spawn_per_s: float
    done: bool = False
    pace: tuple[int, float] | None = None  # open loop: the level and its rate, in place of users


class Schedule(NamedTuple):
    """The rate of a level from an instant on the records' clock on; 0: nothing is due."""

    level: int
    rate_per_s: float
    start_ns: int


class Due(NamedTuple):
    """Request `number` of the schedule of a level, counted from 0 over all processes."""

    level: int
    number: int
    at_ns: int


def parse_arrivals(text: str) -> str:
    """`constant`, `poisson` or `gamma:2`. Raises ConfigError."""
    word = text.strip()
    if word not in ("constant", POISSON, FROM_DATA) and not _is_gamma(word):
        raise ConfigError(
            f"--arrivals is {text!r}: expected constant, poisson, data, or gamma:CV with a "
            f"coefficient of variation up to {MAX_CV:g}; try --arrivals gamma:2."
        )
    return word


def _is_gamma(word: str) -> bool:
    kind, _, cv = word.partition(":")
    with suppress(ValueError):
        return kind == "gamma" and 0 < float(cv) <= MAX_CV
    return False


def offsets_ns(arrivals: str, rate_per_s: float, rng: Random) -> Iterator[int]:
    """Endless offsets in ns from the start of a level, at `rate_per_s` on average."""
    if not rate_per_s or arrivals == FROM_DATA:
        return iter(())
    if arrivals == "constant":  # the k-th is due at k / rate, free of summed rounding
        return (round(k * SECOND / rate_per_s) for k in count())
    if arrivals == POISSON:
        gaps_s = (rng.expovariate(rate_per_s) for _ in repeat(None))
    else:
        _, _, cv = arrivals.partition(":")
        shape = float(cv) ** -2  # of a gamma, cv = 1 / sqrt(shape)
        scale_s = 1 / (rate_per_s * shape)
        gaps_s = (rng.gammavariate(shape, scale_s) for _ in repeat(None))
    # summed as floats in seconds and rounded once: no drift
    return (round(at_s * SECOND) for at_s in accumulate(gaps_s))


class Stripe:
    """The requests of this process, level after level; a level ends when the next one starts."""

    def __init__(
        self,
        arrivals: str,
        seed: int,
        worker: int = 0,
        processes: int = 1,
        due_ns: Callable[[Iterator[int]], Iterator[int]] = iter,
    ) -> None:
        """`due_ns`: of own data, what becomes of the offsets that are planned for a level."""
        self._arrivals = arrivals
        self._seed = seed
        self._due_ns = due_ns
        self._worker = worker
        self._processes = processes
        self._told: list[Schedule] = []
        self._due: Iterator[Due] = iter(())
        self._ahead: Due | None = None

    def tell(self, schedule: Schedule) -> None:
        self._told.append(schedule)

    def ahead(self) -> Due | None:
        """The next request, the same one until `take`; None: nothing is due as far as is known."""
        while True:
            self._ahead = self._ahead or next(self._due, None)
            if not self._told:
                return self._ahead
            # It is due before the next level begins: that one waits.
            if self._ahead and self._ahead.at_ns < self._told[0].start_ns:
                return self._ahead
            self._due = self._due_by(self._told.pop(0))
            self._ahead = None

    def _due_by(self, schedule: Schedule) -> Iterator[Due]:
        # Every process draws the arrivals of all and takes every n-th: so a run sends the same at
        # the same instants with any number of processes, and none has to ask another (decision 18).
        level, rate_per_s, start_ns = schedule
        rng = seeded_random(self._seed, "arrivals", level)
        offsets = offsets_ns(self._arrivals, rate_per_s, rng)
        if rate_per_s:
            offsets = self._due_ns(offsets)
        mine = islice(enumerate(offsets), self._worker, None, self._processes)
        return (Due(level, number, start_ns + at_ns) for number, at_ns in mine)

    def take(self) -> None:
        self._ahead = None
