"""CHECKS: the checks of `doctor`, and what it reports of the measured ceiling.

Every warning and failure names a remedy.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.diagnosis.client_host import (
    THROTTLED_SHARE,
    HostFigures,
    busy_sentence,
    recent_pressure,
)
from harness.errors import ConfigError
from harness.metrics.numbers import memory_text
from harness.reader.cpu_limit import CpuLimit, read_cpu_limit
from harness.run.load_processes import OneProcess, needed
from harness.run.preflight import FILES_WITHOUT_USERS, raise_file_limit
from harness.senders.host_state import PRESSURE
from harness.server.gpu import local_gpus
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.run.ceiling import Ceiling

CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
FAST_CLOCKS: Final = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
DEFAULT_USERS: Final = 512  # knee's --max-users
MIN_PYTHON: Final = (3, 11)
MIN_LOCUST: Final = (2, 47)
MIN_CORES: Final = 2  # one for the reader, one for its decoder process
MIN_FREE_BYTES: Final = 1 << 30
MAX_CLOCK_READ_NS: Final = 500
WITHOUT_LIMIT: Final = "request CPU without a limit (Kubernetes: no limits.cpu), or raise it"


class Severity(Enum):
    ok = "ok"
    warn = "warn"
    fail = "FAIL"


@dataclass(frozen=True, slots=True)
class CheckResult:
    level: Severity
    what: str
    remedy: str = ""


def _judge(fine: bool, what: str, remedy: str, otherwise: Severity = Severity.fail) -> CheckResult:
    if fine:
        return CheckResult(Severity.ok, what)
    return CheckResult(otherwise, what, remedy)


def python() -> CheckResult:
    """The interpreter is new enough."""
    new_enough = sys.version_info >= MIN_PYTHON
    return _judge(new_enough, sys.version.split()[0], "install Python 3.11 or newer")


def locust() -> CheckResult:
    """Locust is installed in a supported version."""
    try:
        installed = version("locust")
    except PackageNotFoundError:
        return CheckResult(Severity.fail, "not installed", "make setup")
    numbers = tuple(int(part) for part in installed.split(".")[:2])
    return _judge(numbers >= MIN_LOCUST, installed, "make setup")


def open_files() -> CheckResult:
    """Enough sockets for knee's default range."""
    need = DEFAULT_USERS + FILES_WITHOUT_USERS
    try:
        limit = raise_file_limit(need)
    except ConfigError:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return CheckResult(Severity.warn, f"{hard} at most", f"raise `ulimit -Hn` for {need}")
    users = f"{limit - FILES_WITHOUT_USERS:,} users a process"
    return CheckResult(Severity.ok, f"{limit}, enough for {users}")


def cores() -> CheckResult:
    """The reader and its decoder do not share a core."""
    count = len(os.sched_getaffinity(0))
    remedy = "use two cores, so that the decoder does not disturb the reader"
    return _judge(count >= MIN_CORES, str(count), remedy, Severity.warn)


def cpu_limit() -> CheckResult:
    """No quota stops the client in the middle of its work."""
    limit = read_cpu_limit()
    if limit == CpuLimit():
        return CheckResult(Severity.ok, "none")
    what = f"{limit.cores:g} cores; it stopped what runs here for {limit.throttled_s:.1f} s so far"
    return CheckResult(Severity.warn, what, WITHOUT_LIMIT)


def check_throttling(before: CpuLimit, after: CpuLimit, seconds: float) -> CheckResult:
    """What a limit did to the measurement between two readings."""
    share = min((after.throttled_s - before.throttled_s) / seconds, 1.0)
    return _judge(
        share < THROTTLED_SHARE,
        f"throttled {share:.0%} of the time by the limit of {after.cores:g} cores",
        WITHOUT_LIMIT,
    )


def other_programs() -> CheckResult:
    """Nobody else keeps the cores busy: a client that waits for them cannot measure."""
    pressure = PRESSURE.read_text() if PRESSURE.exists() else ""
    figures = HostFigures(
        machine_cores=float(os.cpu_count() or 1),
        pressure=recent_pressure(pressure),
        load_1m=os.getloadavg()[0],
    )
    return judge_programs(figures)


def judge_programs(host: HostFigures) -> CheckResult:
    """Of the last ten seconds, or of the load where the kernel does not tell who waits."""
    if host.contended:
        remedy = "stop them, or measure from another machine"
        return CheckResult(Severity.warn, busy_sentence(host), remedy)
    what = f"load {host.load_1m:.1f} on {host.machine_cores:g} cores"
    if not math.isnan(host.pressure):
        what += f", CPU pressure {host.pressure:.0%}"
    return CheckResult(Severity.ok, what)


