"""Live metrics of a whole run, and the exporter beside it, as Prometheus would scrape them."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import time
import urllib.request
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from counted import expected, exposed, records, with_parts
from prometheus_tools import Series, lines_of, promtool
from study_process import load, started, wait_for

from harness.core.load import Users
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.export.run_series import RunSeries
from harness.metrics.result import Knee, Result
from harness.metrics.slo import Slo
from harness.reader.clock import CLOCK
from harness.records.folder_reader import read_run
from harness.records.record_table import concat_tables
from harness.records.request_record import Outcome
from harness.records.samples import ClientSample
from harness.server.address import free_port

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from study_process import Command

Lines = dict[Series, float]  # of a page
SLOS = (Slo.parse("ttft_p95=500ms"), Slo.parse("itl_p95=11ms"))


def filled(seed: int, count: int, users: int) -> RunSeries:
    """A run of some requests, whole ones and parts."""
    live = RunSeries("knee", "chat", SLOS)
    live.set_load(Users(users), users)
    live.set_level(users, "measuring", "up")
    live.set_progress(["pass"] * users, 1.0, float(users))
    main = ClientSample(CLOCK.now_ns(), "main", 1.0)
    worker = ClientSample(CLOCK.now_ns(), "worker 0", 2.0)
    live.set_client_samples([main, worker])
    for record in records(seed, count):
        live.counts.put(with_parts(record, [0.5]))
    live.set_knee(Result(knee=Knee(users - 1, users, ci95=(users - 1, users + 1))))
    return live


def test_label_sets_are_bounded():
    """Two quite different loads show the same series, so nothing of a load is a label."""
    small = lines_of(filled(1, 3, 2).page())
    large = lines_of(filled(2, 300, 90).page())
    assert set(small) == set(large)
    assert small != large
    assert len(small) < 350


def test_promtool_likes_the_page():
    """`promtool check metrics`, without a remark."""
    assert promtool("check", "metrics", stdin=filled(1, 50, 4).page()) == ""


def test_state_of_a_run():
    """Users, level, decisions, bracket, knee, lag: as they were given, in base units."""
    live = RunSeries("knee", "rag", (*SLOS, Slo.parse("ttft_p95=300ms")))  # the stricter one counts
    live.set_run_info("knee-1", "qwen", "gpu:8000")
    live.set_load(Users(8), 7)
    live.set_level(3, "settling", "bisect")
    live.set_progress(["pass", "fail", "invalid", "pass"], 4.0, 8.0)
    live.set_client_samples([ClientSample(0, "main", 1.5, 12.5), ClientSample(0, "decoder 0", 0.5)])
    live.set_knee(Result(knee=Knee(holds=5, estimate=6, ci95=(5, 7))))
    lines = {}
    for (name, labels), value in lines_of(live.page()).items():
        label_values = [label_value for _, label_value in labels]
        series = " ".join([name.removeprefix("harness_"), *label_values])
        lines[series] = value
    want = {
        "run_info knee qwen knee-1 gpu:8000 rag": 1, "level": 3,
        "users_target": 8, "users_running": 7,
        "level_phase settling": 1, "level_purpose bisect": 1, "level_purpose up": 0,
        "levels_total pass": 2, "levels_total fail": 1, "levels_total invalid": 1,
        "levels_total inconclusive": 0, "bracket_low_users": 4, "bracket_high_users": 8,
        "slo_limit_seconds ttft_p95": 0.3, "slo_limit_seconds itl_p95": 0.011,
        "slo_allowed_ratio ttft_p95": 0.05, "slo_allowed_ratio itl_p95": 0.05,
        "loop_lag_seconds main": 0.0125, "client_cpu_seconds_total main": 1.5,
        "client_cpu_seconds_total decoder 0": 0.5,
        "knee_users": 6, "knee_low_users": 5, "knee_high_users": 7,
    }  # fmt: skip
    assert {name: lines.get(name) for name in want} == want


def scrape(port: int) -> tuple[Lines, float]:
    """A page, and the seconds that it took; {} when nobody listens."""
    begun = time.perf_counter()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            page = answer.read()
        seconds = time.perf_counter() - begun
        return lines_of(page), seconds
    except OSError:
        return {}, 0.0


@contextlib.contextmanager
def exporting(url: str, *flags: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The exporter as a process, and its port."""
    port = free_port()
    process = started("exporter", "--target", url, "--port", str(port), *flags)
    try:
        wait_for(lambda: scrape(port)[0] != {})
        yield process, port
    finally:
        process.kill()
        process.communicate()


@dataclass
class Watched:
    """What a Prometheus that scrapes ten times a second would have."""

    pages: list[Lines] = field(default_factory=list)  # of the run
    target: Lines = field(default_factory=dict)  # of the exporter, the newest of each series
    took_s: list[float] = field(default_factory=list)  # of both

    def scrape(self, run: int, exporter: int) -> None:
        """One page of each, by their ports."""
        lines, seconds = scrape(run)
        if lines:
            self.pages.append(lines)
            self.took_s.append(seconds)
        lines, seconds = scrape(exporter)
        self.took_s.append(seconds)
        self.target |= lines


