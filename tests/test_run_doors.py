"""The same records through the three doors (`run`, `sweep`, `locust`): verdicts and exit codes."""

from __future__ import annotations

import re
from heapq import heappop, heappush
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.cli.app import main
from harness.core.states import Decision, Status
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord, ns_array
from harness.records.runinfo import run_info
from harness.run.results import EXIT_OF, write_results
from harness.search.locust_levels import locust_levels
from harness.search.next_level import SearchPlan
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from harness.metrics.result import Result

KINDS = ("run", "sweep", "locust")
LIFE = 60 * MS
GAP = 10 * MS
TOKENS = 3
GOOD, SLOW = 20 * MS, 120 * MS  # TTFT


def requests(
    users: int,
    n: int,
    slow: Collection[int] = (),
    bad: Collection[int] = (),
    tokens: int = TOKENS,
    outcome: Outcome = Outcome.truncated,
) -> list[RequestRecord]:
    """`n` requests, one after another of each user, after two of each that settle the level.

    Of the `n`, those of `slow` have their first token late, those of `bad` end as `outcome`.
    """
    found: list[RequestRecord] = []
    free = [(0, user) for user in range(users)]  # when each user sends next
    for number in range(n + 2 * users):
        now, user = heappop(free)
        place = number - 2 * users
        ended = Outcome.ok
        error = ""
        n_came = tokens
        if place in bad:
            ended = outcome
            error = "the stream ended without [DONE]"
            n_came = tokens if outcome is Outcome.truncated else 0
        first = now + (SLOW if place in slow else GOOD)
        at = [first + i * GAP for i in range(n_came)]
        done = max([now + LIFE, *at])
        heappush(free, (done, user))
        found.append(
            RequestRecord(
                0,
                number,
                user,
                now,
                done,
                ended,
                status=200,
                planned_tokens=tokens,
                error=error,
                at_ns=ns_array(at),
                not_before_ns=ns_array(at),
                tokens=ns_array([1] * n_came),
            )
        )
    return found


def folder(
    path: Path, kind: str, made: list[RequestRecord], slos: tuple[str, ...], max_errors: float
) -> Path:
    """A run folder of that kind; the level is the one that a `locust` run's records show."""
    to = RunFolder.create(path)
    plan = SearchPlan(tuple(map(Slo.parse, slos)), max_errors=max_errors)
    config = {"kind": kind, "plan": plan.to_json(), "slos": slos}
    to.write_json(names.RUN, run_info(config, seeds={"load": 1}, server={"model": "m"}))
    writer = RecordWriter(to, 0)
    writer.put(made)
    writer.close()
    if kind != "locust":
        lines = to.lines(names.LEVELS)
        for entry in locust_levels(RecordTable.from_records(made)):
            lines.append(entry.window.to_json() | {"decision": Decision.held, "audited": False})
        lines.close()
    status = "" if kind == "locust" else Status.measured
    to.write_json(names.ENDED, {"interrupted": False, "invalid": "", "status": status})
    return path


def said(result: Result) -> tuple[str, int, list[tuple[str, float, int]], bool]:
    """(status, exit code, (verdict, over, n) of each SLO, whether the failures are a finding)."""
    slos = [(one.verdict, one.n_over, one.n) for one in result.slos]
    return result.status, result.exit_code, slos, result.errors is not None


def evenly(n: int, k: int) -> list[int]:
    """`k` of `n` places."""
    return [round((i + 0.5) * n / k) for i in range(k)]


