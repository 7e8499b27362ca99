"""REPORTERS: the formats that a run folder is reported in; each is one function of the facts."""

from __future__ import annotations

import csv
import io
import shlex
from typing import TYPE_CHECKING, Any, Final

from harness.errors import one_line
from harness.measure.result import Bottleneck
from harness.measure.typed import to_json
from harness.report import tables
from harness.report.answer import answer
from harness.report.curves import curves
from harness.report.distributions import distributions
from harness.report.facts import Facts, mapping
from harness.report.notes import instrument, settings, target, unknown
from harness.report.say import count, in_markdown, sentence
from harness.report.timeline import timeline
from harness.report.waterfall import waterfall
from harness.runfolder import names
from harness.runfolder.jsonfiles import flat
from harness.runfolder.writer import RunFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.gaps import WindowGaps
    from harness.measure.result import Level, Result
    from harness.report.answer import Answer
    from harness.runfolder.reader import Run

MD_COLUMNS: Final = ("Users", "Result", "n", "p95 TTFT, ms", "p95 ITL, ms", "Tokens/s", "Waiting")
FIRST: Final = ("concurrency", "mean_e2e_s", "p95_e2e_s", "qps", "tok_s", "gpu_util_pct", "notes")
SAID: Final = ("users", "reason", "slos", "output_tokens_per_s", "requests_per_s")  # in FIRST


def markdown(facts: Facts, told: Answer) -> str:
    """Short enough for a comment on a pull request; what the folder lost is said there too."""
    rows = [{name: row[name] for name in MD_COLUMNS} for row in tables.levels(facts)]
    lost = [f"Lost: {text}." for text in facts.run.damage.sentences()]
    lines = [f"Simulated: {in_markdown(told.simulated)}.", ""] if told.simulated else []
    lines += [f"**{in_markdown(told.headline)}**"]
    if told.sentences or lost:
        lines += ["", *map(in_markdown, [*told.sentences, *lost])]
    if rows:
        lines += ["", *tables.markdown(rows, "Result")]
    if split := tables.ttft_split(facts):
        lines += ["", "<details><summary>Mean TTFT by where it is spent, ms</summary>", ""]
        lines += [*tables.markdown(split, "Exact"), "", tables.split_in_words(facts)]
        lines += ["", "</details>"]
    lines += tables.tools_as_markdown(tables.beside(facts))
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


def html(facts: Facts, answer: Answer) -> str:
    """One self-contained page, the answer first."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only here

    environment = Environment(
        loader=PackageLoader("harness.report"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["sentence"] = sentence
    command = facts.run.info.get("command")
    return environment.get_template("report.html.j2").render(
        title=f"vllm-harness: {answer.headline}",
        answer=answer,
        cards=tables.cards(facts),
        curves=curves(facts),
        distributions=distributions(facts),
        waterfall=waterfall(facts),
        split=tables.ttft_split(facts),
        buckets=tables.ttft_buckets(facts),
        split_words=tables.split_in_words(facts),
        traced=tables.ttft_traced(facts),
        timeline=timeline(facts),
        verdict=facts.result.bottleneck or Bottleneck(),
        searched=facts.searched,
        knee=facts.knee.estimate is not None,
        simulated=facts.result.target.label,
        levels=tables.levels(facts),
        beside=tables.beside(facts),
        instrument=instrument(facts),
        quantiles=tables.quantiles(facts),
        at_users=count(facts.measured_at, "user") if facts.measured_at else "",
        clients=tables.clients(facts),
        unknown=unknown(facts),
        settings=settings(facts),
        command=shlex.join(map(str, command if isinstance(command, list) else [])),
        started=str(mapping(facts.run.info.get("clock")).get("started", "")),
        target=target(facts),
        folder=shlex.quote(str(facts.config.get("folder") or facts.run.path)),
    )


REPORTERS: Final[dict[str, Callable[[Facts, Answer], str]]] = {
    names.REPORT_MD: markdown,
    names.STEPS_CSV: steps_csv,
    names.REPORT_HTML: html,
}


def write_reports(run: Run, result: Result, gaps: WindowGaps) -> Answer:
    """Write every format into the run's folder; the answer."""
    facts = Facts(run, result, gaps)
    told = answer(facts)
    folder = RunFolder(run.path)
    for name, reporter in REPORTERS.items():
        folder.write(name, reporter(facts, told))
    return told
