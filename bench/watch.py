"""CPU and memory of a process and its descendants, by kind, sampled from /proc while they run."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

PERIOD_S: Final = 0.05
TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
PROC: Final = Path("/proc")
KINDS: Final = {"harness.senders.worker": "reader", "harness.reader.decoder_process": "decoder"}


def kind_of(pid: int, root: str) -> str:
    """What the process is, by its command line; `root` where that says nothing special."""
    line = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return next((kind for part, kind in KINDS.items() if part in line), root)


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    found = [pid]
    for one in found:
        for task in (PROC / str(one) / "task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found


def busy_s() -> float:
    """CPU seconds that the processors were busy on which we may run, since the machine started."""
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = 0
    for line in (PROC / "stat").read_text().splitlines():
        name, *fields = line.split()
        if name in ours:
            user, nice, system, _, _, irq, softirq, steal = map(int, fields[:8])
            busy += user + nice + system + irq + softirq + steal
    return busy * TICK_S


def cpu_s(pid: int) -> float:
    """User and system seconds of a process, threads that ended included."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def memory_kb(pid: int) -> tuple[int, int]:
    """(resident now, resident at most so far)."""
    lines = (PROC / str(pid) / "status").read_text().splitlines()
    sizes = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "VmHWM")))
    return int(sizes["VmRSS"].split()[0]), int(sizes["VmHWM"].split()[0])


Memory = tuple[float, float, float]  # idle, most while the load lasted, most of all


@dataclass
class Trace:
    """One process's samples: realtime ns, CPU seconds, resident kB, and its peak in kB."""

    kind: str
    at_ns: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss_kb: list[int] = field(default_factory=list)
    peak_kb: int = 0

    def at(self, ns: int, values: list) -> float:
        """A column's value at a time, between samples by a straight line."""
        return float(np.interp(ns, self.at_ns, values))


class Watch(threading.Thread):
    """Samples from `start()` until `close()`. `roots`: what to call each process watched."""

    def __init__(self, roots: dict[int, str]) -> None:
        super().__init__(daemon=True)
        self.roots = {**roots, os.getpid(): "bench"}
        self.traces: dict[int, Trace] = {}
        self.machine = Trace("machine")
        self._over = threading.Event()

    def run(self) -> None:
        """Sample until told to stop."""
        while not self._over.wait(PERIOD_S):
            self.sample()

    def sample(self) -> None:
        """All processes once; one that just ended is left out."""
        for root, name in self.roots.items():
            try:
                # of ourselves only: our children are watched under their own names
                pids = [root] if root == os.getpid() else family(root)
            except OSError:
                continue
            for pid in pids:
                try:
                    self._add(pid, name)
                except (OSError, KeyError):  # a zombie has no memory lines
                    continue
        self.machine.at_ns.append(time.time_ns())
        self.machine.cpu_s.append(busy_s())

    def _add(self, pid: int, name: str) -> None:
        kind, used, memory = kind_of(pid, name), cpu_s(pid), memory_kb(pid)
        trace = self.traces.setdefault(pid, Trace(kind))
        trace.kind = kind  # between fork and exec it looked like its parent
        trace.at_ns.append(time.time_ns())
        trace.cpu_s.append(used)
        trace.rss_kb.append(memory[0])
        trace.peak_kb = max(trace.peak_kb, memory[1])

    def close(self) -> None:
        """Stop sampling."""
        self._over.set()
        self.join()

    def cpu(self, begin_ns: int, end_ns: int) -> dict[str, float]:
        """CPU seconds between two times, by kind."""
        used: dict[str, float] = {}
        for trace in self.traces.values():
            seconds = trace.at(end_ns, trace.cpu_s) - trace.at(begin_ns, trace.cpu_s)
            used[trace.kind] = used.get(trace.kind, 0.0) + seconds
        return used

    def others(self, begin_ns: int, end_ns: int) -> float:
        """Of how many processors others took all the time meanwhile: they disturb a measurement."""
        machine = self.machine
        whole = machine.at(end_ns, machine.cpu_s) - machine.at(begin_ns, machine.cpu_s)
        own = sum(self.cpu(begin_ns, end_ns).values())
        return max(whole - own, 0.0) / max((end_ns - begin_ns) / 1e9, 1e-9)

    def ended_ns(self, kind: str) -> int:
        """When a process of this kind was last seen; 0: never."""
        return max((t.at_ns[-1] for t in self.traces.values() if t.kind == kind), default=0)

    def memory_mb(self, begin_ns: int, end_ns: int) -> dict[str, Memory]:
        """By kind: resident at `begin_ns`, the most until `end_ns`, the most of all time; MB."""
        out: dict[str, Memory] = {}
        for trace in self.traces.values():
            until = [kb for at, kb in zip(trace.at_ns, trace.rss_kb, strict=True) if at <= end_ns]
            now = trace.at(begin_ns, trace.rss_kb), max(until, default=0), trace.peak_kb
            before = out.get(trace.kind, (0.0, 0.0, 0.0))
            out[trace.kind] = tuple(b + kb / 1e3 for b, kb in zip(before, now, strict=True))
        return out
