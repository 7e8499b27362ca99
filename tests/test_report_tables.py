"""report.md and levels.csv: the same bytes each time, a table that holds, a sentence per status."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import nan
from shutil import copytree
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from measure_tables import record
from report_folder import LEVELS, begin, found_run, make, report
from study_process import load

from harness.core.states import Decision, Status, Verdict
from harness.errors import one_line
from harness.metrics.level_figures import ServerFigures
from harness.metrics.numbers import UNKNOWN, as_sentence, escape_markdown
from harness.metrics.result import Gate, Knee, Latency, Level, Result, SloResult, Target
from harness.records import names
from harness.records.folder_reader import read_run
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome
from harness.report.answer import build_answer, silent_sentences
from harness.report.report_data import ReportData
from harness.report.small_print import limitations
from harness.report.tables import (
    expectation_rows,
    further_level_rows,
    level_rows,
    main_level_rows,
    tiles,
    tool_number,
)
from harness.run.results import write_results

if TYPE_CHECKING:
    from pathlib import Path

    from study_process import Command

pytestmark = pytest.mark.xdist_group("report")  # one worker makes the folder, 3 s, for all

FILES = (names.REPORT_HTML, names.REPORT_MD, names.LEVELS_CSV)
COLUMNS = "concurrency,mean_e2e_s,p95_e2e_s,qps,tok_s,gpu_util_pct,notes,"
HOSTILE = (
    "<script>alert(1)</script> & \"quoted\" 'so' [bold]x[/bold] a|b *c*\nnext\u2028line\x1b[1m"
)


def run_without_records() -> Any:
    """For a report of a result alone."""
    return SimpleNamespace(info={"config": {}}, table=(), server=[1], gpu=[1], host=[], client=[])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A found knee, reported, and its result."""
    return found_run(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def folder(found: tuple[Path, Result]) -> Path:
    """The run of it."""
    return found[0]


def test_the_same_folder_gives_the_same_bytes(found: tuple[Path, Result]) -> None:
    """Reports hold no time of their own: writing them again changes nothing."""
    folder, result = found
    first = {name: (folder / name).read_bytes() for name in FILES}
    report(folder, result)
    assert {name: (folder / name).read_bytes() for name in FILES} == first


def test_steps_csv(folder: Path) -> None:
    """The columns that other tools ask for come first; one row per step, in whole lines."""
    lines = (folder / names.LEVELS_CSV).read_text().split("\n")
    rows = list(csv.DictReader(lines))
    assert lines[0][: len(COLUMNS)] == COLUMNS
    assert len(lines) == len(LEVELS) + 2
    assert [int(row["concurrency"]) for row in rows] == list(LEVELS)
    assert {row["notes"].split(":")[0] for row in rows} <= {"pass", "fail", "inconclusive"}


STATUSES: dict[str, tuple[tuple[int, ...], str, str]] = {
    "slo_failed_at_min": (
        (64,), " at 64 concurrent requests, over the 500 ms limit.", "",
    ),
    "not_reached": (
        (1, 4), "Holds at least 4 concurrent requests, the highest level tried: p95 TTFT ",
        "Raise --max-users to find the knee.",
    ),
    "inconclusive": (
        (4, 64), "Inconclusive: the measurements do not determine the knee: failed at 64.",
        "Still needed: a level that clearly passes. Try a longer --budget.",
    ),
    "holds": (
        (4, 64), " under 50 ms. No failing level nearby: the next one fails at 64; best estimate ",
        "The knee's interval is 1,500% wide; 5% was asked for.",
    ),
    "interrupted": (
        (4, 64), "Interrupted. Holds 4 concurrent requests: p95 TTFT ",
        " and 2 levels were measured.",
    ),
    "invalid": ((4,), "Result invalid: do not use these figures.", ""),
    "target_failed": ((4,), "The server failed under load", ""),
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
def test_each_ending_has_its_sentence(status: str, tmp_path: Path) -> None:
    """What the search ended with is the headline, and what to do next is said."""
    levels, headline, advice = STATUSES[status]
    # A level fails after six lifetimes.
    seconds = 3 if status in ("inconclusive", "holds") else 1
    made = make(tmp_path / "run", seconds=seconds, levels=levels, status=status)
    told = report(tmp_path / "run", made)
    text = (tmp_path / "run" / names.REPORT_MD).read_text()
    assert headline in told.headline
    assert f"**{told.headline}**" in text
    assert advice in text


def test_a_found_knee_has_its_sentence(folder: Path) -> None:
    """The same of the knee that all here share."""
    text = (folder / names.REPORT_MD).read_text()
    assert "Fails at 52; best estimate 51 (95% interval 50 to 51)." in text.partition("\n\n")[0]
    assert "Try next: raise --processes." in text


def test_a_simulated_server_is_named_first(tmp_path: Path) -> None:
    """In the terminal and in Markdown; the badge has it too."""
    result = make(tmp_path / "run", seconds=1, levels=(4,), status="invalid")
    assert result is not None
    target = Target(model="m", simulated=True, gpu="h100")
    told = report(tmp_path / "run", replace(result, target=target))
    first = "Simulated: m on h100, no real server."
    written = (tmp_path / "run" / names.REPORT_MD).read_text()
    assert told.text.splitlines()[0] == first
    assert written.splitlines()[0] == first
    page = (tmp_path / "run" / names.REPORT_HTML).read_text()
    assert "simulated m on h100" in page.partition("<h1>")[0]


def test_a_ttft_that_cannot_be_told() -> None:
    """Where most answers came all at once it is no figure, in tables, in lines and in tiles."""
    run = run_without_records()
    ttft = Latency(n=50, p95=302.7, p95_ci95=(300, 310))
    knee = Knee(holds=4, measured_at_users=4, p95s_ms={"ttft_p95_ms": 302.7})
    for share, shown in ((0.98, UNKNOWN), (0.5, "303 (300 to 310)")):
        level = Level(
            0, 4, decision=Decision.passed, latencies={"ttft_ms": ttft}, came_at_once=share
        )
        facts = ReportData(run, Result(status=Status.not_reached, levels=(level,), knee=knee))
        assert level_rows(facts)[0]["p95 TTFT, ms"] == shown
        assert ("p95 TTFT" in [tile["name"] for tile in tiles(facts)]) == (share == 0.5)
        assert not any("p95 TTFT" in line for line in limitations(facts))  # it was observed
        told = [line for line in build_answer(facts).sentences if "all at once" in line]
        assert bool(told) == (share == 0.98)
        for line in told:
            assert "At 4 concurrent requests, 98% of the answers came all at" in line


@pytest.mark.parametrize(
    ("tokens_per_event", "is_told"),
    [((1.9, 2.0), True), ((1.0, 2.0), False), ((1.0, 1.2), False), ((nan, nan), False)],
)
def test_events_of_several_tokens(tokens_per_event: tuple[float, ...], *, is_told: bool) -> None:
    """Said where even the lightest load has them; a server that falls behind merges some, too."""
    run = run_without_records()
    per_token = {"itl_per_token_ms": Latency(n=50, p95=16.4, p95_ci95=(15.2, 17.0))}
    levels = tuple(
        Level(i, 4 * (i + 1), decision=Decision.passed, latencies=per_token, tokens_per_event=mean)
        for i, mean in enumerate(tokens_per_event)
    )
    knee = Knee(holds=4, measured_at_users=4)
    facts = ReportData(run, Result(status=Status.not_reached, levels=levels, knee=knee))
    got = [line for line in build_answer(facts).sentences if "more than one token" in line]
    want = (
        "At every level events carried more than one token on average, and ITL is the time "
        "between events: at 8 concurrent requests there were 2.00 tokens in an event, and a token "
        "took 16.4 ms (15.2 to 17.0) at p95."
    )
    assert got == ([want] if is_told else [])


@pytest.mark.parametrize(
    ("failed", "want", "note"),
    [
        (None, "Best estimate 46 (95%: at least 26).", "95% CI: at least 26"),
        (60, "Best estimate 46 (95% interval 26 to 59).", "95% CI: 26 to 59"),
    ],
)
def test_an_estimate_without_an_upper_end(failed: int | None, want: str, note: str) -> None:
    """Where no level failed: the most users that were allowed are no measured end."""
    run = run_without_records()
    highest = failed or 52
    levels = (Level(0, 26), Level(1, highest))
    knee = Knee(estimate=46, fails_by=failed, ci95=(26, failed - 1 if failed else 2048))
    slos = (SloResult("itl_p95=50ms", Verdict.inconclusive),)
    result = Result(status=Status.inconclusive, slos=slos, levels=levels, knee=knee)
    facts = ReportData(run, result)
    assert want in build_answer(facts).headline
    [tile] = [tile for tile in tiles(facts) if tile["name"] == "Best estimate"]
    assert tile["note"] == note


@pytest.mark.parametrize(
    ("unit", "rate_per_s", "want"),
    [
        ("concurrent request", 0.0, "The knee is a number of concurrent requests: each user sends"),
        ("session", 0.0, "The knee is a number of sessions: each session sends its next request"),
        ("request/s", 20.0, ""),  # arrivals are independent there
    ],
)
def test_what_a_knee_counts(unit: str, rate_per_s: float, want: str) -> None:
    """The report's limitations say who sends when, where users wait for their answers."""
    run = run_without_records()
    level = Level(0, 4, decision=Decision.held, rate_per_s=rate_per_s, outcomes={"ok": 50})
    facts = ReportData(run, Result(status=Status.found, unit=unit, levels=(level,)))
    said = [line for line in limitations(facts) if line.startswith("The knee is")]
    assert [line[: len(want)] for line in said] == ([want] if want else [])


def test_each_slo_has_its_figure() -> None:
    """`report --slo e2e_p95=1s` says what p95 e2e was, also beside p95 TTFT and ITL."""
    run: Any = SimpleNamespace(info={"config": {}}, table=(), server=[1], gpu=[1], some=[])
    e2e = Latency(n=50, p95=812.0, p99=911.0)
    ttft = Latency(n=50, p95=20.0)
    level = Level(
        0,
        4,
        decision=Decision.held,
        latencies={"e2e_ms": e2e, "ttft_ms": ttft},
        outcomes={"ok": 50},
    )
    slos = tuple(SloResult(slo, Verdict.met) for slo in ("e2e_p99=1s", "ttft_p95=1s"))
    facts = ReportData(run, Result(command="run", status=Status.met, levels=(level,), slos=slos))
    [said] = [line for line in build_answer(facts).sentences if "4 concurrent" in line]
    assert said.count("p95 TTFT 20.0 ms") == 1
    assert said.count("p99 e2e 911 ms") == 1


@pytest.mark.parametrize(
    ("outcomes", "want"),
    [
        ("+++---", "The last good answer ended 2.5 s after the load began; all 3 requests that"),
        ("+++--", ""),  # too few
        ("++---+", ""),  # it came back
        ("---", "None of the 3 requests that ended was answered well."),
        ("", ""),
    ],
)
def test_when_a_server_died(outcomes: str, want: str) -> None:
    """Its last good answer, where all that ended later failed."""
    kinds = {"+": Outcome.ok, "-": Outcome.connect}
    records = []
    for n, sign in enumerate(outcomes):
        sent_ms = 1000 * n
        records.append(record(n, sent_ms, [sent_ms + 500], outcome=kinds[sign]))
    run: Any = SimpleNamespace(table=RecordTable.from_records(records))
    said = silent_sentences(ReportData(run, Result(command="run")))
    assert len(said) == bool(want)
    assert "".join(said).startswith(want)


def torn(path: Path) -> None:
    """Records, steps and samples cut in their last entry, as a full stop of the machine would."""
    make(path, seconds=1, levels=(2, 4), status="")
    for name in (names.records(1), names.LEVELS, names.SERVER):
        file = path / name
        file.write_bytes(file.read_bytes()[:-5])


BROKEN = {
    "run.json only": (begin, "Interrupted before anything was measured.", 0),
    "no step ended": (
        lambda path: make(path, seconds=1, levels=(), status=""),
        "Interrupted before anything was measured.",
        0,
    ),
    "killed in the third step": (
        lambda path: make(path, seconds=1, levels=(2, 4), status=""),
        "and 2 levels were measured",
        0,
    ),
    "torn files": (torn, "and 1 level were measured", 2),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_left_is_reported(case: str, tmp_path: Path) -> None:
    """Whatever a run left behind makes a report, and what was lost is said in it."""
    write, headline, lost = BROKEN[case]
    path = tmp_path / "run"
    write(path)
    write_results(path)
    told = report(path)
    text = (path / names.REPORT_MD).read_text()
    assert headline in told.headline
    assert text.count("Lost: ") == lost
    assert (path / names.LEVELS_CSV).read_text().startswith(COLUMNS[:-1])


def test_other_tools_stand_beside_ours(folder: Path, tmp_path: Path, command_here: Command) -> None:
    """`report --compat` shows the knee's level on the terminal and in both reports."""
    path = copytree(folder, tmp_path / "run")
    out = command_here("report", str(path), "--compat", "vllm-bench,aiperf").stdout
    told = load(path / names.RESULT)["compat"]
    assert list(told) == ["vllm-bench", "aiperf"]
    assert [level["users"] for level in told["aiperf"]["levels"]] == sorted(set(LEVELS))
    text = (path / names.REPORT_MD).read_text()
    page = (path / names.REPORT_HTML).read_text()
    for title in ("Beside vllm bench serve 0.32.0: ", "Beside AIPerf 0.13.0: "):
        assert out.count(title) == 1
        assert text.count(title) == 1
        assert page.count(title) == 1
    for row in ("Inter Chunk Latency p50, ms", "the mean of each request, not its gaps"):
        assert row in out
        assert row in text
        assert row in page
    command_here("report", str(path))  # the run had not asked for it
    assert load(path / names.RESULT)["compat"] is None


@pytest.mark.parametrize(
    ("value", "want"),
    [(383.795, "383.8"), (48.3634, "48.36"), (1041.2, "1,041"), (0.01234, "0.01234"), (0, "0.000")],
)
def test_four_digits(value: float, want: str) -> None:
    """Tools are compared more closely than steps."""
    assert tool_number(value) == want


def test_hostile_text_breaks_no_table(tmp_path: Path) -> None:
    """A cell stays a cell and a line a line, whatever servers call themselves or answer."""
    make(tmp_path / "run", seconds=1, levels=(2, 4), said=HOSTILE, fail_above=4)
    report(tmp_path / "run")
    lines = (tmp_path / "run" / names.REPORT_MD).read_text().splitlines()
    assert [line.count("|") for line in lines[-4:]] == [8] * 4
    levels = (tmp_path / "run" / names.LEVELS_CSV).read_text()
    rows = list(csv.reader(levels.splitlines()))
    assert [len(row) for row in rows] == [len(rows[0])] * 3
    assert rows[2][6] == "invalid: " + one_line(HOSTILE)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("ttft_p95=500ms (398 to 432)", "ttft_p95=500ms (398 to 432)"),
        ("a|b\r\n<b>&amp;", r"a\|b \<b\>\&amp;"),
        ("[x](http://y) __z__ *q* `r`", r"\[x\](http://y) \_\_z\_\_ \*q\* \`r\`"),
        ("# no heading\u2028- no list", r"\# no heading - no list"),
    ],
)
def test_text_in_markdown(text: str, want: str) -> None:
    """What Markdown would read as markup is escaped, the rest left as it is."""
    assert escape_markdown(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [("too few", "Too few."), ("p95 TTFT: few", "p95 TTFT: few."), ("Why? ", "Why?")],
)
def test_sentence(text: str, want: str) -> None:
    """A capital and a full stop, but `p95` is a name."""
    assert as_sentence(text) == want


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        ("NVIDIA H200", {"MFU": "10.0%", "MBU": "25.0%"}),  # 98.9 of 989 TFLOP/s, 1.2 of 4.8 TB/s
        ("NVIDIA A100-SXM4-80GB", {"MFU": "31.7%", "MBU": "58.9%"}),
        ("NVIDIA L40S", {"MFU": "27.3%", "MBU": "138.9%"}),
        ("Some other GPU", {}),  # no peak is known
        ("", {}),
    ],
)
def test_measured_flops_and_bytes(gpu: str, want: dict[str, str]) -> None:
    """What vLLM's --enable-mfu-metrics estimates, over the data sheet's peaks."""
    levels = (
        Level(0, 8, server=ServerFigures(flops_per_s=98.9e12, memory_bytes_per_s=1.2e12)),
        Level(1, 16),  # the server was restarted without it
    )
    gpus = [{"name": gpu}] if gpu else []
    run: Any = SimpleNamespace(info={"gpu": {"gpus": gpus}})
    rows = level_rows(ReportData(run, Result(levels=levels)))
    extra = ("TFLOP/s", "Memory GB/s", "MFU", "MBU")
    told, silent = ({head: row[head] for head in extra if head in row} for row in rows)
    assert told == {"TFLOP/s": "98.9", "Memory GB/s": "1,200"} | want
    assert set(silent.values()) == {UNKNOWN}


