"""The command as a process of its own, and what it started: for tests that interrupt and kill."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from harness.errors import MeasurementInvalid, NoKnee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Command = Callable[..., subprocess.CompletedProcess[str]]  # as `harness`

PATIENCE_S = 60.0
TOO_BUSY = (  # what the product says of a client that could not keep up
    "this client can only place",
    "the client cannot keep its users busy",
    "a load process fell behind or stopped",
    "ms later than they were due",
    "two arrivals shared a read, or were read late",
)


def harness(
    *arguments: str, cwd: Path | None = None, timeout_s: float = 300
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout_s, cwd=cwd
    )


def measured(*arguments: str, out: Path, wanted: tuple[int, ...] = (0,)) -> str:
    """A measurement into the folder `out`, and what it said.

    Its exit code is one of `wanted`, or the client was too busy: then tests of orchestration still
    find all records and files, and never ask for a latency.
    """
    done = harness(*arguments, "--out", str(out))
    check_code(done.returncode, done.stdout + done.stderr, *wanted)
    return done.stdout + done.stderr


def check_code(code: int, said: str, *wanted: int) -> None:
    """One of the wanted, or the client was too busy and `said` has the product's sentence for it.

    Then it is 5, or 6 where levels were left out for such a reason.
    """
    if code in wanted:
        return
    too_busy = any(sentence in " ".join(said.split()) for sentence in TOO_BUSY)
    assert too_busy, f"exit code {code}:\n{said}"
    assert code in (MeasurementInvalid.exit_code, NoKnee.exit_code), f"exit code {code}:\n{said}"


def started(*arguments: str) -> subprocess.Popen[str]:
    """One command under way."""
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def scripted_server(first_ms: int, gap_ms: int) -> Iterator[str]:
    """A server whose first token comes after `first_ms` and the others every `gap_ms`: its URL."""
    script = Path(__file__).with_name("scripted_vllm.py")
    command = [sys.executable, script, str(first_ms), str(gap_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
        server.kill()


def wait_for(
    condition: Callable[[], Any], patience_s: float = PATIENCE_S, every_s: float = 0.05
) -> Any:
    """Its first true value; fails after a while."""
    until_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < until_s, "this did not happen"
        time.sleep(every_s)
    return found


def lines(path: Path) -> int:
    """Whole lines of a file, 0 where there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def load(path: Path) -> dict[str, Any]:
    """A JSON file."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def descendants(pid: int) -> dict[int, str]:
    """Command lines of everything that it started, however far down, by pid."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it ended meanwhile
                if words := child.cmdline():  # a zombie has none
                    found[child.pid] = " ".join(words)
    return found


def alive(pids: dict[int, str]) -> list[str]:
    """Which of these still run (a zombie does not)."""
    found = []
    for pid, what in pids.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(what)
    return found
