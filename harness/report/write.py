"""The report formats of a run folder, each from the report data."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

from harness.core.states import Verdict
from harness.core.typed_json import to_json
from harness.errors import EXIT_OK, one_line
from harness.metrics.numbers import escape_markdown
from harness.metrics.result import Bottleneck, Level, Result
from harness.records import names
from harness.records.folder_writer import RunFolder
from harness.records.json_files import flat
from harness.report import sweep, tables
from harness.report.answer import Answer, build_answer, slo_sentence
from harness.report.bounds import bounds_chart, bounds_sentence
from harness.report.curves import curve_charts, knee_charts
from harness.report.distributions import distribution_charts, turn_chart, turn_rows
from harness.report.positions import HOW_TO_READ, position_chart, position_note, position_rows
from harness.report.report_data import ReportData, as_mapping
from harness.report.small_print import configuration_rows, instrument_rows, limitations, target_text
from harness.report.templates import render
from harness.report.timeline import timeline_chart, waterfall_chart

if TYPE_CHECKING:
    from harness.metrics.token_gaps import WindowGaps
    from harness.records.folder_reader import Run

MARKDOWN_COLUMNS: Final[tuple[str, ...]] = (
    "Users", "Sessions", "Rate, 1/s", "In flight", "Result", "n",
    "p95 TTFT, ms", "p95 ITL, ms", "Tokens/s", "Waiting",
)  # fmt: skip
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
CSV_COLUMNS: Final = (
    *FIRST_COLUMNS, "rate_per_s", "in_flight", "seconds", "purpose", "decision", "n_failed",
    "goodput_per_s", "ttft_ms.n", "ttft_ms.p50", "ttft_ms.p95", "ttft_ms.p95_ci95_lo",
    "ttft_ms.p95_ci95_hi", "ttft_ms.p99", "itl_ms.p50", "itl_ms.p95", "itl_ms.p95_ci95_lo",
    "itl_ms.p95_ci95_hi", "itl_ms.p99", "tpot_ms.p95", "output_tok_s", "tps.p5", "e2e_ms.p50",
    "e2e_ms.p99", "came_at_once", "drift", "skew", "ttft_split.queue_ms", "ttft_split.prefill_ms",
    "server.running_mean", "server.waiting_mean", "server.kv_usage_mean", "server.preemptions",
    "client.loop_lag_max_ms",
)  # fmt: skip
# in FIRST_COLUMNS
REPEATED_FIELDS: Final = ("users", "reason", "slos", "output_tokens_per_s", "requests_per_s")


def markdown(facts: ReportData, found: Answer) -> str:
    """Short enough for a pull request comment; it includes any damage of the folder."""
    rows = [
        {name: row[name] for name in MARKDOWN_COLUMNS if name in row}
        for row in tables.level_rows(facts)
    ]
    lost = [f"Lost: {text}." for text in facts.result.damage]
    lines = [f"Simulated: {escape_markdown(found.simulated)}.", ""] if found.simulated else []
    lines += [f"**{escape_markdown(found.headline)}**"]
    if found.sentences or lost:
        lines += ["", *map(escape_markdown, [*found.sentences, *lost])]
    if rows:
        lines += ["", *tables.markdown(rows, "Result")]
    if said := bounds_sentence(facts):
        lines += ["", escape_markdown(said)]
    if split := tables.ttft_split(facts):
        lines += ["", "<details><summary>Mean TTFT by where it is spent, ms</summary>", ""]
        lines += [*tables.markdown(split, "Exact"), "", tables.ttft_split_note(facts)]
        lines += ["", "</details>"]
    positions = position_rows(facts)
    if len(positions) > 1:  # the first alone compares nothing
        lines += ["", "<details><summary>ITL by token position</summary>", ""]
        lines += tables.markdown(positions)
        if note := position_note(facts):
            lines += ["", note]
        lines += ["", HOW_TO_READ, "", "</details>"]
    each = {"Replica": tables.replica_rows(facts), "Workload": tables.mix_rows(facts)}
    for name, rows in each.items():
        if rows:
            lines += ["", f"<details><summary>{name}s by level</summary>", ""]
            lines += [*tables.markdown(rows, name), "", "</details>"]
    lines += tables.tools_as_markdown(tables.tool_comparisons(facts))
    return "\n".join([*lines, ""])


def as_csv(rows: Iterable[Mapping[str, object]], first: Sequence[str]) -> str:
    """With the columns `first`, then all others; None is empty."""
    rows = list(rows)
    columns = list(dict.fromkeys([*first, *(key for row in rows for key in row)]))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def levels_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The rows of the levels with CSV_COLUMNS alone."""
    return as_csv([{key: row.get(key) for key in CSV_COLUMNS} for row in rows], CSV_COLUMNS)


