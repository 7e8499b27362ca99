"""The report formats of a run folder, each from the report data."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from xml.etree import ElementTree as ET

from harness.charts.embed import page_parts
from harness.core.extras import has_extra
from harness.core.load import UNITS
from harness.core.states import Verdict
from harness.core.typed_json import to_json
from harness.errors import EXIT_OK, one_line
from harness.metrics.metrics import HEADLINES, LATENCIES
from harness.metrics.numbers import escape_markdown
from harness.metrics.result import Bottleneck, Level, Result
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import flat
from harness.report import sweep, tables
from harness.report.answer import Answer, build_answer, slo_sentence
from harness.report.bounds import bounds_chart, bounds_sentence
from harness.report.curves import around_knee, curve_charts, knee_charts
from harness.report.distributions import distribution_charts, turn_chart, turn_rows
from harness.report.positions import HOW_TO_READ, position_chart, position_note, position_rows
from harness.report.report_data import ReportData
from harness.report.small_print import (
    configuration_rows,
    instrument_rows,
    limitations,
    started_text,
    target_text,
)
from harness.report.templates import render
from harness.report.timeline import timeline_chart
from harness.report.waterfall import waterfall_chart

if TYPE_CHECKING:
    from harness.metrics.token_gaps import WindowGaps
    from harness.records.folder_reader import Run

MARKDOWN_COLUMNS: Final[tuple[str, ...]] = (
    *dict.fromkeys(unit.title for unit in UNITS),
    "In flight",
    "Result",
    "n",
    *(f"p95 {name}, ms" for name in HEADLINES.values()),
    "Tokens/s",
    "Waiting",
)
FIRST_COLUMNS: Final = (
    "concurrency",
    "mean_e2e_s",
    "p95_e2e_s",
    "qps",
    "tok_s",
    "gpu_util_pct",
    "notes",
)
# What people look for in a spreadsheet; levels.parquet has all figures.
CSV_QUANTILES: Final = ("p50", "p95", "p95_ci95_lo", "p95_ci95_hi", "p99")
CSV_COLUMNS: Final = (
    *FIRST_COLUMNS, "rate_per_s", "in_flight", "seconds", "purpose", "decision", "n_failed",
    "goodput_per_s", "ttft_ms.n",
    *(f"{LATENCIES[key].field}.{quantile}" for key in HEADLINES for quantile in CSV_QUANTILES),
    "tpot_ms.p95", "output_tok_s", "tps.p5", "e2e_ms.p50", "e2e_ms.p99", "came_at_once",
    "drift", "skew", "ttft_split.queue_ms", "ttft_split.prefill_ms", "server.running_mean",
    "server.waiting_mean", "server.kv_usage_mean", "server.preemptions", "client.loop_lag_max_ms",
)  # fmt: skip
# in FIRST_COLUMNS
REPEATED_FIELDS: Final = ("users", "reason", "slos", "output_tokens_per_s", "requests_per_s")
LEFT_OUT_FIELDS: Final = (*REPEATED_FIELDS, "replicas", "positions")  # the last two: own tables


def markdown(facts: ReportData, answer: Answer) -> str:
    """Short enough for a pull request comment; it includes any damage of the folder."""
    lines = []
    if answer.simulated:
        lines += [f"Simulated: {escape_markdown(answer.simulated)}.", ""]
    lines.append(f"**{escape_markdown(answer.headline)}**")
    lost = [f"Lost: {text}." for text in facts.result.damage]
    if answer.sentences or lost:
        lines += ["", *map(escape_markdown, [*answer.sentences, *lost])]
    if rows := _markdown_level_rows(facts):
        lines += ["", *tables.markdown(rows, "Result")]
    if bounds := bounds_sentence(facts):
        lines += ["", escape_markdown(bounds)]
    if split := tables.ttft_split(facts):
        body = [*tables.markdown(split, "Exact"), "", tables.ttft_split_note(facts)]
        lines += _folded("Mean TTFT by where it is spent, ms", body)
    lines += _markdown_positions(facts)
    if replicas := tables.replica_rows(facts):
        lines += _folded("Replicas by level", tables.markdown(replicas, "Replica"))
    if mix := tables.mix_rows(facts):
        lines += _folded("Workloads by level", tables.markdown(mix, "Workload"))
    if by_name := tables.name_rows(facts):
        lines += _folded("Requests by name and level", tables.markdown(by_name, "Name"))
    lines += tables.tools_as_markdown(tables.tool_comparisons(facts))
    lines.append("")
    return "\n".join(lines)


def _markdown_level_rows(facts: ReportData) -> list[tables.Row]:
    rows = []
    for level in tables.level_rows(facts):
        row = {name: level[name] for name in MARKDOWN_COLUMNS if name in level}
        rows.append(row)
    return rows


def _markdown_positions(facts: ReportData) -> list[str]:
    rows = position_rows(facts)
    if len(rows) < 2:  # noqa: PLR2004 - the first alone compares nothing
        return []
    body = tables.markdown(rows)
    if note := position_note(facts):
        body += ["", note]
    return _folded("ITL by token position", [*body, "", HOW_TO_READ])


def _folded(title: str, body: Sequence[str]) -> list[str]:
    """Lines of a section that opens when its title is clicked."""
    return ["", f"<details><summary>{title}</summary>", "", *body, "", "</details>"]


def as_csv(rows: Iterable[Mapping[str, object]], first: Sequence[str]) -> str:
    """With the columns `first`, then all others; None is empty."""
    rows = list(rows)
    names_of_rows = [key for row in rows for key in row]
    columns = list(dict.fromkeys([*first, *names_of_rows]))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def levels_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of the levels with CSV_COLUMNS alone."""
    shown = [{key: row.get(key) for key in CSV_COLUMNS} for row in rows]
    return as_csv(shown, CSV_COLUMNS)


