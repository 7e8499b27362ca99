"""The locustfiles with Locust's own command, as a user starts it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from counted import expected, exposed
from prometheus_tools import lines_of
from study_process import alive, check_code, descendants, scripted_server, wait_for

from harness import open_run
from harness.metrics.metrics import LATENCIES
from harness.records.folder_reader import Run, read_run
from harness.records.record_table import OUTCOMES, concat_tables
from harness.records.request_record import Outcome
from harness.server.address import free_port, free_ports
from harness.wire.vllm_metrics import server_sample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.record_table import RecordTable
    from harness.run.run_frames import RunFrames

HERE = Path(__file__).parent
TOP = HERE.parent
ENOUGH = HERE / "enough_requests.py"
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server whose first token comes after 40 ms and the others every 10 ms."""
    with scripted_server(first_ms=40, gap_ms=10) as url:
        yield url


def locust(file: str | Path, *arguments: object, **popen: Any) -> subprocess.Popen[str]:
    """Locust as its users start it, in the repository's top folder."""
    file = file if isinstance(file, Path) else f"locustfiles/{file}.py"
    command = [sys.executable, "-m", "locust", "-f", str(file), *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        cwd=TOP,
        env=os.environ | {"LOCUST_LOGLEVEL": "INFO", "PYTHONPATH": str(TOP)},
        **popen,
    )


def running(url: str) -> float:
    """How many requests the server says to be under way."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:  # noqa: S310 - loopback
        sample = server_sample(answer.read(), 0)
    assert sample is not None
    return sample.running


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Its output, once it has exited with `code`, or with 5 as this machine was too busy."""
    out, _ = process.communicate(timeout=120)
    check_code(process.returncode, out, code)
    return out


def counted(out: str) -> tuple[int, int]:
    """Requests and failures in the last table that Locust printed."""
    rows = re.findall(r"Aggregated\s+(\d+)\s+(\d+)\(", out)
    return int(rows[-1][0]), int(rows[-1][1])


def complete(run: Run) -> bool:
    """Whether each worker's numbers are 0 .. n - 1, each once."""
    workers = np.unique(run.table.worker)
    numbers = [run.table.number[run.table.worker == worker] for worker in workers]
    return all(sorted(n) == list(range(len(n))) for n in numbers)


@pytest.mark.parametrize("file", ["chat", "completions", "own_turns"])
def test_a_locustfile_works_alone(url: str, file: str, tmp_path: Path) -> None:
    """Headless: requests counted by Locust equal the records, the exit code is 0."""
    folder = tmp_path / "run"
    common = ("--headless", "-u", 4, "-r", 4, "-t", "4s", "--output-tokens", 20)
    out = ended(locust(file, *common, "--host", url, "--run-folder", folder))
    run = read_run(folder)
    assert counted(out) == (len(run.table), 0)
    assert complete(run)
    assert {OUTCOMES[code] for code in run.table.outcome} == {Outcome.ok}
    assert run.info["config"]["drive"]["model"] == "scripted"
    assert run.damage.sentences() == []


OWN = """
import json
from pathlib import Path
from locust import LoadTestShape, User, events, task
from harness.errors import HarnessError
from harness.locust import ChatUser
@events.request.add_listener
def on_request(name, context, **rest):
    with Path(SAID + ".events").open("a") as out:
        print(json.dumps([name, context["ttft_ms"], context["output_tokens"]]), file=out)
class Steps(LoadTestShape):
    def tick(self):
        at_s = self.get_run_time()
        users = 1 if at_s < 4 else 3
        return (users, users) if at_s < 8 else None
class Own(ChatUser):
    n = 0
    @task
    def ask(self):
        self.n += 1
        with Path(SAID).open("a") as out:
            try:
                said = self.llm.send(**ASKED[(self.n - 1) % len(ASKED)])
                row = [said.outcome, said.ttft_ms, said.e2e_ms, said.output_tokens, said.text]
            except (HarnessError, TypeError) as error:
                row = ["refused", str(error)]
            print(json.dumps(row), file=out)
        self.send(name="summarize")  # read by C, and yet its TTFT is known
"""
PATIENCE_S = 120  # a start alone may take half a minute beside other tests
MANY = 100  # requests of a first test: they would show in the counts of the second
HELLO = {"role": "user", "content": "one two three"}


