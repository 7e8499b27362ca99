"""locustfiles/knee.py under the `locust` command: headless, with workers, and one of them dies."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browser_run import PATIENCE_S, TOP, get, locust
from prometheus_tools import lines_of
from study_process import alive, descendants, started

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.export.live_state import FINAL_STATES
from harness.records import names
from harness.records.folder_reader import read_run
from harness.run import form
from harness.server.address import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.process, pytest.mark.long]
SMALL = (
    "--slo",
    "ttft_p95=5s",
    "--prompt-tokens",
    "16",
    "--output-tokens",
    "8",
    "--min-users",
    "2",
    "--max-users",
    "2",
    "--workload",
    "fixed",
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An engine with two batch slots."""
    with start_engine(EngineConfig(max_num_seqs=2)) as engine:
        yield engine.url


def headless(*flags: object, file: object = "locustfiles/knee.py") -> Any:
    """The ended command of one search without a web UI."""
    command = [sys.executable, "-m", "locust", "-f", file, "--headless", *flags]
    return subprocess.run(
        list(map(str, command)),
        cwd=TOP,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )


LEDGERS = """
import weakref
from harness.metrics.ledger import Ledger
from harness.locust.locust_knee import LocustKneeStudy
compute, make, made = LocustKneeStudy._results, Ledger.__init__, weakref.WeakSet()
def noted(self, *given):
    make(self, *given)
    made.add(self)
def counted(*given):
    print("ledgers in memory:", len(made))
    return compute(*given)
LocustKneeStudy._results, Ledger.__init__ = counted, noted
"""
SLOW_START = """
import gevent
from harness.senders.driver import Driver
start = Driver.start
def late(self):
    if self._reader is None:
        gevent.sleep(2.5)
    return start(self)
Driver.start = late
"""