def level_row(level: Level) -> dict[str, object]:
    """FIRST_COLUMNS, then the rest: `ttft_ms.p90_ci95_lo`, `server.running_mean`, ..."""
    data: dict[str, Any] = to_json(level)
    first: dict[str, object] = {}
    for name in (*FIRST_COLUMNS[1:-1], "output_tok_s"):
        first[name] = sweep.FIGURES[name](level)
    first["concurrency"] = level.users
    first["notes"] = one_line(f"{level.decision}: {data.get('reason') or ''}").rstrip(": ")
    first["seconds"] = level.seconds
    row: dict[str, object] = to_json(first)
    rest = {key: value for key, value in data.items() if key not in LEFT_OUT_FIELDS}
    for key, value in flat(rest).items():
        row[key] = one_line(value) if isinstance(value, str) else value
    return row


def html(facts: ReportData, answer: Answer) -> str:
    """A self-contained page with the answer first; the template takes its tables from `tables`."""
    page: dict[str, Any] = {"facts": facts, "answer": answer, "tables": tables}
    page["verdict"] = facts.result.bottleneck or Bottleneck()
    page["batches"] = sweep.batch_table(facts)
    page["repeats"] = sweep.WHAT_REPEATS_SHOW
    page |= _charts(facts)
    page |= _positions(facts)
    page["turns"] = turn_rows(facts)
    page["turn_chart"] = turn_chart(facts)
    page |= page_parts()
    page["confirmed"] = any(level.result == "measured" for level in facts.used)
    page["infinite"] = any(
        isinf(level.latency(key).p95) for level in facts.used for key in HEADLINES
    )
    page["throughput_note"] = tables.throughput_note(facts)
    page["at_users"] = ""
    if facts.measured_at:
        page["at_users"] = facts.unit.short(facts.measured_at)
    page["instrument"] = instrument_rows(facts)
    page["unknown"] = limitations(facts)
    page |= _what_ran(facts)
    return render("report.html.j2", **page)


def _charts(facts: ReportData) -> dict[str, Any]:
    """What the page draws, by the template's names; "" or [] for what is not there."""
    curves = curve_charts(facts)
    if bounds := bounds_chart(facts):
        curves = [*curves, bounds]
    return {
        "around_knee": around_knee(facts),
        "curves": curves,
        "by": _curve_variable(facts),
        "knees": knee_charts(facts),
        "distributions": distribution_charts(facts),
        "waterfall": waterfall_chart(facts),
        "timeline": timeline_chart(facts),
    }


def _positions(facts: ReportData) -> dict[str, Any]:
    return {
        "positions": position_rows(facts),
        "position_chart": position_chart(facts),
        "position_note": position_note(facts),
        "position_help": HOW_TO_READ,
    }


def _what_ran(facts: ReportData) -> dict[str, Any]:
    """The target, the configuration, and how to run it again."""
    info = facts.run.info
    command = info.get("command")
    arguments = command if isinstance(command, list) else []
    folder = facts.config.get("folder") or facts.run.path
    return {
        "target": target_text(facts),
        "started": started_text(facts.run.info),
        "settings": configuration_rows(facts),
        "command": shlex.join(map(str, arguments)),
        "folder": shlex.quote(str(folder)),
    }