def level_row(level: Level) -> dict[str, object]:
    """FIRST_COLUMNS, then the rest: `ttft_ms.p90_ci95_lo`, `server.running_mean`, ..."""
    data: dict[str, Any] = to_json(level)
    notes = one_line(f"{level.decision}: {data.get('reason') or ''}").rstrip(": ")
    own = {"concurrency": level.users, "notes": notes}
    figures = {name: sweep.FIGURES[name](level) for name in (*FIRST_COLUMNS[1:-1], "output_tok_s")}
    row: dict[str, object] = to_json(figures | own | {"seconds": level.seconds})
    left_out = (*REPEATED_FIELDS, "replicas", "positions")  # which are tables of their own
    rest = {key: value for key, value in data.items() if key not in left_out}
    for key, value in flat(rest).items():
        row[key] = one_line(value) if isinstance(value, str) else value
    return row


def html(facts: ReportData, answer: Answer) -> str:
    """A self-contained page with the answer first; the template takes its tables from `tables`."""
    command = facts.run.info.get("command")
    return render(
        "report.html.j2",
        facts=facts,
        answer=answer,
        tables=tables,
        verdict=facts.result.bottleneck or Bottleneck(),
        curves=[*curve_charts(facts), *filter(None, [bounds_chart(facts)])],
        knees=knee_charts(facts),
        by="rate" if facts.is_rate else "sessions" if facts.who == "session" else "concurrency",
        distributions=distribution_charts(facts),
        waterfall=waterfall_chart(facts),
        batches=sweep.batch_table(facts),
        turns=turn_rows(facts),
        turn_chart=turn_chart(facts),
        positions=position_rows(facts),
        position_chart=position_chart(facts),
        position_note=position_note(facts),
        position_help=HOW_TO_READ,
        repeats=sweep.WHAT_REPEATS_SHOW,
        timeline=timeline_chart(facts),
        confirmed=any(level.result == "measured" for level in facts.used),
        instrument=instrument_rows(facts),
        at_users=facts.level_text(facts.measured_at, facts.who) if facts.measured_at else "",
        unknown=limitations(facts),
        settings=configuration_rows(facts),
        command=shlex.join(map(str, command if isinstance(command, list) else [])),
        started=str(as_mapping(facts.run.info.get("clock")).get("started", "")),
        target=target_text(facts),
        folder=shlex.quote(str(facts.config.get("folder") or facts.run.path)),
    )


def write_reports(run: Run, result: Result, gaps: WindowGaps) -> Answer:
    """Write every format into the run's folder; the answer."""
    from harness.run.run_frames import write_levels  # noqa: PLC0415 - 0.2 s, and only here

    facts = ReportData(run, result, gaps)
    found = build_answer(facts)
    folder = RunFolder(run.path)
    folder.write(names.REPORT_MD, markdown(facts, found))
    rows = [level_row(level) for level in facts.levels]
    folder.write(names.LEVELS_CSV, levels_csv(rows))
    write_levels(folder, rows)
    folder.write(names.REPORT_HTML, html(facts, found))
    if swept := sweep.concurrency_rows(facts):
        folder.write(names.SWEEP_CSV, as_csv([flat(row) for row in to_json(swept)], FIRST_COLUMNS))
    if batches := sweep.batches(facts):
        folder.write_json(names.BATCHING, batches)
        folder.write(names.BATCHING_MD, sweep.batching_benchmark(facts))
    return found


FAILURE_ELEMENTS: Final = {Verdict.missed: "failure", Verdict.inconclusive: "error"}
TestCase = tuple[str, Verdict, str]  # name, verdict, sentence


def junit(result: Result) -> str:
    """A test case per SLO, one for --max-errors, one for a knee's --at-least and --baseline.

    A missed SLO is a failure, an inconclusive one an error. A run whose exit code is not 0 never
    passes: if no case explains the exit code, the status of the run becomes one.
    """
    results, error = [*result.slos, *filter(None, [result.errors])], result.commonest_error
    cases: list[TestCase] = [(one.slo, one.verdict, slo_sentence(one, error)) for one in results]
    cases += [(gate.name, gate.verdict, gate.sentence) for gate in result.gates]
    if result.exit_code != EXIT_OK and all(found == Verdict.met for _, found, _ in cases):
        left_out = next((level.reason for level in result.levels if not level.usable), "")
        reason = result.invalid_reason or left_out or f"exit code {result.exit_code}"
        cases.append((result.status, Verdict.inconclusive, f"{result.status}: {reason}"))
    kinds = [FAILURE_ELEMENTS.get(found, "") for _, found, _ in cases]
    name, target = f"vllm-harness {result.command}", result.target
    suite = ET.Element(
        "testsuite",
        name=name,
        tests=str(len(cases)),
        failures=str(kinds.count("failure")),
        errors=str(kinds.count("error")),
        time=f"{sum(level.seconds for level in result.levels):.3f}",
    )
    properties = ET.SubElement(suite, "properties")
    metadata = {"url": target.url, "model": target.model, "simulated": target.label}
    for key, value in metadata.items():
        ET.SubElement(properties, "property", name=key, value=one_line(value))
    for (title, _, sentence), kind in zip(cases, kinds, strict=True):
        case = ET.SubElement(suite, "testcase", classname=name.replace(" ", "."), name=title)
        message = {"message": one_line(sentence)} if kind else {}
        ET.SubElement(case, kind or "system-out", message).text = one_line(sentence)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True) + "\n"
