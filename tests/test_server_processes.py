"""The server's processes as this host sees them: real ones that carry vLLM's names."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from harness.records.samples import ServerSample
from harness.server.address import Address
from harness.server.scraping import MAX_SEARCHES, ServerProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

# a listener that starts processes of the names given, each busy for so many seconds, then idle
SERVER = """
import socket, subprocess, sys
busy = "import sys, time\\nwhile time.process_time() < float(sys.argv[1]): pass\\nsys.stdin.read()"
children = [
    subprocess.Popen([name, "-c", busy, cpu_s], executable=sys.executable, stdin=subprocess.PIPE)
    for name, cpu_s in zip(sys.argv[1::2], sys.argv[2::2])
]
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
for child in children:
    child.stdin.close()
    child.wait()
"""


@contextmanager
def serving(*named: str) -> Iterator[Address]:
    """A server on this host with processes of these names."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, *named],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Address("http", "127.0.0.1", int(process.stdout.readline()))
        finally:
            process.stdin.close()


@pytest.mark.parametrize(
    ("named", "want"),
    [
        ([], (math.nan, 7.0)),  # no vLLM: what its /metrics said stays
        (["VLLM::EngineCore", "0.3"], (0.3, 7.0)),
        (["VLLM::EngineCore_DP0", "0.3", "VLLM::EngineCore_DP1", "0.2"], (0.5, 7.0)),
        (["VLLM::EngineCore", "0.2", "VLLM::APIServer_0", "0.3", "VLLM::APIServer_1", "0.1"],
         (0.2, 0.2)),
        (["VLLM::Worker", "0.1"], (math.nan, 7.0)),
        # the front end in Rust beside one in Python that only started it
        (["VLLM::EngineCore", "0.2", "/opt/vllm/vllm-rs", "0.3"], (0.2, 0.3)),
    ],
)  # fmt: skip
def test_cpu_of_the_servers_processes(named: list[str], want: tuple[float, float]) -> None:
    """Engine cores together, API servers on average, once they have done their seconds."""
    with serving(*named) as address:
        processes = ServerProcesses(address)
        for _ in range(100):
            got = processes.with_cpu_times(ServerSample(0, api_cpu_s=7.0))
            seen = (got.engine_cpu_s, got.api_cpu_s)
            if seen == pytest.approx(want, abs=0.1, nan_ok=True):
                break
            time.sleep(0.05)
        else:
            processes = ServerProcesses(address)
        assert seen == pytest.approx(want, abs=0.1, nan_ok=True)


def test_a_front_end_in_rust_may_use_every_cpu() -> None:
    """Its threads run in parallel, those of Python's API server do not."""
    seen = []
    for name in ("VLLM::APIServer_0", "vllm-rs"):
        with serving("VLLM::EngineCore", "0", name, "0") as address:
            seen.append(ServerProcesses(address).with_cpu_times(ServerSample(0)).api_threads)
    cores = len(os.sched_getaffinity(0))
    assert seen == pytest.approx([math.nan, cores], nan_ok=True)


def test_a_server_that_starts_anew_is_found_again() -> None:
    """Its processes are looked for again when they have gone; then nothing is said."""
    with serving("VLLM::EngineCore", "0.1") as address:
        processes = ServerProcesses(address)
        while not processes.with_cpu_times(ServerSample(0)).engine_cpu_s > 0:
            time.sleep(0.05)
    for _ in range(MAX_SEARCHES + 2):
        gone = processes.with_cpu_times(ServerSample(0))
        assert math.isnan(gone.engine_cpu_s)


@pytest.mark.parametrize(
    ("host", "want"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("vllm", False),
    ],
)
def test_only_this_host_is_looked_at(host: str, want: bool) -> None:
    """A name or an address of another machine: its processes are not ours to see."""
    assert Address("http", host, 8000).is_local == want


ZOMBIE = """
import os, socket, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", ""])
os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not waited for
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
child.wait()
"""


def test_a_process_that_has_ended_and_is_still_listed() -> None:
    """A zombie has no command line: the sample stays as it is, and the next scrape looks again."""
    with subprocess.Popen(
        [sys.executable, "-c", ZOMBIE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        address = Address("http", "127.0.0.1", int(server.stdout.readline()))
        sample = ServerSample(at_ns=0, api_cpu_s=7.0)
        got = ServerProcesses(address).with_cpu_times(sample)
        server.stdin.close()
    assert math.isnan(got.engine_cpu_s)
    assert got.api_cpu_s == 7.0
