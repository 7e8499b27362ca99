"""What becomes of a run when the server goes wrong under load: status, exit code and sentence."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from fault_server import above, after, each, fault_servers, never
from study_process import harness, load

from harness.records import names
from harness.run.results import write_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fault_server import FaultServer, FaultServers

pytestmark = pytest.mark.process
TOP = Path(__file__).parents[1]
LENGTHS: Final = ("--prompt-tokens", "16", "--output-tokens", "8")
SHORT: Final = (*LENGTHS, "--idle-timeout", "500ms", "--first-token-timeout", "500ms", "--quiet")
RUN: Final = ("--users", "4", "--duration", "3s")
STALLED: Final = ("--users", "16", "--duration", "3s")  # 0.5 s a request: else too few for an SLO
SLOS: Final = ("--slo", "ttft_p95=500ms", "--slo", "itl_p95=500ms")
TOGETHER: Final = 4  # runs at a time: they wait about as long as they compute


@pytest.fixture(scope="module")
def servers() -> Iterator[FaultServers]:
    """Makers of servers that go wrong."""
    with fault_servers() as made:
        yield made


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        return load(self.folder / names.RESULT)

    @property
    def readable(self) -> bool:
        """The reports are there, and nothing but sentences was printed."""
        reports = (names.REPORT_HTML, names.REPORT_MD)
        there = [(self.folder / name).exists() for name in reports]
        return all(there) and "Traceback" not in self.out + self.err and "Warning" not in self.err


def ended(server: FaultServer, folder: Path, command: str, *options: str) -> Ended:
    """One command against a server, to its end."""
    done = harness(command, server.url, *options, *SHORT, "--out", str(folder))
    return Ended(done.returncode, done.stdout, done.stderr, folder)


SAID: Final = {  # what most of the failed requests ended with
    "breaks": "the stream ended",
    "stalls": "no further byte in 0.5 s",
    "429": "HTTP 429: too many requests",
    "503": "HTTP 503: engine is overloaded",
    "html": "text/html",
    "malformed": "JSON",
    "closes": "the server closed the connection",
    "dies": "Connection refused",
}


@pytest.mark.long
def test_faults(servers: FaultServers, tmp_path: Path) -> None:
    """All goes wrong after some requests: missed, exit code 99; without SLOs it is the target's.

    Without them the same records are looked at again: a run of the same faults would end the same.
    """
    with ThreadPoolExecutor(TOGETHER) as pool:

        def run_of(fault: str) -> Ended:
            flags = STALLED if fault == "stalls" else RUN
            return ended(servers(fault, after(24)), tmp_path / fault, "run", *flags, *SLOS)

        runs = dict(zip(SAID, pool.map(run_of, SAID), strict=True))
    got = {fault: (r.result["status"], r.code, r.readable) for fault, r in runs.items()}
    assert got == dict.fromkeys(SAID, ("missed", 99, True))
    heads = {fault: r.out.splitlines()[2] for fault, r in runs.items()}
    unsaid = [fault for fault, head in heads.items() if SAID[fault] not in head]
    assert unsaid == []
    assert {head[:12] for head in heads.values()} == {"SLO missed: "}
    again = {}
    for fault, run in runs.items():
        result = without_slos(run.folder)
        named = SAID[fault] in result.invalid_reason
        again[fault] = (result.status, result.exit_code, len(result.slos), named)
    assert again == dict.fromkeys(SAID, ("target_failed", 99, 0, True))


def without_slos(folder: Path) -> Any:
    """The result of the same records, had no SLO been given."""
    other = shutil.copytree(folder, folder.with_name(f"{folder.name}-without"))
    info = load(other / names.RUN)
    info["config"]["plan"]["slos"] = []
    (other / names.RUN).write_text(json.dumps(info))
    return write_results(other)[1]


def test_a_minority_of_failures(servers: FaultServers, tmp_path: Path) -> None:
    """Each tenth request breaks off: too many for --max-errors, whatever the SLO says.

    `--requests` counts measured requests, and takes exactly so many.
    """
    some = ("--users", "4", "--requests", "60", "--max-errors", "1%", "--slo", "ttft_p95=500ms")
    run = ended(servers("breaks", each(10)), tmp_path / "run", "run", *some)
    [level] = run.result["levels"]
    errors = run.result["errors"]
    assert run.code == 99
    assert run.result["status"] == "missed"
    assert run.readable is True
    assert level["ttft_ms"]["n"] == errors["n"] == 60
    assert 5 <= level["n_failed"] == errors["n_over"] <= 7
    assert f"SLO missed: {level['n_failed']} of 60 requests failed" in run.out


def test_requests_bound_what_is_sent(servers: FaultServers, tmp_path: Path) -> None:
    """Also when all fail at once: some dozen, where a closed loop would send thousands a second."""
    server = servers("429", after(1))
    some = ("--users", "16", "--requests", "12", "--slo", "ttft_p95=5s")
    run = ended(server, tmp_path / "run", "run", *some)
    assert run.code == 99
    assert run.result["damage"] == []
    assert 12 <= server.streams < 100


@pytest.mark.long
def test_a_knee_of_a_server_that_dies(servers: FaultServers, tmp_path: Path) -> None:
    """It dies with the sixth request at once: that is the finding, and what was seen is kept."""
    options = ("--min-users", "4", "--max-users", "8", "--budget", "60s", "--slo", "ttft_p95=500ms")
    run = ended(servers("dies", above(5)), tmp_path / "run", "knee", *options)
    assert run.code == 99
    assert run.result["status"] == "target_failed"
    assert run.readable is True
    said, why = run.out.splitlines()[2:4]
    last = [level["users"] for level in run.result["levels"]][-2:]
    assert said == (
        f"The server failed under load at {last[0]} concurrent requests, and again at {last[1]}."
    )
    assert "Connection refused" in why
    assert set(run.result["levels"][0]["outcomes"]) == {"ok"}
    assert write_results(run.folder)[1].exit_code == 99


def locust(folder: Path, server: FaultServer, *options: object) -> subprocess.CompletedProcess[str]:
    """Locust as its users start it, in a folder of theirs, until its users have sent enough."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "locust",
        "-f",
        TOP / "tests/enough_requests.py",
        "--headless",
        "-u",
        4,
        "-r",
        4,
        "-t",
        "90s",  # at most
        "--host",
        server.url,
        "--master-port",
        port,
        "--master-bind-port",
        port,
        *LENGTHS,
        *options,
    ]
    return subprocess.run(
        list(map(str, command)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=240,
        check=False,
        cwd=folder,
        env=os.environ | {"LOCUST_LOGLEVEL": "INFO", "PYTHONPATH": str(TOP)},
    )


LOCUSTS: Final[dict[str, tuple[tuple[object, ...], tuple[int, str, str]]]] = {
    "missed": (  # an answer of 0.1 s: what a busy client cannot tell is little of it
        ("--slo", "e2e_p95=1ms", "--output-tokens", 30, "--processes", 2),
        (99, "missed", "e2e_p95=1ms missed at 4")),
    "met": (("--slo", "ttft_p50=2s"), (0, "met", "ttft_p50=2s met at 4")),
    "refused": (
        ("--slo", "itl_p95=50ms", "--output-tokens", 1), (2, "", "and a request has one")),
    "refused, 2 processes": (
        ("--slo", "itl_p95=50ms", "--output-tokens", 1, "--processes", 2),
        (2, "", "and a request has one")),
}  # fmt: skip


@pytest.mark.long
def test_locust_is_judged(servers: FaultServers, tmp_path: Path) -> None:
    """The third door: exit code, words, and a run folder with a report where nobody named one."""

    def headless(name: str) -> tuple[int, str, bool]:
        server = servers("none", never)
        done = locust(tmp_path / name, server, *LOCUSTS[name][0])
        made = list((tmp_path / name).glob("reports/locust-*"))
        status = load(made[0] / names.RESULT)["status"] if made else ""
        told = LOCUSTS[name][1][2] in done.stdout and "Traceback" not in done.stdout
        there = bool(made) and (made[0] / names.REPORT_HTML).exists()
        assert told, done.stdout
        assert len(made) == there
        assert bool(server.streams > 1) == there
        return done.returncode, status, there

    with ThreadPoolExecutor(TOGETHER) as pool:
        got = dict(zip(LOCUSTS, pool.map(headless, LOCUSTS), strict=True))
    assert got == {
        name: (code, status, bool(status)) for name, (_, (code, status, _)) in LOCUSTS.items()
    }