def test_a_server_that_reports_nothing_further_has_no_further_columns() -> None:
    """Zero preemptions and rejections are no news."""
    figures = ServerFigures(preemptions_per_request=0, admission_rejections=0)
    run: Any = SimpleNamespace(info={})
    level = Level(0, 8, server=figures)
    (row,) = level_rows(ReportData(run, Result(levels=(level,))))
    assert not {"Preemptions per request", "Rejected at admission", "TFLOP/s", "MFU"} & set(row)


def test_the_levels_have_two_tables(folder: Path, found: tuple[Path, Result]) -> None:
    """The first fits on a page, the second has what is left; each figure is in one of them."""
    facts = ReportData(read_run(folder), found[1])
    every = level_rows(facts)
    main = main_level_rows(facts)
    further = further_level_rows(facts)
    assert list(main[0]) == [
        "#", "Users", "Purpose", "Result", "p95 TTFT, ms", "p95 ITL, ms", "Tokens/s", "n", "Failed",
        "Seconds", "Why",
    ]  # fmt: skip
    assert {*main[0], *further[0]} == {*every[0]}
    assert {*main[0]} & {*further[0]} == {"#", "Users"}
    words = [(row["Purpose"], row["Result"]) for row in main]
    assert words[0] == ("ramping up", "passing so far")
    assert words[6] == ("ramping up", "fail")
    assert words[-1][0] == "repeating a level"