@pytest.mark.process
def test_a_run_as_prometheus_sees_it(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """After the run its last page equals the records, bucket by bucket; before, it only grows.

    The exporter beside it splits the server's TTFT into what the run folder's samples say.
    """
    out = tmp_path / "run"
    port = free_port()
    slo_flags = [part for slo in SLOS for part in ("--slo", str(slo))]
    flags = (
        "--users",
        "6",
        "--duration",
        "3s",
        "--prompt-tokens",
        "64",
        "--output-tokens",
        "32",
        "--quiet",
        "--out",
        str(out),
        "--metrics-port",
        str(port),
        *slo_flags,
    )
    engine = EngineConfig(max_num_seqs=4)
    watched = Watched()
    with start_engine(engine) as serving, exporting(serving.url) as (_, beside):
        run = started("run", serving.url, *flags)
        while run.poll() is None:
            watched.scrape(port, beside)
            time.sleep(0.1)
        run.communicate()
    took_ms = np.percentile(watched.took_s, [50, 95, 100]) * 1e3
    median_ms, most_often_ms, most_ms = took_ms.tolist()
    figure(
        f"{len(watched.took_s)} scrapes of a run and of the exporter: {median_ms:.1f} ms median, "
        f"{most_often_ms:.1f} ms p95, {most_ms:.0f} ms at most"
    )
    target = serving.url.removeprefix("http://")
    check_pages(watched.pages, out, target)
    check_exporter(watched.target, out, target, engine)


def check_pages(pages: list[Lines], out: Path, target: str) -> None:
    """Of the run, from its first to its last."""
    table = concat_tables(list(read_run(out).chunks()))
    want = exposed(expected(table, SLOS), SLOS)
    got = {series: pages[-1][series] for series in want}
    assert got == pytest.approx(want, abs=1e-9)
    for before, after in pairwise(pages):
        fallen = [
            series for series in before if is_counter(series) and after[series] < before[series]
        ]
        assert fallen == []
    assert max(page.get(("harness_users_running", ()), 0) for page in pages) == 6
    n_ended = [page["harness_e2e_seconds_count", ()] for page in pages]
    assert any(0 < n < len(table) for n in n_ended)  # live
    about = {
        "kind": "run",
        "workload": "chat",
        "run": "run",
        "model": "llama-3.1-8b",
        "target": target,
    }
    assert pages[-1]["harness_run_info", tuple(sorted(about.items()))] == 1


def is_counter(series: Series) -> bool:
    name, _ = series
    return name.endswith(("_total", "_bucket", "_count"))


def check_exporter(lines: Lines, out: Path, target: str, engine: EngineConfig) -> None:
    """What it says of the server, beside the run's own figures."""
    assert lines["harness_target_info", (("target", target),)] == 1
    assert lines["harness_target_up", ()] == 1
    assert lines["harness_server_max_num_seqs", (("source", "read"),)] == engine.max_num_seqs
    assert lines["harness_server_kv_tokens", ()] == engine.blocks * engine.block_size
    level = load(out / "result.json")["levels"][0]["server"]
    parts = {}
    for (name, labels), value in lines.items():
        if name == "harness_server_ttft_part_mean_seconds":
            parts[dict(labels)["part"]] = value
    mean_s = lines["harness_server_ttft_mean_seconds", ()]
    assert sum(parts.values()) == pytest.approx(mean_s)
    assert parts["queue"] == pytest.approx(level["queue_mean_s"], rel=0.5)  # another window


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_exporter_ends_in_order(number: int, code: int) -> None:
    """Without a target too: it says so once, serves `up 0`, and ends when it is told to."""
    with exporting(f"http://127.0.0.1:{free_port()}") as (process, port):
        lines, _ = scrape(port)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            assert answer.read() == b"ok\n"
        process.send_signal(number)
        said = process.communicate(timeout=20)[1]
        assert process.returncode == code
    assert lines["harness_target_up", ()] == 0
    assert said.count("nothing listens at") == 1


@pytest.mark.process
def test_a_target_that_does_not_answer_delays_no_scrape(figure: Callable[[str], None]) -> None:
    """It takes the connection and says nothing: pages come as ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with exporting(url) as (_, port):
            took = [scrape(port)[1] for _ in range(20)]
    figure(f"20 scrapes beside a target that hangs: {max(took) * 1e3:.1f} ms at most")


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("exporter --target localhost:8000", 2, "expected http:// or https://"),
        ("exporter --target http://127.0.0.1:1 --port {taken}", 2, "try --port 0"),
        ("exporter --target http://127.0.0.1:1 --gpu-metrics http://127.0.0.1:1", 3,
         "--gpu-metrics is http://127.0.0.1:1, which cannot be read (Connection refused)"),
        ("exporter --target http://127.0.0.1:1 --ca-file no.pem", 2, "--ca-file is no.pem"),
        ("run --embedded --metrics-port {taken} --users 1", 2,
         "--metrics-port is {taken} (Address already"),
    ],
)  # fmt: skip
def test_refused(line: str, code: int, says: str, command_here: Command) -> None:
    """One sentence, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        done = command_here(*line.format(taken=taken).split())
    assert done.returncode == code
    assert re.fullmatch(r"vllm-harness: .*\n", done.stderr)
    assert says.format(taken=taken) in done.stderr


def test_outcomes_are_all_there_from_the_start():
    """A rate over a counter that appears with its first failure would miss that failure."""
    lines = lines_of(RunSeries("run", "chat").page())
    of_requests = [labels for name, labels in lines if "requests" in name and labels]
    found = {dict(labels)["outcome"] for labels in of_requests}
    assert found == {str(o) for o in Outcome} - {"open"}
