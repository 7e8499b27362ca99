"""REPORTERS: the formats that a run folder is reported in; each is one function of the facts."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any, Final

from harness.measure.typed import to_json
from harness.report import waterfall
from harness.report.answer import answer
from harness.report.cells import table_row
from harness.report.compat import as_markdown, beside
from harness.report.facts import Facts
from harness.report.page import html
from harness.report.words import in_markdown, one_line, ruled
from harness.runfolder import names
from harness.runfolder.jsonfiles import flat
from harness.runfolder.writer import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.result import Level, Result
    from harness.report.answer import Answer
    from harness.runfolder.reader import Run

MD_COLUMNS: Final = ("Users", "Result", "n", "p95 TTFT, ms", "p95 ITL, ms", "Tokens/s", "Waiting")
FIRST: Final = ("concurrency", "mean_e2e_s", "p95_e2e_s", "qps", "tok_s", "gpu_util_pct", "notes")
SAID: Final = ("users", "reason", "slos", "output_tokens_per_s", "requests_per_s")  # in FIRST


def markdown(facts: Facts, told: Answer) -> str:
    """Short enough for a comment on a pull request; what the folder lost is said there too."""
    rows = [table_row(facts, step) for step in facts.steps]
    lost = [f"Lost: {text}." for text in facts.run.damage.sentences()]
    lines = [f"Simulated: {in_markdown(told.simulated)}.", ""] if told.simulated else []
    lines += [f"**{in_markdown(told.headline)}**"]
    if told.sentences or lost:
        lines += ["", *map(in_markdown, [*told.sentences, *lost])]
    if rows:
        lines += ["", f"| {' | '.join(MD_COLUMNS)} |", ruled(MD_COLUMNS, "Result")]
        lines += [f"| {' | '.join(in_markdown(row[c]) for c in MD_COLUMNS)} |" for row in rows]
    lines += waterfall.as_markdown(facts)
    lines += as_markdown(beside(facts))
    return "\n".join([*lines, ""])


def steps_csv(facts: Facts, told: Answer) -> str:  # noqa: ARG001 - one signature for all
    """One line per step: the columns of FIRST, then every other figure of the step."""
    rows = [csv_row(step) for step in facts.steps]
    columns = list(dict.fromkeys([*FIRST, *(key for row in rows for key in row)]))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def csv_row(step: Level) -> dict[str, object]:
    """FIRST, then what they do not say, flat: `ttft_ms.p90_ci95_lo`, `server.running_mean`, ..."""
    data: dict[str, Any] = to_json(step)
    e2e = step.e2e_ms
    row: dict[str, object] = {
        "concurrency": step.users,
        "mean_e2e_s": _seconds(e2e.mean),
        "p95_e2e_s": _seconds(e2e.p95),
        "qps": data.get("requests_per_s"),
        "tok_s": data.get("output_tokens_per_s"),
        "gpu_util_pct": step.gpu.util_pct_mean,
        "notes": one_line(f"{step.decision}: {data.get('reason') or ''}").rstrip(": "),
    }
    rest = {key: value for key, value in data.items() if key not in SAID}
    for key, value in flat(rest).items():
        row[key] = one_line(value) if isinstance(value, str) else value
    return row


def _seconds(ms: float) -> object:
    return "" if ms != ms else round(ms / 1e3, 6)  # noqa: PLR0124 - NaN test


REPORTERS: Final[dict[str, Callable[[Facts, Answer], str]]] = {
    names.REPORT_MD: markdown,
    names.STEPS_CSV: steps_csv,
    names.REPORT_HTML: html,
}


def write_reports(run: Run, result: Result) -> Answer:
    """Write every format into the run's folder; the answer."""
    facts = Facts(run, result)
    told = answer(facts)
    folder = RunFolder(run.path)
    for name, reporter in REPORTERS.items():
        folder.write(name, reporter(facts, told))
    return told