def test_headless_alone(url: str, tmp_path: Path) -> None:
    """One process: a search that came to its end is not interrupted, as its code says.

    While the results are computed, by another process, nothing keeps the records in this one.
    On a busy machine the decoder takes seconds to start: the users that come first wait for it.
    """
    file = tmp_path / "knee.py"
    runs = tmp_path / "runs"
    file.write_text((TOP / "locustfiles/knee.py").read_text() + LEDGERS + SLOW_START)
    done = headless(
        "--host",
        url,
        "--budget",
        "10s",
        "--runs",
        runs,
        *SMALL,
        "--server-flag",
        "max-num-seqs=2",
        "--gpu-metrics",
        "none",
        file=file,
    )
    assert "ledgers in memory: 0" in done.stdout
    (folder,) = runs.iterdir()
    ended, knee = (json.loads((folder / name).read_text()) for name in (names.ENDED, names.RESULT))
    assert ended["interrupted"] is False
    assert done.returncode == knee["exit_code"] != 130, done.stderr
    run = json.loads((folder / names.RUN).read_text())
    assert run["server"]["flags"]["max_num_seqs"] == 2
    assert "--gpu-metrics none" in run["gpu"]["why"]


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--host", "http://127.0.0.1:1", "--budget", "soon"), 2, "expected a number with ns"),
        (("--host", "http://127.0.0.1:1", "--server-flag", "x"), 2, "expected NAME=VALUE"),
        (("--host", "http://127.0.0.1:1"), 3, "127.0.0.1:1"),
    ],
)
def test_headless_refused(flags: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    """An option that cannot be read, a server that is not there: the documented code."""
    done = headless(*flags, "--runs", tmp_path)
    assert done.returncode == code, done.stderr
    assert list(tmp_path.iterdir()) == [], done.stderr
    assert said in done.stderr


def test_headless_with_workers(url: str, tmp_path: Path) -> None:
    """A whole search by two workers: its exit code, its folder, every record of both once."""
    port = free_port()
    done = headless(
        "--host",
        url,
        "--processes",
        2,
        "--master-bind-port",
        port,
        "--master-port",
        port,
        "--budget",
        "12s",
        "--runs",
        tmp_path,
        *SMALL,
    )
    (folder,) = tmp_path.iterdir()
    knee = json.loads((folder / "result.json").read_text())
    assert json.loads((folder / names.ENDED).read_text())["interrupted"] is False
    assert knee["status"] in ("not_reached", "inconclusive")
    assert done.returncode == knee["exit_code"], done.stderr
    assert "Traceback" not in done.stderr
    run = read_run(folder)
    assert run.damage.sentences() == []
    assert sorted(set(run.table.worker.tolist())) == [0, 1]
    for worker in (0, 1):
        numbers = np.sort(run.table.number[run.table.worker == worker])
        assert numbers.tolist() == list(range(len(numbers)))
    assert (folder / "report.html").exists()


def told(page: str) -> dict[str, Any]:
    """All that the live page is told."""
    found: dict[str, Any] = json.loads(get(f"{page}/harness/live.json")[1])
    return found


def wait_for_workers(page: str, n: int) -> None:
    """Until so many load processes are connected."""
    until = time.monotonic() + PATIENCE_S
    while len(json.loads(get(f"{page}/stats/requests")[1]).get("workers", [])) < n:
        assert time.monotonic() < until, "the load processes did not connect"
        time.sleep(0.1)


def wait_for(page: str, *states: str) -> dict[str, Any]:
    """The facts, once the run is in one of these states."""
    until = time.monotonic() + 90
    while (found := told(page))["facts"]["state"] not in states:
        assert time.monotonic() < until, found
        time.sleep(0.2)
    return dict(found["facts"])


def press(page: str, button: str, form: dict[str, str] | None = None, **headers: str) -> Any:
    """What the page's button sends."""
    asked = urllib.request.Request(  # noqa: S310 - loopback
        f"{page}/harness/{button}",
        json.dumps(form or {}).encode(),
        {"Content-Type": "application/json", **headers},
    )
    with urllib.request.urlopen(asked, timeout=20) as answer:  # noqa: S310 - loopback
        return json.loads(answer.read())


def test_a_worker_dies(url: str, tmp_path: Path) -> None:
    """The run ends as invalid, the page says why; the next run goes on with the other worker."""
    with locust("--host", url, "--processes", 2, "--runs", tmp_path, *SMALL) as page:
        form = told(page)["facts"]["form"] | {"budget": "60s"}
        wait_for_workers(page, 2)  # without any, the first start would be refused and over
        assert press(page, "start", form) == {"wrong": {}}
        assert press(page, "start", form)["wrong"][""].startswith("A run is under way")
        wait_for(page, "running")
        while not told(page)["now"].get("ended"):
            time.sleep(0.2)
        (pid,) = [p for p, w in descendants(os.getpid()).items() if "knee.py" in w and is_top(p)]
        workers = [p for p, what in descendants(pid).items() if "knee.py" in what]
        os.kill(workers[0], signal.SIGKILL)
        facts = wait_for(page, *FINAL_STATES)
        assert facts["state"] == "invalid"
        assert "a load process" in " ".join(facts["answer"]).lower()
        press(page, "start", form)
        facts = wait_for(page, "running", "refused")
        assert facts["state"] == "running"
        assert facts["processes"] == 1
        metrics = lines_of(get(f"{page}/harness/metrics")[1].encode())
        (about,) = [dict(labels) for name, labels in metrics if name == "harness_run_info"]
        assert about["kind"] == "knee"
        assert about["workload"] == "fixed"
        assert about["run"] == facts["folder"]
        assert metrics["harness_users_target", ()] >= 0
        press(page, "stop")
        assert wait_for(page, *FINAL_STATES)["state"] == "interrupted"
        family = descendants(pid)
    assert alive(family) == []
    assert len(list(tmp_path.iterdir())) == 2


def is_top(pid: int) -> bool:
    """Whether it is our own child."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]) == os.getpid()


def test_what_a_browser_may_not_do(url: str, tmp_path: Path) -> None:
    """Another site's page is refused; files elsewhere, or not listed, are not there."""
    with locust("--host", url, "--runs", tmp_path, *SMALL) as page:
        for button in ("start", "stop"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                press(page, button, Origin="http://elsewhere.example")
        hidden = {"api_key_env": "HOME", "runs": "/x", "gpu_metrics": "none"}
        assert "soon" in swarm(page, budget="soon", **hidden)["sentence"]
        press(page, "start", told(page)["facts"]["form"] | {"budget": "10s"})
        wait_for(page, "running")
        absent = ("records.0.msgpack", "..%2F..%2Fetc%2Fpasswd", "../run.json", ".run.json", "x")
        assert {get(f"{page}/harness/files/{name}")[0] for name in absent} == {404}
        run = json.loads(get(f"{page}/harness/files/run.json")[1])
        assert run["config"]["kind"] == "knee"
        assert run["config"]["drive"]["key_source"] == ""
        assert "--gpu-metrics" not in run["gpu"]["why"]


def swarm(page: str, **form: str) -> dict[str, Any]:
    """Locust's own start form; the facts of our page after it was refused."""
    body = urllib.parse.urlencode(form).encode()
    with urllib.request.urlopen(f"{page}/swarm", body, timeout=20):  # noqa: S310 - loopback
        return wait_for(page, "refused")


@pytest.mark.parametrize("more", [(), ("--processes", 1)])
def test_stop_before_there_is_a_load(more: tuple[object, ...], tmp_path: Path) -> None:
    """Locust's own Stop, while the server is still asked what it is: nothing is sent."""
    with (
        start_engine(EngineConfig()) as engine,
        locust("--host", engine.url, "--runs", tmp_path, *SMALL, *more) as page,
    ):
        while more and json.loads(get(f"{page}/worker-count")[1])["worker_count"] < 1:
            time.sleep(0.2)
        os.kill(engine.pid, signal.SIGSTOP)
        assert press(page, "start", told(page)["facts"]["form"]) == {"wrong": {}}
        assert told(page)["facts"]["state"] == "starting"
        urllib.request.urlopen(f"{page}/stop", b"", timeout=20).close()  # noqa: S310 - loopback
        os.kill(engine.pid, signal.SIGCONT)
        assert "stopped before" in wait_for(page, "refused", "running")["sentence"]
        assert list(tmp_path.iterdir()) == []


def test_locust_s_own_form(tmp_path: Path) -> None:
    """Posted as its page does, without any option on the command line, it starts a search."""
    with locust("--runs", tmp_path) as page:
        shown = re.search(r"window\.templateArgs = (\{.*\})", get(f"{page}/")[1])
        assert shown is not None
        fields = json.loads(shown[1])["extra_options"]
        given = {name: field["default_value"] for name, field in fields.items()}
        texts = {name: "" if value in (None, []) else str(value) for name, value in given.items()}
        assert {"model", "budget", "max_users"} <= set(texts)
        facts = swarm(page, host="http://127.0.0.1:1", **texts)
        assert "http://127.0.0.1:1" in facts["sentence"]
        assert facts["form"]["slo"] == form.FIELDS["slo"].default


def test_the_command_s_own_page(url: str, tmp_path: Path) -> None:
    """`vllm-harness knee --ui`: an open page sees the run and its answer before the end."""
    out = tmp_path / "run"
    port = free_port()
    ui = ("--ui", "--ui-port", str(port), "--budget", "10s", "--out", str(out), "--quiet")
    with started("knee", url, *SMALL, *ui) as process:
        facts: dict[str, Any] = {}
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError):
                facts = told(f"http://127.0.0.1:{port}")["facts"]
            time.sleep(0.3)
        _, err = process.communicate()
    knee = json.loads((out / "result.json").read_text())
    assert process.returncode == knee["exit_code"], err
    assert f"Live page: http://127.0.0.1:{port}/harness\n" in err
    assert facts["state"] == knee["status"]
    assert facts["can_start"] is False
    assert facts["files"][0]["name"] == "report.html"
