"""Reading the machine that the load comes from: its CPU, and how much of it is used by whom."""

from __future__ import annotations

import os
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Final

import psutil

from harness.diagnosis.client_host import waited_s
from harness.records.samples import HostSample

PRESSURE: Final = Path("/proc/pressure/cpu")
CGROUPS: Final = Path("/sys/fs/cgroup")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
USER_TICKS: Final = 11  # of /proc/PID/stat, after the name: then system, and both of ended children
MICROSECONDS: Final = 1e6
NANOSECONDS: Final = 1e9


def read_host(at_ns: int) -> HostSample:
    """The counters now. What this machine does not tell is NaN; nothing is raised."""
    usable_cores = float(len(os.sched_getaffinity(0)))
    limit_cores, stopped_s = _container()
    cpu = psutil.cpu_times()
    busy_s = cpu.user + cpu.nice + cpu.system
    load_1m = nan
    with suppress(OSError):
        load_1m = os.getloadavg()[0]
    return HostSample(
        at_ns=at_ns,
        # A container's limit counts only where it is below what the scheduler allows.
        cores=min(usable_cores, limit_cores),
        machine_cores=float(os.cpu_count() or usable_cores),
        cpu_s=round(busy_s, 3),
        own_cpu_s=round(family_cpu_s(os.getpid()), 3),
        waited_s=waited_s(_text(PRESSURE)),
        stopped_s=stopped_s,
        load_1m=load_1m,
    )


def family_cpu_s(pid: int) -> float:
    """CPU of a process, of all that it started, and of those that have ended among these."""
    total_s = 0.0
    pids = [pid]
    while pids:
        process = Path(f"/proc/{pids.pop()}")
        # The name is in parentheses, and may have spaces and parentheses of its own: cut after the
        # last.
        _, _, after_name = _text(process / "stat").rpartition(")")
        fields = after_name.split()
        if not fields:  # it has ended meanwhile
            continue
        ticks = map(int, fields[USER_TICKS : USER_TICKS + 4])
        total_s += sum(ticks) / TICKS_PER_S
        # The kernel lists a child at the thread that started it, not at the process.
        for children in process.glob("task/*/children"):
            pids += map(int, _text(children).split())
    return total_s


def _container() -> tuple[float, float]:
    """(cores that a container's limit leaves, seconds for which it stopped us), by cgroup 2 or 1.

    Infinite and NaN without a limit.
    """
    # Inside a container its own cgroup is the root; a host's root has no limit, and no such file.
    quota, _, period = _text(CGROUPS / "cpu.max").strip().partition(" ")
    if period and quota != "max":
        stopped = _counter(_text(CGROUPS / "cpu.stat"), "throttled_usec") / MICROSECONDS
        return int(quota) / int(period), stopped
    quota = _text(CGROUPS / "cpu/cpu.cfs_quota_us").strip()
    period = _text(CGROUPS / "cpu/cpu.cfs_period_us").strip()
    if period and quota not in ("", "-1"):
        stopped = _counter(_text(CGROUPS / "cpu/cpu.stat"), "throttled_time") / NANOSECONDS
        return int(quota) / int(period), stopped
    return float("inf"), nan


def _counter(text: str, name: str) -> float:
    """The value in a line `name value`; NaN where there is none."""
    lines = [line.split() for line in text.splitlines()]
    values = dict(words for words in lines if len(words) == 2)  # noqa: PLR2004 - a name and a value
    return float(values.get(name, nan))


def _text(path: Path) -> str:
    """A file of the kernel's; "" where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
