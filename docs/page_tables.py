"""The tables of docs/ that are made from the code, each as the text of a block."""  # noqa: INP001 - a script

from __future__ import annotations

import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kept_observations import cases
from panels import PANELS
from planted_bottlenecks import RESOURCES
from recording import RECORDED
from simulated_verdict import answers, calibration, known, tally
from stored_statistics import stored
from watching import WATCHED

from harness.compat.definitions import COMPAT, INSTANTS, LINEAR_RULE, PER_WORDS
from harness.core.run_kinds import RUN_KINDS
from harness.core.states import Decision, Purpose, Status, Verdict
from harness.core.typed_json import json_schema
from harness.diagnosis.bottleneck import RULES, UNDECIDED
from harness.export.metric_definitions import METRIC_DEFINITIONS
from harness.export.run_series import PHASES
from harness.locust import arguments
from harness.locust.locust_rate import LocustRateStudy
from harness.metrics.level_figures import Change, Source
from harness.metrics.metrics import HISTOGRAMS, LATENCIES, METRICS, SLO_METRICS
from harness.metrics.result import Result
from harness.records.folder_reader import NUMBER_FIELDS
from harness.records.record_tables import TableBuilder
from harness.records.request_record import Outcome
from harness.records.samples import GpuSample, ServerSample
from harness.records.series import series_of
from harness.run import form
from harness.run import run_frames as frames
from harness.run.results import EXIT_OF
from harness.run.run_frames import Levels
from harness.server.api_versions import STREAMS_SINCE
from harness.wire.gpu_series import REASON_LABELS
from harness.wire.vllm_series import NOT_READ, SERIES

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterable, Sequence
    from enum import StrEnum

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent


def table(heads: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    rule = "|---" * len(heads) + "|"
    return "\n".join([_row(heads), rule, *map(_row, rows)])


def _row(cells: Sequence[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def in_code(text: str) -> str:
    return f"`{text}`" if text else ""


def each_in_code(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


# docs/metrics.md


def metrics() -> str:
    rows = []
    for metric in METRICS.values():
        is_in_json = getattr(metric, "slo", True) or getattr(metric, "scheduled", False)
        rows.append(
            (
                in_code(metric.field if is_in_json else ""),
                in_code(metric.key if metric.key in SLO_METRICS else ""),
                metric.title,
                metric.unit,
                in_code(metric.prometheus or ""),
            )
        )
    return table(("In JSON", "In SLOs", "What", "Unit", "Prometheus"), rows)


def metric_definitions() -> str:
    return "\n\n".join(f"## {metric.title}\n\n{metric.definition}" for metric in METRICS.values())


# docs/compat.md

STEPS: Final = "the smallest value up to which this share of the weight lies, never between two"


def tools() -> str:
    return "\n\n".join(map(_tool, COMPAT.values()))


def _tool(tool: Any) -> str:
    quantile = "numpy's default, between two values" if tool.quantile == LINEAR_RULE else STEPS
    rows = []
    for d in tool.definitions:
        per = PER_WORDS[d.per] + (", weighted by its tokens" if d.by_tokens else "")
        rows.append((d.name, in_code(d.key), d.start, d.end, per, d.why or "as ours"))
    parts = [
        f"## {tool.title} {tool.version}",
        f"`--compat {tool.name}`. {tool.note}",
        f"Percentiles: {quantile} ([source]({tool.quantile_source})).",
        table(("Theirs", "Ours", "From", "To", "Per", "How it differs"), rows),
        "\n".join(f"- **{d.name}**: {d.says} ([source]({d.source}))" for d in tool.definitions),
    ]
    return "\n\n".join(parts)


def instants() -> str:
    return "\n".join(f"- *{name}*: {text}" for name, text in INSTANTS.items())


# docs/vllm-series.md


def streaming_apis() -> str:
    return table(("API", "vLLM"), ((f"`--api {api}`", v) for api, v in STREAMS_SINCE.items()))


def vllm_series() -> str:
    rows = []
    for series in SERIES:
        over = series.over.__name__.removeprefix("f")  # fsum, fmean
        if series.by:
            over = f"sum, by `{series.by}`"
        label, value = series.where
        selector = f"{{{label}={value}}}" if label else ""
        for spelling in series.spellings:
            name = f"`{spelling.name}{selector}`"
            rows.append((in_code(series.key), series.kind, name, _versions(spelling), over))
    return table(("Ours", "Kind", "vLLM's", "vLLM's version or pull request", "Engines"), rows)


def _versions(spelling: Any) -> str:
    since = f"from {spelling.since}" if spelling.since else ""
    until = f"before {spelling.until}" if spelling.until else ""
    return ", ".join(filter(None, (since, until)))


def series_not_read() -> str:
    rows = ((each_in_code(names.split(", ")), why) for names, why in NOT_READ.items())
    return table(("vLLM's", "Why not"), rows)


# docs/exporter.md

LABEL_VALUES: Final = {
    "decision": ", ".join(Decision),
    "gpu": "its index",
    "kind": ", ".join(RUN_KINDS),
    "model": "the server's name for it",
    "outcome": ", ".join(outcome for outcome in Outcome if outcome is not Outcome.open),
    "part": "queue, prefill, rest",
    "phase": ", ".join(PHASES),
    "process": "main, worker N, decoder N",
    "purpose": ", ".join(Purpose),
    "reason": ", ".join(REASON_LABELS.values()),
    "run": "the name of its folder; empty if there is none",
    "slo": "metric and quantile, for example ttft_p95",
    "source": "given, read, inferred",
    "target": "HOST:PORT",
    "workload": "as in `--workload`",
}


def exported() -> str:
    parts = []
    for where, definitions in METRIC_DEFINITIONS.items():
        rows = ((in_code(d.name), d.kind, each_in_code(d.labels), d.help) for d in definitions)
        parts.append(f"## Metrics: {where}")
        parts.append(table(("Metric", "Kind", "Labels", "What"), rows))
    return "\n\n".join(parts)


def label_values() -> str:
    return table(("Label", "Values"), ((in_code(x), values) for x, values in LABEL_VALUES.items()))


def buckets() -> str:
    lines = []
    for key, metric in HISTOGRAMS.items():
        finite = metric.buckets_s[:-1]
        bounds = ", ".join(f"{bound:g}" for bound in finite)
        lines.append(f"- `harness_{key}_seconds` ({len(finite)} and +Inf): {bounds}")
    return "\n".join(lines)


# docs/stack.md


def env_example() -> str:
    lines = (ROOT / ".env.example").read_text().splitlines()
    return "\n".join(f"    {line}".rstrip() for line in lines)


def recorded_series() -> str:
    rows = [(in_code(rule.name), rule.what) for group in RECORDED.values() for rule in group]
    return table(("Series", "What"), rows)


def stack_alerts() -> str:
    rows = [(in_code(alert.name), in_code(escaped(alert.expr)), alert.wait) for alert in WATCHED]
    return table(("Alert", "When", "For"), rows)


# docs/verdict.md

SURE: Final = 0.8


def rules() -> str:
    rows = ((name, _first_line(rule.__doc__)) for name, rule in RULES.items())
    return table(("Named", "When"), rows)


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


def resources() -> str:
    rows = ((name, resource.what) for name, resource in RESOURCES.items())
    return table(("Resource", "Doubled, it is"), rows)


def _judged() -> dict[int, Any]:
    """What the rules named, by seed."""
    return {seed: verdict for (seed, _), verdict in stored("verdicts").items()}


def verdict_tally() -> str:
    found = tally(known(), _judged())
    n = found["cases"]
    right = found["right"]
    sure = found["right_and_sure"] / right
    named = [*RESOURCES, UNDECIDED]
    rows = [
        (truth, *(by_name.get(name, "") for name in named))
        for truth, by_name in found["table"].items()
    ]
    text = (
        f"The rules were right in **{right} of {n}** ({right / n:.1%}), and in {sure:.0%} of\n"
        f"these with a confidence of {SURE} or more. With such a confidence they were wrong in "
        f"{len(found['wrong_and_sure'])}.\n"
        "Rows are the resource that moves the knee most:"
    )
    return f"{text}\n\n{table(('Truth, named', *named), rows)}"


def verdict_calibration() -> str:
    rows = []
    for stated, n, right, low, high in calibration(known(), _judged()):
        rows.append((f"{stated:.2f}", n, right, f"{right / n:.0%} ({low:.0%} to {high:.0%})"))
    return table(("Stated, mean", "Cases", "Right", "Share right (95% interval)"), rows)


def verdict_misses() -> str:
    truths = known()
    rows = []
    for seed, (name, _, causes) in _judged().items():
        if name in answers(truths[seed]):
            continue
        moved = sorted(truths[seed]["moved"].items(), key=lambda item: -item[1])[:2]
        most = ", ".join(f"{resource} {by:.2f}" for resource, by in moved)
        rows.append((seed, most, _causes(causes.items())))
    return table(("Seed", "Moves the knee most (log)", "Named"), rows)


def real_verdicts() -> str:
    rows = []
    for case in cases():
        named = _causes((cause.name, cause.probability) for cause in case.judge().causes)
        tuned = "yes" if case.chosen_on else "no"
        rows.append((case.source, case.truth or "not verified", named, tuned))
    heads = ("Server", "Moved the knee most", "Named now", "Used to tune the rules")
    return table(heads, rows)


def _causes(causes: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {probability:.2f}" for name, probability in causes)


# docs/dashboards.md

PICTURED: Final = frozenset(
    path.stem.removeprefix("dashboard-") for path in (HERE / "pictures").glob("dashboard-*.png")
)


def dashboards() -> str:
    return "\n\n".join(_dashboard(name, page) for name, page in PANELS.items())


def _dashboard(name: str, page: Any) -> str:
    rows = [
        (escaped(panel.title), escaped(panel.shows), escaped(panel.read), escaped(panel.do))
        for row in page.rows
        for panel in row.panels
    ]
    parts = [f"## {page.title}", page.says]
    if name in PICTURED:
        parts.append(f"![{page.title} over that run](pictures/dashboard-{name}.png)")
    parts.append(table(("Panel", "Shows", "Reading it", "What to do"), rows))
    if page.notes:
        notes = "; ".join(f"*{note.name}* ({note.colour})" for note in page.notes)
        parts.append(f"Annotations on its graphs: {notes}.")
    return "\n\n".join(parts)


# docs/locust.md


class OptionRows:
    """Takes what an argument parser takes, as rows of a table."""

    def __init__(self, rows: list[tuple[str, str, str, str]], in_form: str) -> None:
        self.rows = rows
        self.in_form = in_form

    def add_argument_group(self, _title: str) -> OptionRows:
        """Locust's form knows nothing of groups."""
        return OptionRows(self.rows, "")

    def add_argument(self, name: str, **how: Any) -> None:
        choices = each_in_code(how.get("choices") or ())
        text = how["help"] + (f". One of {choices}" if choices else "")
        default = in_code(str(how.get("default") or ""))
        self.rows.append((in_code(name), default, self.in_form, escaped(text)))


def locust_options(add: Callable[[ArgumentParser], None]) -> str:
    """The table of what `add` adds to Locust's parser."""
    options = OptionRows([], "yes")
    add(cast("ArgumentParser", options))
    return table(("Option", "Default", "In Locust's form", "What"), options.rows)


# docs/run-folder.md and docs/result.md

TIME: Final = "timestamp[ns, tz=UTC]"
TYPES: Final = {
    "int64": "integer",
    "double": "number",
    "string": "text",
    "bool": "true or false",
    TIME: "time",
    "list<item: int64>": "list of integers",
}
SAMPLE_TYPES: Final = {"gpu": "integer", "throttled": "text"}  # the others are numbers
UNITS: Final = {  # by the end of a name, or a part of it before an underscore
    "tokens_per_s": "tokens/s",
    "_mb_per_s": "MB/s",
    "_per_s": "1/s",
    "_mib": "MiB",
    "_mhz": "MHz",
    "_pct": "%",
    "_ms": "ms",
    "_ns": "ns",
    "tokens_total": "tokens",
    "queries_total": "tokens",
    "hits_total": "tokens",
    "tokens": "tokens",
    "_s": "s",
    "_w": "W",
    "_j": "J",
    "_c": "°C",
    "_cores": "cores",
}
COLUMN_HEADS: Final = ("Column", "Type", "Unit", "What")
FAILURES: Final = frozenset(Outcome) - {Outcome.ok, Outcome.open, Outcome.cancelled}


def _unit(name: str) -> str:
    return next((UNITS[part] for part in UNITS if re.search(rf"{part}(_|$)", name)), "")


def _column_texts(frame: str) -> dict[str, str]:
    failures = each_in_code(outcome for outcome in Outcome if outcome in FAILURES)
    purposes = each_in_code(Purpose)
    texts = tomllib.loads((HERE / "columns.toml").read_text())[frame]
    filled = {
        name: text.format(failures=failures, purposes=purposes) for name, text in texts.items()
    }
    return filled | {metric.field: metric.request_text for metric in LATENCIES.values()}


def _frame_columns(frame: str, schema: Any) -> str:
    texts = _column_texts(frame)
    rows = [(in_code(f.name), TYPES[str(f.type)], _unit(f.name), texts[f.name]) for f in schema]
    return table(COLUMN_HEADS, rows)


def request_columns() -> str:
    return _frame_columns(
        "requests", frames.requests_of([TableBuilder().piece()], NO_LEVELS).schema
    )


def token_columns() -> str:
    return _frame_columns(
        "tokens", frames.tokens_of(TableBuilder().piece().table, NO_LEVELS).schema
    )


NO_LEVELS: Final = Levels(HERE / "no such folder")
LEVEL_TYPES: Final = {"level": "integer", "users": "integer", "purpose": "text"}  # the others: time


def level_columns() -> str:
    texts = _column_texts("levels")
    rows = [(in_code(c), LEVEL_TYPES.get(c, "time"), "", texts[c]) for c in frames.LEVELS]
    return table(COLUMN_HEADS, rows)


def server_columns() -> str:
    return _sample_columns(ServerSample, NUMBER_FIELDS)


def gpu_columns() -> str:
    return _sample_columns(GpuSample, frames.READINGS)


def _sample_columns(sample: type, columns: Iterable[str]) -> str:
    """Each with the comment beside its field, or the words of its series."""
    texts = dict(re.findall(r"^ +(\w+): .*  # (.+)$", inspect.getsource(sample), re.MULTILINE))
    texts |= {series.key: series.words for series in series_of(sample)}
    rows = [(in_code("at"), "time", "", "when it was read")]
    for column in columns:
        kind = SAMPLE_TYPES.get(column, "number")
        rows.append((in_code(column), kind, _unit(column), texts[column]))
    return table(COLUMN_HEADS, rows)


EXAMPLE_WIDTH: Final = 90
SLO_RESULT: Final[dict[str, Any]] = {"slo": {}, "verdict": {}, "observed": {}, "users": {}}
EXAMPLE: Final[dict[str, Any]] = {
    "command": {},
    "status": {},
    "exit_code": {},
    "target": {"model": {}, "simulated": {}, "gpu": {}},
    "slos": SLO_RESULT,
    "knee": {"holds": {}, "estimate": {}, "fails_by": {}, "ci95": {}},
    "levels": {
        "users": {},
        "decision": {},
        "reason": {},
        "ttft_ms": {"n": {}, "n_failed": {}, "p95": {}, "p95_ci95": {}},
        "output_tokens_per_s": {},
        "requests_per_s": {},
    },
    "bottleneck": {"bound_by": {}, "confidence": {}},
}


def result_example() -> str:
    """Some fields of the sample, with the one level that its knee was measured at."""
    sample = json.loads((ROOT / "reports/samples/result.json").read_text())
    at_knee = sample["knee"]["measured_at_users"]
    held = [level for level in sample["levels"] if level["users"] == at_knee]
    sample["levels"] = [max(held, key=lambda level: level["ttft_ms"]["n"])]
    lines = _layout(_only(sample, EXAMPLE)).splitlines()
    return "\n".join(f"    {line}" for line in lines)


def _only(whole: Any, wanted: Any) -> Any:
    """The fields of `whole` that `wanted` names."""
    if not wanted:
        return whole
    if isinstance(whole, list):
        return [_only(item, wanted) for item in whole]
    return {key: _only(whole[key], inner) for key, inner in wanted.items()}


def _layout(value: Any, indent: str = "") -> str:
    """JSON, in lines of at most EXAMPLE_WIDTH characters where that can be."""
    text = json.dumps(value)
    if len(indent + text) <= EXAMPLE_WIDTH or not isinstance(value, dict | list):
        return text
    deeper = indent + "  "
    if isinstance(value, list):
        items = [_layout(item, deeper) for item in value]
    else:
        items = [f'"{key}": {_layout(item, deeper)}' for key, item in value.items()]
    inside = ",".join(f"\n{deeper}{item}" for item in items)
    return f"{text[0]}{inside}\n{indent}{text[-1]}"


def result_states() -> str:
    parts = []
    for states in (Status, Decision, Verdict, Purpose, Source, Change):
        parts += [f"### {states.__name__}", str(states.__doc__), _state_table(states)]
    return "\n\n".join(parts)


def _state_table(states: type[StrEnum]) -> str:
    """Each value with the comment beside it."""
    source = inspect.getsource(states)
    meanings = re.findall(r'^ +\w+ = "(\w*)"  # (.+)$', source, re.MULTILINE)
    if states is not Status:
        return table(
            ("Value", "Meaning"), ((in_code(value) or "empty", said) for value, said in meanings)
        )
    rows = [(in_code(value), EXIT_OF[Status(value)], said) for value, said in meanings]
    return table(("Value", "Exit code", "Meaning"), rows)


def result_fields() -> str:
    schema = json_schema(Result)
    objects = {"Result": schema}
    objects |= {name: one for name, one in schema["$defs"].items() if "properties" in one}
    parts = []
    for name, one in objects.items():
        rows = [_field(field, part) for field, part in one["properties"].items()]
        parts += [f"### {name}", one["description"]]
        parts.append(table(("Field", "Type", "Unit", "Meaning"), rows))
    return "\n\n".join(parts)


def _field(name: str, part: dict[str, Any]) -> tuple[str, str, str, str]:
    """The unit is in the name, else at the end of the text."""
    meaning = part["description"]
    unit = _unit(name)
    text, _, last = meaning.rpartition(", ")
    if last in UNITS.values():
        unit = last
        meaning = text
    return in_code(name), _type(part), unit, meaning


def _type(part: dict[str, Any]) -> str:
    """A type of the schema, in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return name if name == "number" else f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(map(_type, part["anyOf"]))
    if "prefixItems" in part:
        return f"[{', '.join(map(_type, part['prefixItems']))}]"
    if "items" in part:
        return f"list of {_type(part['items'])}"
    if values := part.get("additionalProperties"):
        return f"{_type(values)} by name"
    return str(part.get("type", "any"))


# docs/decisions/index.md


def decisions() -> str:
    notes = sorted((HERE / "decisions").glob("0*.md"))
    lines = []
    for path in notes:
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "metrics": metrics,
    "metric definitions": metric_definitions,
    "tools": tools,
    "instants": instants,
    "streaming APIs": streaming_apis,
    "vLLM's series": vllm_series,
    "series not read": series_not_read,
    "exported metrics": exported,
    "label values": label_values,
    "buckets": buckets,
    ".env.example": env_example,
    "recorded series": recorded_series,
    "alerts on the stack": stack_alerts,
    "rules": rules,
    "resources": resources,
    "verdicts on drawn engines": verdict_tally,
    "calibration": verdict_calibration,
    "misses": verdict_misses,
    "verdicts on real servers": real_verdicts,
    "dashboards": dashboards,
    "options of every locustfile": lambda: locust_options(arguments.add_arguments),
    "options of rate.py": lambda: locust_options(LocustRateStudy.add_arguments),
    "options of knee.py": lambda: locust_options(form.add_arguments),
    "columns of requests": request_columns,
    "columns of tokens": token_columns,
    "columns of levels": level_columns,
    "columns of server": server_columns,
    "columns of gpu": gpu_columns,
    "example of a result": result_example,
    "states": result_states,
    "fields": result_fields,
    "decisions": decisions,
}