def _curve_variable(facts: ReportData) -> str:
    """What throughput and latency are drawn over, as in a heading."""
    unit = facts.unit
    return "concurrency" if unit.short_one == "user" else unit.plotted


def write_reports(run: Run, result: Result, gaps: WindowGaps) -> Answer:
    """Write every format into the run's folder; the answer."""
    facts = ReportData(run, result, gaps)
    answer = build_answer(facts)
    folder = RunFolder(run.path)
    folder.write(names.REPORT_MD, markdown(facts, answer))
    rows = [level_row(level) for level in facts.levels]
    folder.write(names.LEVELS_CSV, levels_csv(rows))
    _levels_parquet(folder, rows)
    folder.write(names.REPORT_HTML, html(facts, answer))
    if by_load := sweep.concurrency_rows(facts):
        flat_rows = [flat(row) for row in to_json(by_load)]
        folder.write(names.SWEEP_CSV, as_csv(flat_rows, FIRST_COLUMNS))
    if batches := sweep.batches(facts):
        folder.write_json(names.BATCHING, batches)
        folder.write(names.BATCHING_MD, sweep.batching_benchmark(facts))
    return answer


def _levels_parquet(folder: RunFolder, rows: Sequence[Mapping[str, object]]) -> None:
    if has_extra("parquet"):
        from harness.run.run_frames import write_levels  # noqa: PLC0415 - 0.2 s, and an extra

        write_levels(folder, rows)


FAILURE_ELEMENTS: Final = {Verdict.missed: "failure", Verdict.inconclusive: "error"}


class TestCase(NamedTuple):
    """What JUnit calls so: an SLO or another expectation of the run."""

    name: str
    verdict: Verdict
    sentence: str

    @property
    def kind(self) -> str:
        """The element that says so; "" where it is met."""
        return FAILURE_ELEMENTS.get(self.verdict, "")


def junit(result: Result) -> str:
    """A test case per SLO, one for --max-errors, one for a knee's --at-least and --baseline.

    A missed SLO is a failure, an inconclusive one an error. A run whose exit code is not 0 never
    passes: if no case explains the exit code, the status of the run becomes one.
    """
    cases = _test_cases(result)
    if result.exit_code != EXIT_OK and all(case.verdict == Verdict.met for case in cases):
        cases.append(_status_case(result))
    name = f"vllm-harness {result.command}"
    kinds = [case.kind for case in cases]
    seconds = sum(level.seconds for level in result.levels)
    suite = ET.Element("testsuite", name=name, tests=str(len(cases)))
    suite.set("failures", str(kinds.count("failure")))
    suite.set("errors", str(kinds.count("error")))
    suite.set("time", f"{seconds:.3f}")
    _add_properties(suite, result)
    for case in cases:
        _add_case(suite, name.replace(" ", "."), case)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True) + "\n"


def _test_cases(result: Result) -> list[TestCase]:
    """The SLOs, the limit on errors, and the gates."""
    judged = list(result.slos)
    if result.errors is not None:
        judged.append(result.errors)
    cases = []
    for slo in judged:
        sentence = slo_sentence(slo, result.commonest_error, result.load_unit)
        cases.append(TestCase(slo.slo, slo.verdict, sentence))
    cases += [TestCase(gate.name, gate.verdict, gate.sentence) for gate in result.gates]
    return cases


def _status_case(result: Result) -> TestCase:
    """Why the exit code is not 0."""
    left_out = next((level.reason for level in result.levels if not level.usable), "")
    reason = result.invalid_reason or left_out or f"exit code {result.exit_code}"
    return TestCase(result.status, Verdict.inconclusive, f"{result.status}: {reason}")


def _add_properties(suite: ET.Element, result: Result) -> None:
    properties = ET.SubElement(suite, "properties")
    target = result.target
    metadata = {"url": target.url, "model": target.model, "simulated": target.label}
    for key, value in metadata.items():
        ET.SubElement(properties, "property", name=key, value=one_line(value))


def _add_case(suite: ET.Element, classname: str, case: TestCase) -> None:
    element = ET.SubElement(suite, "testcase", classname=classname, name=case.name)
    sentence = one_line(case.sentence)
    if case.kind:
        ET.SubElement(element, case.kind, message=sentence).text = sentence
    else:
        ET.SubElement(element, "system-out").text = sentence