def clock() -> CheckResult:
    """Reading the clock is cheap."""
    source = CLOCK_SOURCE.read_text().strip() if CLOCK_SOURCE.exists() else "unknown"
    start = time.perf_counter_ns()
    for _ in range(1_000):
        time.clock_gettime_ns(time.CLOCK_REALTIME)
    each_ns = (time.perf_counter_ns() - start) // 1_000
    fast = source in FAST_CLOCKS or each_ns < MAX_CLOCK_READ_NS
    remedy = "boot with clocksource=tsc where the machine allows"
    return _judge(fast, f"{source}, {each_ns} ns per reading", remedy, Severity.warn)


def disk() -> CheckResult:
    """A run folder of an hour fits."""
    free = shutil.disk_usage(".").free
    what = f"{free / 1e9:.0f} GB free here"
    return _judge(free >= MIN_FREE_BYTES, what, "free 1 GB", Severity.warn)


def gpu() -> CheckResult:
    """The GPUs of this machine; none is fine."""
    gpus = local_gpus()
    if gpus.source is None:
        return CheckResult(Severity.ok, f"{gpus.why}; everything else works")
    gpus.source.close()
    cards = [
        f"{card.name}, {memory_text(card.memory_mib)}, driver {card.driver}" for card in gpus.found
    ]
    return CheckResult(Severity.ok, "; ".join(cards))


def kernel_stamps() -> CheckResult:
    """The kernel timestamps arriving data, so times do not depend on when it is read."""
    from harness.reader.stamping import Stamping  # noqa: PLC0415 - for Linux with gevent

    with closing(Stamping()) as stamping:
        source = stamping.source
    are_there = source == "kernel"
    what = "seen on loopback" if are_there else "none seen; the time of the read is used"
    return _judge(are_there, what, "measure from Linux", Severity.warn)


def compiled(name: str) -> CheckResult:
    """The C reader, or the C code that packs records: a fraction of the CPU time per token."""
    from harness.reader.backends import code_in_use  # noqa: PLC0415 - as above

    used = code_in_use()
    what = f"in {used[name].title()}"
    why_not = used.get(f"{name}_fallback", "")
    if not why_not:
        return CheckResult(Severity.ok, what)
    remedy = "install a C compiler and Python's headers (Debian, Ubuntu: gcc python3-dev), "
    remedy += "`make setup`"
    return CheckResult(Severity.warn, f"{what}: {why_not}", remedy)


CHECKS: Final[dict[str, Callable[[], CheckResult]]] = {
    "python": python,
    "locust": locust,
    "open files": open_files,
    "kernel stamps": kernel_stamps,
    "reader": partial(compiled, "reader"),
    "codec": partial(compiled, "codec"),
    "cores": cores,
    "CPU limit": cpu_limit,
    "other programs": other_programs,
    "clock": clock,
    "disk": disk,
    "gpu": gpu,
}


def check_ceiling(ceiling: Ceiling) -> CheckResult:
    """This machine's ceiling: `512 streams, 25,600 tokens/s per load process within 1% of ...`."""
    best = ceiling.best
    if best is None:
        lowest = ceiling.rungs[0].streams if ceiling.rungs else 0
        return CheckResult(
            Severity.warn,
            f"not even {lowest} streams are timed within 1% of what was sent",
            "stop other work on this machine, or measure from another one",
        )
    what = (
        f"{best.streams} streams, {best.tokens_per_s:,.0f} tokens/s per load process within 1% of "
        f"what was sent, {best.cpu_us_per_token:.0f} us of CPU per token"
    )
    if ceiling.more:
        what += "; the test server sends no more"
    return CheckResult(Severity.ok, what)


def check_plan(ceiling: Ceiling, users: int, itl_ns: int) -> CheckResult:
    """Whether `users` streams with a token each `itl_ns` fit, and how many processes they need."""
    best = ceiling.best
    rate = users * SECOND / itl_ns
    what = f"{users} users at {itl_ns / MS:g} ms per token: {rate:,.0f} tokens/s"
    if best is None:
        return CheckResult(Severity.warn, what, "see the line above")
    need = needed(OneProcess(users, rate), OneProcess(best.streams, best.tokens_per_s))
    if need <= 1:
        return CheckResult(Severity.ok, f"{what}, fits one load process")
    if ceiling.more:
        remedy = f"--processes {need} is safe; every level is checked during a run"
        return CheckResult(Severity.warn, f"{what}, more than could be tried here", remedy)
    what += ", more than one load process measures accurately"
    remedy = f"--processes {need}, with one core for each and one more"
    return CheckResult(Severity.warn, what, remedy)