def check_replies(replies: list[list[Any]], events: list[list[Any]], run: Run) -> None:
    """Each reply (outcome, TTFT, e2e, tokens, text) is that of a record and of Locust's event."""
    ok = np.flatnonzero(run.table.outcome == OUTCOMES.index(Outcome.ok))
    replied = run.table.name[ok] != run.names["summarize"]
    first_ns = run.table.at_ns[run.table.offsets[:-1][ok]]
    ttft_ms = (first_ns - run.table.sent_ns[ok]) / 1e6
    e2e_ms = (run.table.done_ns[ok] - run.table.sent_ns[ok]) / 1e6
    recorded = zip(ttft_ms[replied].tolist(), e2e_ms[replied].tolist(), strict=True)
    assert sorted((row[1], row[2]) for row in replies) == sorted(recorded)
    # Locust's event has the name that was given, and the TTFT and the tokens of the reply.
    assert {name for name, *_ in events} == {"hello", "summarize", "/v1/chat/completions"}
    assert sorted(ttft for _, ttft, _ in events if ttft is not None) == sorted(ttft_ms.tolist())
    assert {(row[1], row[3]) for row in replies} <= {(ttft, n) for _, ttft, n in events}
    hello, second = replies[:2]
    assert hello[3:] == [3, " a" * 3]
    assert second[3:] == [second[3], " a" * second[3]]
    assert run.table.prompt_tokens[ok][:1].tolist() == [8]  # of hello, with the chat template


def check_names(stats: list[dict[str, str]], frames: RunFrames) -> None:
    """Each name has its rows in Locust's statistics, its requests, and a row in the report."""
    counts = frames.requests.name.fillna("/v1/chat/completions").value_counts().to_dict()
    assert set(counts) == {"hello", "summarize", "/v1/chat/completions"}
    by_type: dict[str, dict[str, int]] = {"POST": {}, "TTFT": {}, "": {}}
    for row in stats:
        by_type[row["Type"]][row["Name"]] = int(row["Request Count"])
    assert by_type["POST"] == counts
    assert by_type[""] == {"Aggregated": len(frames.requests)}  # those of TTFT are not in it
    first_tokens = frames.requests.dropna(subset=["first_token_at"])
    n_first_tokens = first_tokens.name.fillna("/v1/chat/completions").value_counts().to_dict()
    assert by_type["TTFT"] == n_first_tokens
    for level in frames.result.levels:
        n_by_name = sum(group["e2e_ms"].n for group in level.by_name.values())
        assert n_by_name == level.latencies["e2e_ms"].n
        n_gaps_by_name = sum(group["itl_ms"].n for group in level.by_name.values())
        assert n_gaps_by_name == level.latencies["itl_ms"].n
    report = (frames.path / "report.md").read_text()
    assert not frames.result.levels or "summarize |" in report


def check_refusals(sentences: list[str]) -> None:
    """Each request has its own, whichever user's came first, and there is no other."""
    parts = [
        "body has 'n', and messages or tools are given with a prompt, or to a user of chat",
        "messages or tools are given with a prompt, or to a user of chat: expected",
        "Type is not JSON serializable",
        r"name is 'two\nlines': expected one line of text, of at most 100 characters",
    ]
    counts = {part: sum(sentence.startswith(part) for sentence in sentences) for part in parts}
    assert min(counts.values()) >= 1
    assert sum(counts.values()) == len(sentences)


