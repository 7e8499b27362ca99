"""Sessions against a scripted server: real sockets, real processes, scripted levels."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from study_process import alive, descendants, scripted_server, wait_for

from harness import open_run
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.metrics.metrics import LATENCIES
from harness.records.codec import decode
from harness.records.folder_reader import read_run, read_sends
from harness.records.folder_writer import CUT_SHORT
from harness.records.request_record import Outcome
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
PROBE_TOKENS = 2  # the one request that is sent to see whether the server streams
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose first token comes after 40 ms and the others every 10 ms."""
    with scripted_server(first_ms=40, gap_ms=10) as url:
        yield url


def start(url: str, processes: int, levels: list[int], **more: Any) -> subprocess.Popen[str]:
    """A session in a process of its own."""
    arguments = [url, str(processes), json.dumps(levels), json.dumps(more)]
    return subprocess.Popen(
        [sys.executable, HERE / "session_run.py", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        env=os.environ | {"PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"},
    )


def end(session: subprocess.Popen[str]) -> dict[str, Any]:
    """What it said at its end."""
    out, err = session.communicate(timeout=90)
    assert session.returncode == 0, err
    lines = [line for line in err.splitlines() if not line.startswith("Live page: http://")]
    assert lines == []
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def wait_ready(session: subprocess.Popen[str]) -> list[int]:
    """Wait until records of each load process arrive; their pids."""
    assert session.stdout is not None
    word, pids = session.stdout.readline().split(" ", 1)
    assert word == "ready"
    return list(json.loads(pids))


def fetch(url: str) -> bytes:
    """A page from our own loopback."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - http on the loopback
        return bytes(answer.read())


def nothing_lost(got: dict[str, Any], processes: int) -> bool:
    """Locust counted every record, and each worker's numbers are 0 .. n - 1, each once.

    Locust's own counts come from its workers without acknowledgement: after Ctrl-C the last ones
    may not arrive, the records do.
    """
    for worker in range(processes):
        numbers = [number for w, number in got["keys"] if w == worker]
        assert numbers == list(range(len(numbers)))
        assert numbers
    counted = got["locust_requests"] == len(got["keys"])
    return (counted or got["interrupted"]) and got["missing"] == {}


@pytest.mark.parametrize("processes", [1, 2])
def test_users_follow_the_controller(url: str, processes: int) -> None:
    """Levels 1, 4, 2 are reached; going down and at the end no request is cut off.

    However long each takes: the next level begins when one has been seen here and at the server.
    """
    got = end(start(url, processes, [1, 4, 2], output_tokens=60, patient=True))
    assert got["reached"] == [1, 4, 2]
    assert got["outcomes"].keys() == {"ok"}
    assert max(got["running"]) == 4
    assert got["most_in_flight"] == 4
    assert nothing_lost(got, processes)
    assert got["invalid"] == ""
    assert got["interrupted"] is False
    assert got["closed"] == 1
    assert got["samples"] >= 3  # one a level at least


@pytest.mark.parametrize("processes", [1, 2])
def test_what_is_known_stays_as_it_is(url: str, processes: int) -> None:
    """What a controller sees up to the instant that it is told never changes afterwards.

    Not even when a load process stands still, for longer than Locust waits for a sign: then the
    instant does too, and nothing is lost.
    """
    session = start(url, processes, [6] * 8, output_tokens=40)
    pids = wait_ready(session)
    time.sleep(1)
    os.kill(pids[0], signal.SIGSTOP)
    time.sleep(5.5)
    os.kill(pids[0], signal.SIGCONT)
    got = end(session)
    known_before = [then for _, then, _ in got["known"]]
    known_at_last = [at_last for _, _, at_last in got["known"]]
    assert known_before == known_at_last
    assert known_before == sorted(known_before)
    assert known_before[-1] > known_before[0]
    instants_ns = [known_ns for known_ns, *_ in got["known"][2:]]
    stood = [later - earlier for earlier, later in pairwise(instants_ns)]
    assert 0 in stood
    assert got["invalid"] == ""
    assert got["interrupted"] is False
    assert got["missing"] == {}


def test_new_users_do_not_start_in_lockstep(url: str) -> None:
    """Eight users spawned at once send their first requests spread over at least 100 ms."""
    got = end(start(url, 1, [8] * 2))
    first = got["first_sent_ns"]
    assert max(first) - min(first) > 100e6


@pytest.mark.parametrize("processes", [1, 2])
def test_a_number_of_requests_is_kept_exactly(url: str, processes: int, tmp_path: Path) -> None:
    """`requests=25` sends 25 over all processes and ends by itself; each kept its own records."""
    (tmp_path / "run.json").write_text("{}")
    got = end(start(url, processes, [3] * 60, requests=25, run_folder=str(tmp_path)))
    table = read_run(tmp_path).table
    workers = table.worker.tolist()
    kept = sorted(zip(workers, table.number.tolist(), strict=True))
    assert kept == [tuple(key) for key in got["keys"]]
    assert len(list(tmp_path.glob("records.*.msgpack"))) == processes
    assert len(got["keys"]) == 25
    assert len(got["running"]) < 60


@pytest.mark.parametrize(
    ("processes", "kind"),
    [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM), (1, signal.SIGHUP)],
)
def test_ctrl_c_leaves_records_of_everything(url: str, processes: int, kind: int) -> None:
    """Open requests become `cancelled` records at once, nothing is missing, sinks are closed."""
    session = start(url, processes, [4] * 60, output_tokens=200)
    wait_ready(session)
    session.send_signal(kind)
    got = end(session)
    assert got["interrupted"]
    assert got["outcomes"]["cancelled"] >= 1
    assert nothing_lost(got, processes)
    assert got["closed"] == 1


def test_workers_that_are_late_when_it_begins(url: str) -> None:
    """Locust starts nobody while all are missing; once they are heard again the users start."""
    got = end(start(url, 1, [2] * 8, late=True))
    assert got["invalid"] == ""
    assert max(got["running"]) == 2


def test_a_killed_load_process_makes_the_run_invalid(url: str, tmp_path: Path) -> None:
    """`kill -9` of one of two: a sentence names it, what it had sent before is kept.

    Its decoder outlives it: what was open is in the folder as cut short. What it had not heard of,
    begun in the last half second, is counted as missing: no number is neither.
    """
    (tmp_path / "run.json").write_text("{}")
    session = start(url, 2, [4] * 60, run_folder=str(tmp_path), output_tokens=60)
    pids = wait_ready(session)
    time.sleep(1)
    os.kill(pids[0], signal.SIGKILL)
    got = end(session)
    assert f"a load process (pid {pids[0]}) ended by signal 9" in got["invalid"]
    assert len(got["keys"]) >= 1
    assert got["closed"] == 1
    run = read_run(tmp_path)
    workers = run.table.worker.tolist()
    lost = run.damage.missing
    read = {w: workers.count(w) + lost.get(w, 0) for w in set(workers)}
    assert read == read_sends(tmp_path)
    assert set(workers) == {0, 1}
    assert lost.keys() <= {0, 1}
    assert sum(lost.values()) <= 2
    files = [decode(file.read_bytes()).records for file in tmp_path.glob("records.*")]
    cut = [{r.outcome for r in records if r.error == CUT_SHORT} for records in files]
    assert sorted(cut, key=len) == [set(), {Outcome.cancelled}]


def test_a_killed_decoder_makes_the_run_invalid(url: str, tmp_path: Path) -> None:
    """`kill -9` of one of two: the other's records are all there, and nothing hangs."""
    (tmp_path / "run.json").write_text("{}")
    session = start(url, 2, [4] * 60, run_folder=str(tmp_path))
    pids = wait_ready(session)
    found = descendants(pids[0])
    (decoder,) = (pid for pid, what in found.items() if "harness.reader.decoder_process" in what)
    os.kill(decoder, signal.SIGKILL)
    got = end(session)
    assert f"(pid {decoder}) ended in the middle of the run by signal 9" in got["invalid"]
    assert len(got["keys"]) >= 1
    assert got["closed"] == 1
    run = read_run(tmp_path)
    assert run.damage.damaged_bytes == 0
    assert run.damage.torn_bytes == 0
    kept = set(zip(run.table.worker.tolist(), run.table.number.tolist(), strict=True))
    assert {tuple(key) for key in got["keys"]} <= kept
    assert len(open_run(tmp_path).requests) == len(kept)


def test_what_outlasts_the_drain_is_cancelled(url: str) -> None:
    """With no time to drain, requests open at the end become `cancelled`, none is lost."""
    got = end(start(url, 1, [4] * 2, output_tokens=400, drain_ns=0))
    assert got["outcomes"].get("cancelled", 0) >= 1
    assert nothing_lost(got, 1)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_web_ui_of_a_session(url: str, processes: int) -> None:
    """With `ui_port` Locust's page leads to ours; its Stop button ends the run as Ctrl-C does."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    session = start(url, processes, [2] * 60, ui_port=port)
    wait_ready(session)
    assert b"./harness/link.js" in fetch(f"http://127.0.0.1:{port}/")
    told = json.loads(fetch(f"http://127.0.0.1:{port}/harness/live.json"))
    names = [row[0] for row in told["tables"]["latencies"]]
    assert names == [latency.name for latency in LATENCIES.values()]
    post = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.suppress(OSError):  # the page may go away before it has answered
        post.request("POST", "/stop")
        post.getresponse()
    post.close()
    got = end(session)
    assert got["interrupted"]
    assert nothing_lost(got, processes)


def test_client_and_server_count_alike() -> None:
    """Against the embedded engine: every token arrived, and no prompt hit the prefix cache."""
    with start_engine(EngineConfig()) as engine:
        got = end(start(engine.url, 2, [8] * 3))
        server = server_sample(fetch(f"{engine.url}/metrics"), 0)
    assert server is not None
    assert nothing_lost(got, 2)
    assert server.generation_tokens_total == got["tokens"] + PROBE_TOKENS
    assert server.requests_total == len(got["keys"]) + 1
    assert server.prefix_hits_total == 0
    assert got["figures"]["processes"] == 2


def test_load_processes_die_with_their_parent(url: str, tmp_path: Path) -> None:
    """`kill -9` of the session ends its load processes too, and each has recorded all it sent."""
    (tmp_path / "run.json").write_text("{}")
    session = start(url, 2, [2] * 60, run_folder=str(tmp_path))
    wait_ready(session)
    family = descendants(session.pid)
    session.kill()
    session.communicate()
    wait_for(lambda: alive(family) == [])
    run = read_run(tmp_path)
    sent = read_sends(tmp_path)
    assert len(run.table) == sum(sent.values())
    assert run.damage.missing == {}
    assert min(sent.values()) > 0
