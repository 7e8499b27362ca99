"""An invalid level, or phase of a drill, takes nothing from the others; what it takes is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from measure_tables import MS, record
from report_example import Server
from report_folder import CLIENT, SLOS, begin, load

from harness.core.load import REQUESTS_PER_S, Rate
from harness.core.states import Purpose, Status, Verdict
from harness.metrics.evidence import Window
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.json_files import read_json
from harness.report.answer import build_answer
from harness.report.report_data import ReportData
from harness.report.sweep import concurrency_rows
from harness.run.results import compute
from harness.search.next_level import SearchPlan
from harness.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path

    from harness.metrics.result import Result
    from harness.records.request_record import RequestRecord

WHY = "this client can only place p95 ITL between 16.9 and 50.2 ms"
MEDIANS = tuple(replace(slo, q=0.5) for slo in SLOS)  # which eight seconds decide
USERS = (12, 16, 20, 24, 32, 64)


@cache
def held() -> tuple[Server, list[Window]]:
    """Six levels of a server with 40 slots: each SLO is met up to 32 users and missed at 64."""
    server = Server()
    windows = load(server, USERS, 8.0)
    return server, [replace(window, purpose=Purpose.hold) for window in windows]


def folder_of(
    path: Path,
    kind: str,
    plan: SearchPlan,
    windows: list[Window],
    records: list[RequestRecord],
    invalid: dict[int, str],
    *,
    audited: bool = True,
    status: str = "measured",
) -> RunFolder:
    """A run folder as `sweep`, `run` or `drill` leaves it; `invalid`: levels, with the reason."""
    folder = begin(path)
    info: dict[str, Any] = read_json(path / names.RUN) or {}
    slos = [str(slo) for slo in plan.slos]
    info["config"] |= {"kind": kind, "slos": slos, "plan": plan.to_json()}
    folder.write_json(names.RUN, info)
    writer = RecordWriter(folder, 0)
    writer.put(records)
    writer.close()
    lines = folder.lines(names.LEVELS)
    for window in windows:
        why = invalid.get(window.index, "")
        lines.append(window.to_json() | {"decision": "held", "invalid": why, "audited": audited})
    lines.close()
    ended = {"interrupted": False, "invalid": "", "figures": CLIENT, "status": status}
    folder.write_json(names.ENDED, ended)
    return folder


def facts_of(path: Path) -> ReportData:
    """What reports are made from."""
    return ReportData(*compute(read_run(path)))


def result_of(path: Path) -> tuple[Result, str]:
    """The result, and what the terminal says."""
    facts = facts_of(path)
    return facts.result, build_answer(facts).text


def sweep(path: Path, invalid: tuple[int, ...], *, slos: bool, last: int = 6) -> tuple[Result, str]:
    """A sweep of the first levels, of which some are invalid."""
    server, windows = held()
    plan = SearchPlan(MEDIANS if slos else ())
    why = dict.fromkeys(invalid, WHY)
    folder_of(path, "sweep", plan, windows[:last], server.records, why)
    return result_of(path)


@pytest.mark.parametrize(
    ("invalid", "slos", "last", "want"),
    [
        ((), False, 6, (Status.measured, 0)),
        ((1,), False, 6, (Status.inconclusive, 6)),
        (tuple(range(6)), False, 6, (Status.invalid, 5)),
        ((), True, 5, (Status.met, 0)),
        ((1,), True, 5, (Status.inconclusive, 6)),  # met at the others, which is not all
        ((1,), True, 6, (Status.missed, 99)),  # 64 users missed it, whatever 16 users did
        ((5,), True, 6, (Status.inconclusive, 6)),  # the level that missed it is invalid
        (tuple(range(6)), True, 6, (Status.invalid, 5)),
    ],
)
def test_one_level_takes_nothing_from_the_others(
    tmp_path: Path, invalid: tuple[int, ...], slos: bool, last: int, want: tuple[Status, int]
) -> None:
    """Status and exit code; a reason in result.json exactly where the exit code is 5."""
    result, said = sweep(tmp_path, invalid, slos=slos, last=last)
    assert (result.status, result.exit_code) == want
    assert bool(result.invalid_reason) is (want[1] == 5)
    assert (WHY in said) is bool(invalid)


def test_the_hole_is_named_and_the_findings_stand(tmp_path: Path) -> None:
    """Second in the answer; the knee and the throughput of the other levels follow."""
    _, said = sweep(tmp_path, (1,), slos=False)
    headline, hole, *rest = said.splitlines()
    assert headline.startswith("Throughput ")
    assert hole == f"Left out: the level of 16 concurrent requests, because {WHY}."
    assert rest[0].startswith("The knee, where throughput over latency peaks, is at ")


def test_several_holes(tmp_path: Path) -> None:
    """All are named, with the reason of the first."""
    _, said = sweep(tmp_path, (1, 3), slos=False)
    assert (
        "Left out: 2 of 6 levels (16 and 24 concurrent requests), the first "
        f"because {WHY}. The table gives the reason of each." in said
    )


def test_nothing_can_be_used(tmp_path: Path) -> None:
    """The first level's reason stands for all."""
    result, said = sweep(tmp_path, tuple(range(6)), slos=False)
    want = f"none of its 6 levels may be used, the first (12 concurrent requests) because {WHY}."
    assert result.invalid_reason == want
    assert said.splitlines()[1] == want[0].upper() + want[1:]


