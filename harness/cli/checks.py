"""CHECKS: what `doctor` looks at, one row each, and what it says of this machine's ceiling.

A finding that is not fine names its remedy.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import ConfigError
from harness.server.gpu import local_gpus
from harness.study.preflight import FILES_BESIDE_USERS, raise_file_limit
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.study.ceiling import Ceiling

CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
FAST_CLOCKS: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
DEFAULT_USERS: Final = 512  # knee's --max-users
PYTHON: Final = (3, 11)
LOCUST: Final = (2, 47)
CORES: Final = 2  # one for the reader, one for its decoder
DISK_BYTES: Final = 1 << 30
CLOCK_READ_NS: Final = 500
ROOM: Final = 0.8  # of the ceiling: a plan above it has no room for a burst


class Level(Enum):
    """How bad a finding is."""

    ok = "ok"
    warn = "warn"
    fail = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check saw."""

    level: Level
    what: str
    remedy: str = ""


def _judge(fine: bool, what: str, remedy: str, otherwise: Level = Level.fail) -> Finding:
    return Finding(Level.ok, what) if fine else Finding(otherwise, what, remedy)


def python() -> Finding:
    """The interpreter is new enough."""
    new_enough = sys.version_info >= PYTHON
    return _judge(new_enough, sys.version.split()[0], "install Python 3.11 or newer")


def locust() -> Finding:
    """Locust is there in a version that we know."""
    try:
        found = version("locust")
    except PackageNotFoundError:
        return Finding(Level.fail, "not installed", "make setup")
    numbers = tuple(int(part) for part in found.split(".")[:2])
    return _judge(numbers >= LOCUST, found, "make setup")


def open_files() -> Finding:
    """Enough sockets for knee's default range."""
    need = DEFAULT_USERS + FILES_BESIDE_USERS
    try:
        limit = raise_file_limit(need)
    except ConfigError:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return Finding(Level.warn, f"{hard} at most", f"raise `ulimit -Hn` for {need}")
    return Finding(Level.ok, f"{limit}, enough for {limit - FILES_BESIDE_USERS:,} users a process")


def cores() -> Finding:
    """The reader and its decoder do not share a core."""
    count = len(os.sched_getaffinity(0))
    remedy = "two cores keep the decoder off the reader's"
    return _judge(count >= CORES, str(count), remedy, Level.warn)


def clock() -> Finding:
    """Reading the clock is cheap."""
    source = CLOCK.read_text().strip() if CLOCK.exists() else "unknown"
    start = time.perf_counter_ns()
    for _ in range(1_000):
        time.clock_gettime_ns(time.CLOCK_REALTIME)
    each_ns = (time.perf_counter_ns() - start) // 1_000
    fast = source in FAST_CLOCKS or each_ns < CLOCK_READ_NS
    remedy = "boot with clocksource=tsc where the machine allows"
    return _judge(fast, f"{source}, {each_ns} ns a reading", remedy, Level.warn)


def disk() -> Finding:
    """A run folder of an hour fits."""
    free = shutil.disk_usage(".").free
    return _judge(free >= DISK_BYTES, f"{free / 1e9:.0f} GB free here", "free 1 GB", Level.warn)


def gpu() -> Finding:
    """What there is to read beside a server on this machine; none is fine."""
    seen = local_gpus()
    if seen.source is None:
        return Finding(Level.ok, f"{seen.why}; everything else works")
    seen.source.close()
    each = [f"{g.name}, {g.memory_mib:,.0f} MiB, driver {g.driver}" for g in seen.found]
    return Finding(Level.ok, "; ".join(each))


def kernel_stamps() -> Finding:
    """The kernel stamps what arrives: times do not depend on when we get round to reading."""
    from harness.drive.stamping import Stamping  # noqa: PLC0415 - drive/ is for Linux with gevent

    with closing(Stamping()) as stamping:
        source = stamping.source
    seen = source == "kernel"
    what = "seen on loopback" if seen else "none seen; the read's time is used"
    return _judge(seen, what, "measure from Linux", Level.warn)


def reader() -> Finding:
    """The reader's inner loop was compiled: each token costs a fraction of the CPU time."""
    return _compiled("reader")


def codec() -> Finding:
    """So was the packing of records."""
    return _compiled("codec")


def _compiled(name: str) -> Finding:
    from harness.drive.reading import code_in_use  # noqa: PLC0415 - as above

    used = code_in_use()
    why = used.get(f"{name}_fallback", "")
    return _judge(
        not why,
        f"in {used[name].title()}" + f": {why}" * bool(why),
        "install a C compiler and Python's headers (Debian, Ubuntu: gcc python3-dev), `make setup`",
        Level.warn,
    )


CHECKS: Final[dict[str, Callable[[], Finding]]] = {
    "python": python,
    "locust": locust,
    "open files": open_files,
    "kernel stamps": kernel_stamps,
    "reader": reader,
    "codec": codec,
    "cores": cores,
    "clock": clock,
    "disk": disk,
    "gpu": gpu,
}


def timing(found: Ceiling) -> Finding:
    """This machine's ceiling: `512 streams, 25,600 tokens/s a load process within 1 % of ...`."""
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
        remedy = f"--processes {need} is safe; each step of a run checks itself"
        return Finding(Level.warn, f"{what}, more than could be tried here", remedy)
    remedy = f"--processes {need}, with a core for each and one beside"
    return Finding(Level.warn, f"{what}, more than one load process times right", remedy)