def test_what_own_requests_get_back(url: str, tmp_path: Path) -> None:
    """Text and counts of the answer, TTFT and e2e of the record; what is refused is not sent.

    The file's own shape asks for one user, then for three: each is a level, or is said to be none.
    """
    folder = tmp_path / "run"
    said = tmp_path / "said"
    file = tmp_path / "own.py"
    asked = """[
        dict(messages=[HELLO], body={"top_p": 0.9}, output_tokens=3, name="hello"),
        dict(body={"n": 2}, prompt="a b", messages=[HELLO]),
        dict(prompt="a b", messages=[HELLO]),
        dict(body={"stop": {1}}),
        dict(prompt="a b c d"),
        dict(prompt="a b", name="two\\nlines"),
    ]"""
    file.write_text(f"SAID, HELLO = {str(said)!r}, {HELLO}\nASKED = {asked}\n{OWN}")
    flags = ("--headless", "--output-tokens", 9, "--run-folder", folder, "--csv", tmp_path / "own")
    ended(locust(file, *flags, "--host", url))
    rows = [json.loads(line) for line in said.read_text().splitlines()]
    fired = [json.loads(line) for line in Path(f"{said}.events").read_text().splitlines()]
    run = read_run(folder)
    assert run.damage.sentences() == []
    check_replies([row for row in rows if row[0] == "ok"], fired, run)
    check_refusals([row[1] for row in rows if row[0] == "refused"])
    frames = open_run(folder)
    with (tmp_path / "own_stats.csv").open() as stats:
        check_names([*csv.DictReader(stats)], frames)
    levels = frames.levels.users.tolist()
    assert frames.result is not None
    assert levels == [1, 3] or frames.result.unheld
    measured = frames.requests.query('phase == "measured"')
    # one user may get no answer within its level on a busy machine
    assert (
        sorted(set(measured.users)) == frames.levels.users[frames.levels["ttft_ms.n"] > 0].tolist()
    )


def test_users_with_sessions(url: str, tmp_path: Path) -> None:
    """conversation.py: turns of sessions, with the think time, body and headers asked for."""
    folder = tmp_path / "run"
    flags = ("--headless", "-u", 30, "-r", 30, "-t", "4s", "--run-folder", folder)
    asked = (
        "--think-time",
        "1500ms",
        "--body",
        "top_p=0.9",
        "--body",
        "temperature=1",
        "--header",
        "X-Session-ID: {session}",
        "--metrics-url",
        f"{url}/metrics",
    )
    ended(locust("conversation", *flags, *asked, "--output-tokens", 8, "--host", url))
    run = read_run(folder)
    drive = run.info["config"]["drive"]
    assert drive["workload"]["name"] == "conversation"
    assert drive["body"] == {"temperature": 1, "top_p": 0.9}
    assert [*map(tuple, drive["headers"])] == [("X-Session-ID", "{session}")]
    assert len(run.server) > 1
    assert len(run.table) > 0
    assert (run.table.session >= 0).all()
    assert (run.table.think_ns == 1_500_000_000).all()
    assert run.table.turn.max() > 0  # mid-way


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ((), 0),
        (("--rate", "fast"), 2),
        (("--arrivals", "data"), 2),
        (("--think-time", "1s"), 2),  # nobody waits for an answer
        (("--body", "temperature"), 2),
    ],
)
def test_requests_at_a_rate(url: str, flags: tuple[str, ...], code: int, tmp_path: Path) -> None:
    """rate.py: each request of the schedule once, from two processes; a bad rate sends none."""
    folder = tmp_path / "run"
    port = free_port()
    level = ("--rate", "20/s", "--arrivals", "constant", "--duration", "3s", "--output-tokens", 8)
    two = ("--processes", 2, "--master-bind-port", port, "--master-port", port)
    headless = ("--headless", *level, *(two if not code else ()), "--run-folder", folder)
    out = ended(locust("rate", *headless, "--host", url, *flags), code)
    assert "Traceback" not in out
    assert folder.exists() is not bool(code)
    if not code:
        run = read_run(folder)
        assert sorted(run.table.user) == list(range(len(run.table)))
        assert set(run.table.worker.tolist()) == {0, 1}
        result = json.loads((folder / "result.json").read_text())
        assert [level["rate_per_s"] for level in result["levels"]] == [20]


@pytest.mark.long
@pytest.mark.parametrize("how", ["processes", "master and worker"])
def test_distributed_runs_lose_nothing(url: str, how: str, tmp_path: Path) -> None:
    """Every record of every worker is there once, and Locust's sum agrees."""
    folder = tmp_path / "run"
    port = free_port()
    end = ("--headless", "-u", 4, "-r", 4, "-t", "90s", "--host", url, "--run-folder", folder)
    bind = ("--master-bind-port", port, "--master-port", port)
    if how == "processes":
        out = ended(locust(ENOUGH, *end, *bind, "--processes", 2))
    else:
        workers = [locust(ENOUGH, "--worker", "--master-port", port) for _ in range(2)]
        out = ended(locust(ENOUGH, *end, *bind, "--master", "--expect-workers", 2))
        for worker in workers:
            ended(worker)
    run = read_run(folder)
    assert counted(out) == (len(run.table), 0)
    assert complete(run)
    assert set(run.table.worker.tolist()) == {0, 1}
    assert "never arrived" not in out


