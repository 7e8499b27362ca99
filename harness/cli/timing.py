"""What `doctor` says of this machine's ceiling, and whether a planned load fits below it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from harness.cli.checks import Finding, Level
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.study.ceiling import Ceiling

ROOM: Final = 0.8  # of the ceiling: a plan above it has no room for a burst


def timing(found: Ceiling) -> Finding:
    """`512 streams, 25,600 tokens/s right within 1 %`."""
    best = found.best
    if best is None:
        lowest = found.rungs[0].streams if found.rungs else 0
        return Finding(
            Level.warn,
            f"not even {lowest} streams are timed within 1 % of what was sent",
            "free the machine of other work, or measure from another",
        )
    what = (
        f"{best.streams} streams, {best.tokens_per_s:,.0f} tokens/s a load process within 1 % of "
        f"what was sent, {best.cpu_us_per_token:.0f} us of CPU a token"
    )
    if found.more:
        what += "; the engine that it was tried on sends no more"
    return Finding(Level.ok, what)


def plan(found: Ceiling, users: int, itl_ns: int) -> Finding:
    """Whether `users` streams with a token each `itl_ns` fit, and how many processes they need."""
    best = found.best
    rate = users * SECOND / itl_ns
    what = f"{users} users at {itl_ns / MS:g} ms a token: {rate:,.0f} tokens/s"
    if best is None:
        return Finding(Level.warn, what, "see the line above")
    need = math.ceil(max(rate / best.tokens_per_s, users / best.streams) / ROOM)
    if need <= 1:
        return Finding(Level.ok, f"{what}, fits one load process")
    if found.more:
        return Finding(
            Level.warn,
            f"{what}, more than could be tried here",
            f"--processes {need} is safe; each step of a run checks itself",
        )
    return Finding(
        Level.warn,
        f"{what}, more than one load process times right",
        f"--processes {need}, with a core for each and one beside",
    )
