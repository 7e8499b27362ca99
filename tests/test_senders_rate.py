"""`run --rate` with real processes: stripes, a worker that is stopped, and what is dropped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from study_process import check_code

from harness.metrics.metrics import SCHEDULED, ttft
from harness.records.folder_reader import read_run
from harness.records.record_table import DROPPED

if TYPE_CHECKING:
    from pathlib import Path

    from harness.records.folder_reader import Run

COMMAND = (
    sys.executable,
    "-m",
    "harness",
    "run",
    "--embedded",
    "--quiet",
    "--prompt-tokens",
    "32",
    "--workload",
    "fixed",
    "--output-tokens",
    "8",
)


def started(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A run under way."""
    return subprocess.Popen([*COMMAND, "--out", str(folder), *words], stdout=subprocess.DEVNULL)


def finished(run: subprocess.Popen[bytes], folder: Path) -> tuple[int, Run, dict[str, Any]]:
    """Its exit code, its records and its level."""
    code = run.wait(120)
    return code, read_run(folder), json.loads((folder / "result.json").read_text())["levels"][0]


@pytest.mark.process
@pytest.mark.realtime
def test_a_stopped_worker_is_late_by_the_schedule_alone(tmp_path: Path) -> None:
    """Two processes at 40/s; one is stopped for a second. What it owes is sent, in order, late.

    It owes 20 requests of that second; those due in its first half are late by more than 500 ms.
    The engine answers within milliseconds, so from the send nothing takes long. Half of a second's
    requests are late in a window of 6 s, 8%: the p95 cannot be trusted, so the level is invalid.
    """
    folder = tmp_path / "run"
    run = started(
        folder, "--rate", "40/s", "--arrivals", "constant", "--processes", "2", "--duration", "6s"
    )
    levels = folder / "client.jsonl"
    while not levels.exists() or levels.read_text().count("\n") < 30:  # five lines a second
        assert run.poll() is None
        time.sleep(0.05)
    worker = next(
        p
        for p in psutil.Process(run.pid).children(recursive=True)
        if "harness.senders.worker" in p.cmdline()
    )
    os.kill(worker.pid, signal.SIGSTOP)
    time.sleep(1.2)
    os.kill(worker.pid, signal.SIGCONT)
    code, records, level = finished(run, folder)
    table = records.table
    late = SCHEDULED["schedule_lag"].observe(table).ns > 500e6
    assert 8 <= late.sum() <= 20
    assert set(table.worker[late]) <= {table.worker[late][0]}
    assert (ttft(table).ns > 500e6).sum() >= late.sum()
    assert (SCHEDULED["ttft_from_send"].observe(table).ns > 500e6).sum() == 0
    # of all processes together each request of the schedule once
    assert sorted(table.user) == list(range(len(table)))
    assert set(table.user[table.worker == 1] % 2) == {1}
    assert (code, level["decision"]) == (5, "invalid")
    assert "later than they were due" in level["reason"]


@pytest.mark.process
def test_what_is_due_beyond_the_limit_is_dropped_and_failed(tmp_path: Path) -> None:
    """A server of one slot gets 200/s and --max-in-flight 5: far more than it can take."""
    folder = tmp_path / "run"
    run = started(
        folder,
        "--rate",
        "200",
        "--max-in-flight",
        "5",
        "--max-num-seqs",
        "1",
        "--duration",
        "4s",
        "--slo",
        "ttft_p95=10s",
    )
    code, records, level = finished(run, folder)
    table = records.table
    dropped = table.outcome == DROPPED
    assert sorted(table.user) == list(range(len(table)))
    check_code(code, level["reason"], 99)
    assert level["outcomes"]["dropped"] == level["n_failed"] > level["outcomes"]["ok"] > 0
    assert level["in_flight"] <= 5.5
    assert (table.sent_ns[dropped] == table.done_ns[dropped]).all()
    assert ttft(table).ns[dropped].min() == float("inf")