def test_given_levels_have_no_purpose() -> None:
    """A column that says the same of every level is left out."""
    level = Level(
        0, 4, decision=Decision.held, latencies={"ttft_ms": Latency(), "itl_ms": Latency()}
    )
    run = SimpleNamespace(info={})
    facts = ReportData(run, Result(command="run", levels=(level,)))  # type: ignore[arg-type]
    assert {"Purpose", "Why"} & {*main_level_rows(facts)[0]} == set()


def test_a_drill_has_its_expectations_in_a_table(tmp_path: Path) -> None:
    """What was expected, what came of it and when; its levels have the names of the phases."""
    phases = "".join(f'[[phase]]\nname = "{name}"\n' for name in ("before", "after"))
    (tmp_path / names.DRILL).write_text(phases)
    levels = tuple(
        Level(i, 0, rate_per_s=5, latencies={"ttft_ms": Latency(), "itl_ms": Latency()})
        for i in range(2)
    )
    gates = (
        Gate("ttft_p95=500ms in before", Verdict.met, "0.0% of 235", 25.0),
        Gate("lost 0", Verdict.missed, "3 requests without a record"),
    )
    run = SimpleNamespace(info={}, path=tmp_path)
    result = Result(command="drill", levels=levels, gates=gates)
    facts = ReportData(run, result)  # type: ignore[arg-type]
    assert [tuple(row.values()) for row in expectation_rows(facts)] == [
        ("true", "ttft_p95=500ms in before", "25.0 s", "0.0% of 235"),
        ("false", "lost 0", "", "3 requests without a record"),
    ]
    assert [row["Phase"] for row in main_level_rows(facts)] == ["before", "after"]


def test_a_page_says_each_thing_once(found: tuple[Path, Result], folder: Path) -> None:
    """What tiles and sections have is in the text alone."""
    facts = ReportData(read_run(folder), found[1])
    answer = build_answer(facts)
    left_out = [line for line in answer.sentences if line not in answer.on_page]
    begins = [line.split(":")[0] for line in left_out]
    assert begins[:2] == ["Bottleneck", "Try next"]
    assert begins[-1] == f"At {facts.measured_at}"
    assert [line for line in answer.on_page if "p95 ITL" in line] == []
    assert len(answer.on_page) + len(left_out) == len(answer.sentences)
