"""A run folder like a real one, as the product's own writers write it; the knee lies at 51."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from report_example import MS, SLOTS, S, Server

from harness.measure.evidence import Window, gather
from harness.measure.result import Knee
from harness.measure.search import SearchPlan
from harness.measure.slo import Slo
from harness.measure.states import Purpose, Status
from harness.measure.table import RecordTable
from harness.measure.typed import to_json
from harness.runfolder import names
from harness.runfolder.recordwriter import RecordWriter
from harness.runfolder.runinfo import run_info
from harness.runfolder.serverlines import to_row
from harness.runfolder.writer import RunFolder
from harness.study.results import write_results

if TYPE_CHECKING:
    from pathlib import Path

    from harness.measure.result import Result
    from harness.runfolder.reader import Run

SLOS = (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))
LEVELS = (1, 2, 4, 8, 16, 32, 64, 48, 56, 52, 50, 51, 50, 51)
PLAN = SearchPlan(SLOS)
CLIENT = {"stamp_source": "kernel", "exact_share": 0.98, "loop_lag_p99_ms": 1.42, "cpu_s": 12.4}
PURPOSES = (Purpose.up,) * 7 + (Purpose.bisect,) * 5 + (Purpose.repeat,) * 2
COMMAND = ("vllm-harness", "knee", "http://127.0.0.1:8000", "--slo", "ttft_p95=500ms", "--slo",
           "itl_p95=50ms", "--plan-users", "2000")  # fmt: skip


def begin(path: Path, said: str = "") -> RunFolder:
    """A folder with run.json alone; `said`: the names that model and workload have."""
    folder = RunFolder.create(path)
    slos = [str(slo) for slo in SLOS]
    work = {"name": said or "chat", "prompt": {"mean": 256, "shape": "fixed"},
            "output": {"mean": 48, "shape": "normal"}}  # fmt: skip
    config = {"kind": "knee", "plan": {**asdict(PLAN), "slos": slos}, "slos": slos,
              "plan_users": 2000, "drive": {"workload": work}}  # fmt: skip
    target = {"url": "http://127.0.0.1:8000", "model": said or "example-1.5b", "version": "0.26.0",
              "flags": {"max_num_seqs": SLOTS, "max_num_batched_tokens": 8192}}  # fmt: skip
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
        windows.append(Window(index, users, purpose, began, began + S // 10, settled, end, end))
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
    samples, lines = folder.lines(names.SERVER), folder.lines(names.STEPS)
    for sample in server.samples:
        samples.append(to_row(sample, {}))
    for window in windows:  # each judged on its own, by what was known at its end
        evidence = gather(table.until(window.end_ns), window, SLOS)
        why = invalid if window is windows[-1] else ""
        judged = PLAN.judge(evidence)
        lines.append(asdict(window) | {"decision": judged.decision, "invalid": why})
    samples.close()
    lines.close()


# what is promised at the end of a search, in users: holds, estimate, fails by, interval
KNEES = {
    "found": Knee(50, 51, 52, (50, 51), measured_at_users=50),
    "not_reached": Knee(4, None, None, (4, 512), measured_at_users=4),
    "slo_failed_at_min": Knee(None, None, 64, (0, 64), measured_at_users=64),
}  # fmt: skip


def make(
    path: Path,
    *,
    seconds: float = 8.0,
    levels: tuple[int, ...] = LEVELS,
    status: str = "found",
    fail_above: int = 10**9,
    said: str = "",
) -> tuple[Run, Result] | None:
    """A folder of a search that ended so, and its result; status "": it ends with the load.

    `said` is what a hostile server says wherever it has a say: names, errors, a reason.
    """
    server = Server(fail_above=fail_above, error=said or Server.error)
    windows = load(server, levels, seconds)
    folder = begin(path, said)
    measured(folder, server, windows, said)
    if not status:
        return None
    folder.write_json(names.ENDED, {"interrupted": False, "invalid": "", "figures": CLIENT,
                                    "status": status})  # fmt: skip
    run, result = write_results(path)
    knee = result.knee
    assert knee is not None
    if status in KNEES:  # the seconds of a test are too few for the search itself to say so
        told = KNEES[status]
        knee = replace(knee, holds=told.holds, estimate=told.estimate, fails_by=told.fails_by,
                       ci95=told.ci95, measured_at_users=told.measured_at_users)  # fmt: skip
    result = replace(result, status=Status(status), knee=knee)
    folder.write_json(names.RESULT, to_json(result))
    return run, result