TTFT = "ttft_p95=50ms"
ITL = "itl_p95=50ms"
UNKNOWN = "inconclusive"
NEVER = [("missed", 12, 12), ("missed", 16, 16)]  # with the gaps of those sent before
TIMED_OUT = requests(4, 12, bad=range(12), outcome=Outcome.timeout)
CASES: dict[str, tuple[list[RequestRecord], tuple[str, ...], float, Any]] = {
    "4 of 19 over": (
        requests(1, 19, slow=(2, 7, 11, 17)),
        (TTFT,),
        0.01,
        ("missed", 99, [("missed", 4, 19)], False),
    ),
    "4 of 19 over, four at once": (
        requests(4, 19, slow=(2, 7, 11, 17)),
        (TTFT,),
        0.01,
        (UNKNOWN, 6, [(UNKNOWN, 4, 19)], False),
    ),
    "70 of 1,000 over": (
        requests(4, 1000, slow=evenly(1000, 70)),
        (TTFT,),
        0.01,
        ("missed", 99, [("missed", 70, 1000)], False),
    ),
    "one SLO met, one missed": (
        requests(4, 1000, slow=evenly(1000, 70)),
        (ITL, TTFT),
        0.01,
        ("missed", 99, [("met", 0, 1992), ("missed", 70, 1000)], False),
    ),
    "8 of 12 broken off": (
        requests(4, 12, bad=range(4, 12)),
        (TTFT,),
        0.01,
        ("missed", 99, [(UNKNOWN, 8, 12)], True),
    ),
    "6 of 60 broken off": (
        requests(4, 60, bad=evenly(60, 6)),
        (TTFT,),
        0.01,
        ("missed", 99, [(UNKNOWN, 6, 60)], True),
    ),
    "one of 500 broken off": (
        requests(4, 500, bad=(250,)),
        (TTFT,),
        0.01,
        ("met", 0, [("met", 1, 500)], False),
    ),
    "no token ever came": (TIMED_OUT, (TTFT, ITL), 0.01, ("missed", 99, [*NEVER], True)),
    "no token ever came, all may fail": (
        TIMED_OUT,
        (TTFT, ITL),
        1.0,
        ("missed", 99, [*NEVER], False),
    ),
    "one token each: no gap is seen": (
        requests(4, 100, tokens=1),
        (ITL,),
        0.01,
        (UNKNOWN, 6, [(UNKNOWN, 0, 0)], False),
    ),
    "nothing was sent": ([], (TTFT,), 0.01, (UNKNOWN, 6, [(UNKNOWN, 0, 0)], False)),
    "good, but too few": (requests(1, 59), (TTFT,), 0.01, (UNKNOWN, 6, [(UNKNOWN, 0, 59)], False)),
    "good": (requests(1, 80), (TTFT,), 0.01, ("met", 0, [("met", 0, 80)], False)),
    "good, four at once": (requests(4, 240), (TTFT,), 0.01, ("met", 0, [("met", 0, 240)], False)),
    "8 of 12 broken off, no SLO": (
        requests(4, 12, bad=range(4, 12)),
        (),
        0.01,
        ("measured", 0, [], False),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_records(name: str, tmp_path: Path) -> None:
    """One verdict and one exit code, whichever command made the folder."""
    made, slos, max_errors, want = CASES[name]
    results = [
        write_results(folder(tmp_path / kind, kind, made, slos, max_errors))[1] for kind in KINDS
    ]
    assert [said(result) for result in results] == [want] * len(KINDS)
    assert [result.command for result in results] == list(KINDS)


def test_how_many_good_requests_are_enough(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """`needs_more` says it: about as many more are met, and half of them not yet."""
    of_twenty = folder(tmp_path / "few", "run", requests(1, 20), (TTFT,), 0.01)
    few = write_results(of_twenty)[1]
    more = few.slos[0].needs_more
    assert more is not None
    figure(f"a p95 with independent requests that are all good is met with {20 + more}")
    got = {}
    for n in (20 + more // 2, 20 + more + 5):
        of_n = folder(tmp_path / str(n), "run", requests(1, n), (TTFT,), 0.01)
        got[n] = write_results(of_n)[1].status
    assert list(got.values()) == [UNKNOWN, "met"]


HEADLINES = {
    "8 of 12 broken off": "SLO missed: 8 of 12 requests failed at 4 concurrent requests (67.0%; "
    "1% allowed), most often with 'the stream ended without [DONE]'.",
    "one SLO met, one missed": "ttft_p95=50ms missed at 4 concurrent requests: 70 of 1,000 over "
    "50 ms (7.0%; 5% allowed).",
}


@pytest.mark.parametrize("name", HEADLINES)
def test_the_report_command(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words first, and the same exit code, from the command line."""
    made, slos, max_errors, want = CASES[name]
    for kind in KINDS:
        path = folder(tmp_path / kind, kind, made, slos, max_errors)
        code = main(["report", str(path)])
        assert code == want[1]
        assert capsys.readouterr().out.splitlines()[0] == HEADLINES[name]
        assert (path / names.REPORT_HTML).exists()


def test_the_documented_codes() -> None:
    """The table of what happened names every status, each with the code that it has."""
    page = (Path(__file__).parents[1] / "docs" / "exit-codes.md").read_text()
    rows = re.findall(r"^\| .* \| `(\w+)` \| (\d+) \|$", page, re.MULTILINE)
    assert {status: int(code) for status, code in rows} == EXIT_OF
    assert len({*rows}) == len(EXIT_OF)
