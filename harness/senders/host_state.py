"""Reading the machine that the load comes from: its CPU, and how much of it is used by whom."""

from __future__ import annotations

import os
from contextlib import suppress
from math import nan
from pathlib import Path
from typing import Final

import psutil

from harness.diagnosis.client_host import waited_s
from harness.reader.cpu_limit import read_cpu_limit, text_of
from harness.records.samples import HostSample

PRESSURE: Final = Path("/proc/pressure/cpu")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
USER_TICKS: Final = 11  # of /proc/PID/stat, after the name: then system, and both of ended children


def read_host(at_ns: int) -> HostSample:
    """The counters now. What this machine does not tell is NaN; nothing is raised."""
    usable_cores = float(len(os.sched_getaffinity(0)))
    limit = read_cpu_limit()
    cpu = psutil.cpu_times()
    busy_s = cpu.user + cpu.nice + cpu.system
    load_1m = nan
    with suppress(OSError):
        load_1m = os.getloadavg()[0]
    return HostSample(
        at_ns=at_ns,
        # A container's limit counts only where it is below what the scheduler allows.
        cores=min(usable_cores, limit.cores),
        machine_cores=float(os.cpu_count() or usable_cores),
        cpu_s=round(busy_s, 3),
        own_cpu_s=round(family_cpu_s(os.getpid()), 3),
        waited_s=waited_s(text_of(PRESSURE)),
        stopped_s=limit.throttled_s,
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
        _, _, after_name = text_of(process / "stat").rpartition(")")
        fields = after_name.split()
        if not fields:  # it has ended meanwhile
            continue
        ticks = map(int, fields[USER_TICKS : USER_TICKS + 4])
        total_s += sum(ticks) / TICKS_PER_S
        # The kernel lists a child at the thread that started it, not at the process.
        for children in process.glob("task/*/children"):
            pids += map(int, text_of(children).split())
    return total_s
