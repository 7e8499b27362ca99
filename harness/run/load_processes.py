"""How many load processes a load needs: `--processes auto`, and `doctor --users`.

One process reads its streams on one core. `MEASURED` is what one was shown to time right, `doctor`
measures it on this machine. A fifth of it is left for bursts. Each process wants a core, and one
more is for the rest: the master and the decoder processes.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Final, NamedTuple

from harness.metrics.numbers import count_of
from harness.reader.cpu_limit import read_cpu_limit
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.load import Load

HEADROOM: Final = 0.8  # of the ceiling: more leaves no room for bursts
USUAL_ITL_NS: Final = 20 * MS  # of each stream, where nobody has said


class OneProcess(NamedTuple):
    """What one load process times right, all of it at once; or a load. 0: it is not limited."""

    streams: float
    tokens_per_s: float
    requests_per_s: float = 0.0


# On a quiet core, 128 tokens an answer: docs/precision.md.
MEASURED: Final = OneProcess(streams=1_024, tokens_per_s=50_000, requests_per_s=390)


class Processes(NamedTuple):
    """How many are used; `note`: why, or "" where one is enough or the user has said."""

    number: int
    note: str = ""


def needed(wanted: OneProcess, one: OneProcess = MEASURED) -> int:
    """How many share such a load out so that each has its headroom: the largest need decides."""
    full = max(have / most for have, most in zip(wanted, one, strict=True) if most)
    return max(math.ceil(full / HEADROOM), 1)


def automatic(most: Load, output_tokens: float) -> Processes:
    """For a load of at most so much, answers of so many tokens on average, on this machine."""
    need = needed(_load_of(most, output_tokens))
    free = free_cores()
    number = min(need, max(free - 1, 1))
    if need == 1:
        return Processes(1)
    what = f"{most.digits(most.number)}{most.mark}"
    if number < need:
        cores = count_of(free, "core")
        note = (
            f"{number} of the {need} that {what} need, as this machine has {cores} free; each "
            "level is checked, and a larger machine holds more"
        )
        return Processes(number, note)
    return Processes(number, f"{number} for at most {what}")


def _load_of(most: Load, output_tokens: float) -> OneProcess:
    if most.by_schedule:
        return OneProcess(0, most.rate_per_s * output_tokens, most.rate_per_s)
    return OneProcess(most.users, most.users * SECOND / USUAL_ITL_NS, 0)


def free_cores() -> int:
    """Of those that this process may use, without what others used in the last minute.

    The load average is that of the whole machine, also in a container that has a part of it.
    """
    usable = min(len(os.sched_getaffinity(0)), read_cpu_limit().cores)
    machine_cores = os.cpu_count() or usable
    idle_on_machine = machine_cores - os.getloadavg()[0]
    return max(math.floor(min(usable, idle_on_machine)), 1)
