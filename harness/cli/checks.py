"""CHECKS: what `doctor` looks at, one row each. A finding that is not fine names its remedy."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCK = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
FAST_CLOCKS: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
DEFAULT_USERS: Final = 512  # knee's --max-users
PYTHON: Final = (3, 11)
LOCUST: Final = (2, 47)
CORES: Final = 2  # one for the reader, one for its decoder
DISK_BYTES: Final = 1 << 30
CLOCK_READ_NS: Final = 500


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
    return _judge(
        sys.version_info >= PYTHON, sys.version.split()[0], "install Python 3.11 or newer"
    )


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
    return _judge(
        count >= CORES, str(count), "two cores keep the decoder off the reader's", Level.warn
    )


def clock() -> Finding:
    """Reading the clock is cheap."""
    source = CLOCK.read_text().strip() if CLOCK.exists() else "unknown"
    start = time.perf_counter_ns()
    for _ in range(1_000):
        time.clock_gettime_ns(time.CLOCK_REALTIME)
    each_ns = (time.perf_counter_ns() - start) // 1_000
    return _judge(
        source in FAST_CLOCKS or each_ns < CLOCK_READ_NS,
        f"{source}, {each_ns} ns a reading",
        "boot with clocksource=tsc where the machine allows",
        Level.warn,
    )


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
    if source == "kernel":
        return Finding(Level.ok, "seen on loopback")
    return Finding(Level.warn, "none seen; the read's time is used", "measure from Linux")


def reader() -> Finding:
    """The reader's inner loop was compiled: each token costs a fraction of the CPU time."""
    from harness.drive.reading import IN_C, which  # noqa: PLC0415 - as above

    return _judge(
        which() == IN_C,
        f"in {which().title()}",
        "install a C compiler and Python's headers (Debian, Ubuntu: gcc python3-dev), `make setup`",
        Level.warn,
    )


CHECKS: Final[dict[str, Callable[[], Finding]]] = {
    "python": python,
    "locust": locust,
    "open files": open_files,
    "kernel stamps": kernel_stamps,
    "reader": reader,
    "cores": cores,
    "clock": clock,
    "disk": disk,
    "gpu": gpu,
}
