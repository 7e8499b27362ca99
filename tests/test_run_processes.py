"""As many load processes as the load needs and the machine has room for."""

from __future__ import annotations

import os

import pytest

from harness.core.load import Load, Rate, Users
from harness.reader.cpu_limit import CpuLimit
from harness.run import load_processes
from harness.run.load_processes import Processes, automatic

NEED = "that 10,000 users need, as this machine"
FEW = " free; each level is checked, and a larger machine holds more"


@pytest.mark.parametrize(
    ("most", "output_tokens", "free", "expected"),
    [
        (Users(1), 128, 32, Processes(1)),
        (Users(512), 128, 32, Processes(1)),
        # 1,000 streams of 50 tokens/s are 50,000; 0.8 of them
        (Users(800), 128, 32, Processes(1)),
        (Users(801), 128, 32, Processes(2, "2 for at most 801 users")),
        (Users(10_000), 128, 32, Processes(13, "13 for at most 10,000 users")),
        (
            Users(10_000),
            128,
            8,
            Processes(7, f"7 of the 13 {NEED} has 8 cores{FEW}"),
        ),
        (
            Users(10_000),
            128,
            1,
            Processes(1, f"1 of the 13 {NEED} has 1 core{FEW}"),
        ),
        # 312 requests/s are 0.8 of 390; 40,000 tokens/s are 0.8 of 50,000
        (Rate(312.0), 16, 32, Processes(1)),
        (Rate(313.0), 16, 32, Processes(2, "2 for at most 313/s")),
        (Rate(100.0), 400, 32, Processes(1)),
        (Rate(100.0), 401, 32, Processes(2, "2 for at most 100/s")),
        (Users(0), 128, 32, Processes(1)),  # rows that are sent at their own times
    ],
)
def test_automatic(
    monkeypatch: pytest.MonkeyPatch,
    most: Load,
    output_tokens: float,
    free: int,
    expected: Processes,
) -> None:
    """One where that is enough; else by the largest need, with a core for each and one more."""
    monkeypatch.setattr(load_processes, "free_cores", lambda: free)
    assert automatic(most, output_tokens) == expected


@pytest.mark.parametrize(
    ("machine", "usable", "limit", "load", "expected"),
    [
        (32, 32, 32.0, 0.0, 32),
        (32, 32, 32.0, 3.5, 28),
        (2, 2, 2.0, 5.0, 1),
        # a container with a part of a busy machine: by its cores, or by a limit of CPU time
        (64, 8, 64.0, 30.0, 8),
        (64, 64, 8.0, 30.0, 8),
        (64, 64, 2.5, 0.0, 2),
        (64, 8, 64.0, 60.5, 3),
    ],
)
def test_free_cores(
    monkeypatch: pytest.MonkeyPatch,
    machine: int,
    usable: int,
    limit: float,
    load: float,
    expected: int,
) -> None:
    """What others use leaves less only where the machine has no other cores for it."""
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(load_processes, "read_cpu_limit", lambda: CpuLimit(limit))
    assert load_processes.free_cores() == expected