# A drill: 10 requests a second for a minute; TTFT is 50 ms, and 800 ms where the client's own
# backlog makes it so.
PLAN = """
title = "x"
[servers]
engines = 2
[[phase]]
name = "before"
rate = "10/s"
for = "30s"
[[phase]]
name = "after"
rate = "20/s"
for = "30s"
[[event]]
do = "kill"
at = "40s"
replica = 1
[[expect]]
slo = "ttft_p95=500ms"
phase = "before"
[[expect]]
slo = "ttft_p95=500ms"
after = "kill 1"
[[expect]]
errors = "5%"
[[expect]]
lost = 0
"""


def drill(path: Path, stall: tuple[float, float], slow_s: float) -> tuple[Result, str]:
    """Nothing is sent in `stall`, then all at once; that and what is sent after is slow."""
    rows = []
    ten_per_s = [n / 10 for n in range(300)]
    twenty_per_s = [30 + n / 20 for n in range(600)]
    due_s = ten_per_s + twenty_per_s
    numbers = [*range(300), *range(600)]
    for place, (number, due) in enumerate(zip(numbers, due_s, strict=True)):
        sent = stall[1] if stall[0] <= due < stall[1] else due
        slow = stall[0] <= due < stall[1] + slow_s
        sent_ms = 1000 * sent
        one = record(place, sent_ms, [sent_ms + (800 if slow else 50)])
        rows.append(replace(one, user=number, scheduled_ns=round(1000 * due * MS)))
    windows = []
    for index, (begin_s, rate) in enumerate(((0, 10.0), (30, 20.0))):
        start_ns = begin_s * SECOND
        end_ns = (begin_s + 30) * SECOND
        at = (start_ns, start_ns, start_ns, end_ns, end_ns + SECOND)
        windows.append(Window(index, Rate(rate), Purpose.hold, *at))
    plan = SearchPlan(SLOS[:1], unit=REQUESTS_PER_S)
    folder_of(path, "drill", plan, windows, rows, {}, audited=False).write(names.DRILL, PLAN)
    return result_of(path)


@pytest.mark.parametrize(
    ("stall", "slow_s", "code", "verdicts"),
    [
        ((0, 0), 0, 0, "met met met met"),
        ((45, 45), 12, 99, "met missed met met"),  # it was the server
        ((45, 50), 12, 6, "met inconclusive inconclusive met"),  # the client began it
        ((5, 10), 5, 6, "inconclusive met inconclusive met"),
        # the backlog of the first phase is sent in the second
        ((25, 30.5), 9, 5, ""),
    ],
)
def test_a_drill_does_not_blame_the_server_for_the_client(
    tmp_path: Path, stall: tuple[float, float], slow_s: float, code: int, verdicts: str
) -> None:
    """What depends on an invalid phase is not judged; requests are lost or not all the same."""
    result, said = drill(tmp_path, stall, slow_s)
    wanted = [Verdict(word) for word in verdicts.split()]
    assert [gate.verdict for gate in result.gates] == wanted
    assert result.exit_code == code, said
    late = "requests were sent more than 250 ms later than they were due"
    first = said.splitlines()[0 if code == 6 else 1]
    assert (late in said) == (code in (5, 6))
    assert (late in first) == (code in (5, 6))
    assert bool(result.invalid_reason) is (code == 5)


def test_a_drill_says_first_which_phase_is_invalid(tmp_path: Path) -> None:
    """Then how many expectations came true, and that the others were not judged."""
    result, said = drill(tmp_path, (45, 50), 12)
    lines = said.splitlines()
    assert lines[0].startswith("Phase 2 of 2, 'after', is invalid: 95 of 600 requests were sent ")
    assert lines[1] == "2 of 4 expectations came true."
    assert "not judged: phase 'after' is invalid" in lines[2]
    assert [level.usable for level in result.levels] == [True, False]


def test_every_level_of_a_sweep_has_a_row(tmp_path: Path) -> None:
    """An invalid one without figures, and with its reason."""
    sweep(tmp_path, (1,), slos=False)
    rows = {row["concurrency"]: row for row in concurrency_rows(facts_of(tmp_path))}
    assert list(rows) == list(USERS)
    assert rows[16].get("qps") is None
    assert rows[16]["notes"] == f"invalid: {WHY}"
    assert rows[20]["qps"] > rows[12]["qps"] > 0