@pytest.mark.long
def test_a_worker_that_joins_a_running_test(url: str, tmp_path: Path) -> None:
    """It may be told to spawn users before its own `init` event: they send, and nothing fails."""
    late = tmp_path / "late.py"  # its `init` takes long enough for the master to be first
    late.write_text(
        "import gevent\nfrom locust import events\n"
        "events.init.add_listener(lambda **_: gevent.sleep(2))\n"
        "from locustfiles.chat import Chat\n"
    )
    folder = tmp_path / "run"
    port = free_port()
    early = locust("chat", "--worker", "--master-port", port)
    end = ("--headless", "-u", 4, "-r", 4, "-t", "25s", "--host", url, "--run-folder", folder)
    bind = ("--master-bind-port", port, "--expect-workers", 1)
    master = locust("chat", "--master", *end, *bind)
    until = time.monotonic() + 30
    while time.monotonic() < until and not (folder / "run.json").exists():
        time.sleep(0.1)
    command = [sys.executable, "-m", "locust", "-f", str(late), "--worker"]
    joined = subprocess.Popen(
        [*command, "--master-port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=TOP,
        env=os.environ | {"PYTHONPATH": str(TOP)},
    )
    out = [ended(process) for process in (master, early, joined)]
    assert [text for text in out if "Traceback" in text] == []
    run = read_run(folder)
    assert complete(run)
    assert set(run.table.worker.tolist()) == {0, 1}


@pytest.mark.parametrize(("slo", "code"), [((), 130), (("--slo", "ttft_p95=5s"), 130)])
def test_ctrl_c_leaves_every_record(
    url: str, slo: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    """SIGINT in the middle: open requests are `cancelled`, nothing is missing; no SLO is met."""
    folder = tmp_path / "run"
    process = locust(
        "chat",
        "--headless",
        "-u",
        4,
        "-r",
        4,
        "--host",
        url,
        "--run-folder",
        folder,
        "--output-tokens",
        300,
        *slo,
    )
    wait_for(lambda: running(url) == 4)
    process.send_signal(signal.SIGINT)
    out = ended(process, code)
    run = read_run(folder)
    outcomes = [OUTCOMES[code] for code in run.table.outcome]
    assert outcomes.count(Outcome.cancelled) >= 1
    assert complete(run)
    assert counted(out)[0] == len(run.table)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_dead_decoder_ends_the_run(url: str, processes: int, tmp_path: Path) -> None:
    """Exit 5 with a sentence, long before the run's time is over; the folder can be read."""
    folder = tmp_path / "run"
    port = free_port()
    more = ("--processes", 2, "--master-bind-port", port, "--master-port", port)
    process = locust(
        "chat",
        "--headless",
        "-u",
        4,
        "-r",
        4,
        "-t",
        "120s",
        "--host",
        url,
        "--run-folder",
        folder,
        "--output-tokens",
        20,
        *(more if processes > 1 else ()),
    )
    wait_for(lambda: any(path.stat().st_size for path in folder.glob("records.*")))
    found = descendants(process.pid)
    decoders = [pid for pid, what in found.items() if "harness.reader.decoder_process" in what]
    os.kill(decoders[0], signal.SIGKILL)
    out = ended(process, 5)
    assert "ended in the middle of the run by signal 9" in out
    wait_for(lambda: alive(found) == [])
    assert "ended in the middle" in json.loads((folder / "ended.json").read_text())["invalid"]
    assert "ok" in set(open_run(folder).requests["outcome"])


KILLED = """
from locust import runners
from locustfiles.chat import Chat
runners.HEARTBEAT_LIVENESS = 2  # s, in place of 10
"""


@pytest.mark.long
def test_a_killed_worker_is_named(url: str, tmp_path: Path) -> None:
    """Without an SLO, too, and found only at the end: 5 from the process and in the result."""
    folder = tmp_path / "run"
    port = free_port()
    file = tmp_path / "killed.py"
    file.write_text(KILLED)
    bind = ("--processes", 2, "--master-bind-port", port, "--master-port", port)
    process = locust(
        file,
        "--headless",
        "-u",
        4,
        "-r",
        4,
        "-t",
        "20s",  # a busy machine needs some of them until the worker is killed
        "--host",
        url,
        "--run-folder",
        folder,
        "--output-tokens",
        8,
        *bind,
    )
    wait_for(lambda: n_record_files(folder) == 2)
    found = descendants(process.pid)
    # the master has two children; each has a decoder
    worker = next(pid for pid, what in found.items() if "killed.py" in what)
    os.kill(worker, signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    result = json.loads((folder / "result.json").read_text())
    assert process.returncode == 5, out
    assert result["exit_code"] == 5, out
    assert result["status"] == "invalid", out
    named = [text for text in result["damage"] if re.match(r"worker [01] \(", text)]
    assert len(named) >= 1
    assert named[0] in result["invalid_reason"]
    wait_for(lambda: alive(found) == [])


def test_an_unreachable_server_is_said_with_its_exit_code() -> None:
    """No server: one sentence, exit code 3, no request."""
    process = locust("chat", "--headless", "-u", 1, "--host", f"http://127.0.0.1:{free_port()}")
    out = ended(process, 3)
    assert "127.0.0.1" in out
    assert "Traceback" not in out
    assert counted(out) == (0, 0)


def test_a_missed_slo_sets_the_exit_code(url: str, tmp_path: Path) -> None:
    """99 when an SLO is missed: at 10 ms a token every request is above 5 ms.

    Of TPOT a busy client can tell more than of a single gap.
    """
    slo = ("--slo", "tpot_p95=5ms", "--slo", "ttft_p50=5s")
    end = ("--headless", "-u", 4, "-r", 4, "-t", "90s", "--output-tokens", 20)
    process = locust(ENOUGH, *end, "--run-folder", tmp_path / "run", "--host", url, *slo)
    out = ended(process, 99)
    if process.returncode == 99:
        assert "tpot_p95=5ms missed at 4 concurrent requests" in out
        assert "ttft_p50=5s m" in out or "ttft_p50=5s inconclusive" in out


@pytest.mark.parametrize("processes", [1, 2])
def test_the_web_ui_shows_true_percentiles(url: str, processes: int, tmp_path: Path) -> None:
    """The page's tables, the CSV and the metrics over HTTP hold the records of the run folder."""
    folder = tmp_path / "run"
    web, port = free_ports(2, set())
    more = ("--processes", 2, "--master-bind-port", port, "--master-port", port)
    process = locust(
        "chat",
        "--web-port",
        web,
        "--web-host",
        "127.0.0.1",
        "--host",
        url,
        "-u",
        6,
        "-r",
        6,
        "--autostart",
        "--run-folder",
        folder,
        "--output-tokens",
        15,
        *(more if processes > 1 else ()),
    )
    reached(web)
    page_at(web, 1, ended=20)
    get(web, "/stop", b"")
    report = stopped_report(web, folder)
    page = get(web, "/").decode()
    tables = json.loads(get(web, "/harness/live.json"))["tables"]
    csv = get(web, "/harness/latencies.csv").decode()
    metrics = wait_for(lambda: metrics_without_users(web))
    process.send_signal(signal.SIGTERM)
    ended(process)
    run = read_run(folder)
    whole = concat_tables(list(run.chunks()))
    check_latencies(whole, tables["latencies"], csv)
    assert report["stats"][-1]["num_requests"] == len(run.table)
    assert "./harness/link.js" in page
    want = exposed(expected(whole, ()), ())
    assert {series: metrics[series] for series in want} == want
    [info] = [dict(labels) for name, labels in metrics if name == "harness_run_info"]
    shown = {key: info[key] for key in ("kind", "workload", "run", "model", "target")}
    assert shown == {
        "kind": "locust",
        "workload": "chat",
        "run": run.path.name,
        "model": run.info["server"]["model"],
        "target": run.info["server"]["url"].removeprefix("http://"),
    }


def metrics_without_users(web: int) -> Any:
    """The page of metrics, once the test is over for it, too; None before."""
    metrics = lines_of(get(web, "/harness/metrics"))
    return None if metrics["harness_users_target", ()] else metrics


def check_latencies(whole: RecordTable, shown: list[list[Any]], csv: str) -> None:
    """The page's rows and the CSV's lines are those of the records; p50 to a thousandth."""
    header, *lines = csv.splitlines()
    assert header == "key,metric,n,p50,p90,p95,p99,p999,max"
    rows = zip(LATENCIES.items(), shown, lines, strict=True)
    for (key, latency), (name, n, p50, *_, largest), line in rows:
        values = latency.observe(whole).ns / 1e6
        assert name == latency.name
        assert n == len(values)
        median = float(np.percentile(values, 50, method="higher"))
        assert p50 == pytest.approx(median, rel=1e-3, abs=0.01), key
        assert largest == round(float(values.max()), 2), key
        assert line.startswith(f"{key},{latency.title},{n},{p50:.2f},"), key
        assert line.endswith(f",{values.max():.2f}"), key


def test_the_live_page_of_a_second_test(url: str) -> None:
    """Begun at once after the first, it shows nothing of it: time, counts, latencies."""
    web = free_port()
    process = locust(
        "chat", "--web-port", web, "--web-host", "127.0.0.1", "--host", url, "--output-tokens", 8
    )
    try:
        reached(web)
        get(web, "/swarm", b"user_count=4&spawn_rate=4")
        before = page_at(web, 5, ended=MANY)
        get(web, "/stop", b"")
        get(web, "/swarm", b"user_count=4&spawn_rate=4")
        after = page_at(web, 1, after=before)
        get(web, "/stop", b"")
        *_, total = json.loads(get(web, "/stats/requests"))["stats"]  # Locust's, of the second
    finally:
        process.send_signal(signal.SIGTERM)
    ended(process)
    first = after["points"][0]
    assert first[0] == 0
    assert total["name"] == "Aggregated"
    assert 0 < after["now"]["ended"] <= total["num_requests"]


def n_record_files(folder: Path) -> int:
    """Those that hold a record already."""
    return sum(path.stat().st_size > 0 for path in folder.glob("records.*"))


def page_at(
    web: int, points: int, after: dict[str, Any] | None = None, *, ended: int = 1
) -> dict[str, Any]:
    """What our page is told, once it has so many points and so many requests have ended.

    `after`: what it was told of the run before, whose results may still be computed.
    """
    before = after["cursor"].split("-")[0] if after else ""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        told: dict[str, Any] = json.loads(get(web, "/harness/live.json"))
        is_another = told["cursor"].split("-")[0] != before
        n_ended = told["now"].get("ended") or 0
        if is_another and len(told["points"]) >= points and n_ended >= ended:
            return told
        time.sleep(0.2)
    raise AssertionError("no test runs")


def reached(web: int) -> None:
    """The web UI answers."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError):
            get(web, "/")
            return
        time.sleep(0.2)
    raise AssertionError("no web UI")


def stopped_report(web: int, folder: Path) -> dict[str, Any]:
    """What the page polls, once the test has run and stopped and every request is counted.

    Locust keeps an answer for 2 s, and workers report every 3 s: until it says what the records do,
    twice, as the last of these may be on their way.
    """
    until = time.monotonic() + PATIENCE_S
    before = -1
    while time.monotonic() < until:
        time.sleep(0.5)
        try:
            report: dict[str, Any] = json.loads(get(web, "/stats/requests"))
        except OSError:
            continue
        counted = report["stats"][-1]["num_requests"]
        if report["state"] == "stopped" and counted == len(read_run(folder).table):
            if counted == before:
                return report
            before = counted
    raise AssertionError("the test did not stop, or a request is not counted")


def get(web: int, path: str, body: bytes | None = None) -> bytes:
    """A page of Locust's web UI; with a body, what a button of it does."""
    with urllib.request.urlopen(f"http://127.0.0.1:{web}{path}", body, timeout=30) as answer:
        return bytes(answer.read())
