"""REPORTERS: the formats that a run folder is reported in; each is one function of the facts."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Final

from harness.report import waterfall
from harness.report.answer import answer
from harness.report.cells import table_row
from harness.report.compat import as_markdown, beside
from harness.report.facts import gather
from harness.report.page import html
from harness.report.words import in_markdown, one_line
from harness.runfolder import names
from harness.runfolder.jsonfiles import flat
from harness.runfolder.reader import read_run
from harness.runfolder.writer import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.report.answer import Answer
    from harness.report.facts import Facts
    from harness.report.steprow import StepRow

MD_COLUMNS: Final = ("Users", "Decision", "n", "p95 TTFT, ms", "p95 ITL, ms", "Tokens/s", "Waiting")
FIRST: Final = ("concurrency", "mean_e2e_s", "p95_e2e_s", "qps", "tok_s", "gpu_util_pct", "notes")
# elsewhere in the row: in FIRST, or in `ttft_ms` and `itl_ms`
SAID: Final = (
    "users", "reason", "output_tokens_per_s", "requests_per_s", "ttft_p95_ms", "itl_p95_ms",
)  # fmt: skip


def markdown(facts: Facts, told: Answer) -> str:
    """Short enough for a comment on a pull request; what the folder lost is said there too."""
    rows = [table_row(step) for step in facts.steps]
    lost = [f"Lost: {text}." for text in facts.run.damage.sentences()]
    lines = [f"**{in_markdown(told.headline)}**"]
    if told.sentences or lost:
        lines += ["", *map(in_markdown, [*told.sentences, *lost])]
    if rows:
        lines += ["", f"| {' | '.join(MD_COLUMNS)} |", f"|{' ---: |' * len(MD_COLUMNS)}"]
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


def csv_row(step: StepRow) -> dict[str, object]:
    """FIRST, then what they do not say, flat: `ttft_ms.p90_ci95_lo`, `server.running_mean`, ..."""
    data = step.data
    e2e = step.latency("e2e", "mean"), step.latency("e2e", "p95")
    row: dict[str, object] = {
        "concurrency": step.users,
        "mean_e2e_s": _seconds(e2e[0].value),
        "p95_e2e_s": _seconds(e2e[1].value),
        "qps": data.get("requests_per_s"),
        "tok_s": data.get("output_tokens_per_s"),
        "gpu_util_pct": data.get("gpu_util_pct"),
        "notes": one_line(f"{step.decision}: {data.get('reason') or ''}").rstrip(": "),
    }
    rest = {key: value for key, value in data.items() if not key.startswith(SAID)}
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


def write_reports(path: Path) -> Answer:
    """Write every format into the folder; the answer."""
    facts = gather(read_run(path))
    told = answer(facts)
    folder = RunFolder(path)
    for name, reporter in REPORTERS.items():
        folder.write(name, reporter(facts, told))
    return told
