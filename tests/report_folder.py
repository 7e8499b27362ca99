"""A run folder like a real one, as the product's own writers write it; the knee lies at 51."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from report_example import MS, SLOTS, S, Server

from harness.core.load import Users
from harness.core.states import Status
from harness.metrics.evidence import Window, gather_evidence
from harness.metrics.result import read_result
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.record_table import RecordTable
from harness.records.runinfo import run_info
from harness.report.write import write_reports
from harness.run.results import EXIT_OF, compute, write_results
from harness.search.next_level import SearchPlan

if TYPE_CHECKING:
    from pathlib import Path

    from harness.metrics.result import Result
    from harness.report.answer import Answer

SLOS = (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))
LEVELS = (1, 2, 4, 8, 16, 32, 64, 48, 56, 52, 50, 51, 50, 51)
PLAN = SearchPlan(SLOS)
CLIENT = {"stamp_source": "kernel", "exact_share": 0.98, "loop_lag_p99_ms": 1.42, "cpu_s": 12.4}
PURPOSES = ("up",) * 7 + ("bisect",) * 5 + ("repeat",) * 2
COMMAND = (
    "vllm-harness",
    "knee",
    "http://127.0.0.1:8000",
    "--slo",
    "ttft_p95=500ms",
    "--slo",
    "itl_p95=50ms",
    "--plan-users",
    "2000",
)


def begin(path: Path, said: str = "") -> RunFolder:
    """A folder with run.json alone; `said`: the names that model and workload have."""
    folder = RunFolder.create(path)
    slos = [str(slo) for slo in SLOS]
    work = {
        "name": said or "chat",
        "prompt": {"mean": 256, "shape": "fixed"},
        "output": {"mean": 48, "shape": "normal"},
    }
    config = {
        "kind": "knee",
        "plan": PLAN.to_json(),
        "slos": slos,
        "plan_users": 2000,
        "drive": {"workload": work},
    }
    target = {
        "url": "http://127.0.0.1:8000",
        "model": said or "example-1.5b",
        "version": "0.26.0",
        "flags": {"max_num_seqs": SLOTS, "max_num_batched_tokens": 8192},
    }
    info = run_info(config, seeds={"load": 1}, server=target, command=COMMAND)
    folder.write_json(names.RUN, info)
    return folder


def load(server: Server, levels: tuple[int, ...], seconds: float) -> list[Window]:
    """Hold the levels one after another, then let the requests end."""
    windows = []
    for index, (users, purpose) in enumerate(zip(levels, PURPOSES, strict=False)):
        began = server.now
        server.hold(users, seconds / 2)
        settled = server.now
        server.hold(users, seconds)
        end = server.now
        windows.append(
            Window(index, Users(users), purpose, began, began + S // 10, settled, end, end)
        )
    server.users = 0
    while server.running or server.waiting:
        server.step()
    return windows


def measured(folder: RunFolder, server: Server, windows: list[Window], invalid: str = "") -> None:
    """Write records, samples and steps; `invalid`: why the last step must not be used."""
    table = RecordTable.from_records(server.records)
    for worker in (0, 1):
        writer = RecordWriter(folder, worker)
        writer.put([record for record in server.records if record.worker == worker])
        writer.close()
    samples, lines = folder.lines(names.SERVER), folder.lines(names.LEVELS)
    for sample in server.samples:
        samples.append(sample)
    for window in windows:  # each judged on its own, by what was known at its end
        evidence = gather_evidence(table.until(window.end_ns), window, SLOS)
        why = invalid if window is windows[-1] else ""
        decision = PLAN.judge(evidence).decision
        lines.append(window.to_json() | {"decision": decision, "invalid": why})
    samples.close()
    lines.close()


def make(
    path: Path,
    *,
    seconds: float = 8.0,
    levels: tuple[int, ...] = LEVELS,
    status: str = "found",
    fail_above: int = 10**9,
    said: str = "",
) -> Result | None:
    """A folder of a search that ended so, its result.json; status "": it ends with the load.

    `said` is what a hostile server says wherever it has a say: names, errors, a reason.
    """
    server = Server(fail_above=fail_above, error=said or Server.error)
    windows = load(server, levels, seconds)
    folder = begin(path, said)
    measured(folder, server, windows, said)
    if not status:
        return None
    ended = {"interrupted": False, "invalid": "", "figures": CLIENT}
    folder.write_json(names.ENDED, ended | {"status": status})
    return ended_as(write_results(path)[1], status)


@cache
def found_run(base: Path) -> tuple[Path, Result]:
    """The run of a found knee, recorded and reported once in a session, and its result.

    `base`: the session's folder. Who changes the run copies it first.
    """
    path = base / "found"
    result = make(path, seconds=3)
    assert result is not None
    report(path, result)
    return path, result


def ended_as(result: Result, status: str) -> Result:
    """The same figures, as of a search that ended so; a knee that was found lies at 51."""
    as_said = Status(status)
    knee = result.knee
    if as_said == Status.found and knee is not None:
        knee = replace(knee, holds=50, estimate=51, fails_by=52, ci95=(50, 51))
    return replace(result, status=as_said, exit_code=EXIT_OF[as_said], knee=knee)


def report(path: Path, result: Result | None = None) -> Answer:
    """The folder's reports, of its own result or another; the answer."""
    run, own, gaps = compute(read_run(path))
    return write_reports(run, result or read_result(path) or own, gaps)
