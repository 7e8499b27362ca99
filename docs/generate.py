"""Write the pages of docs/ that are made from tables in the code: `make docs`."""  # noqa: INP001 - a script

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harness.drive import arguments
from harness.engine.bottlenecks import RESOURCES
from harness.export.dashboards.panels import PANELS
from harness.export.exported import BUCKETS_OF, EXPORTED
from harness.export.live import PHASES
from harness.export.recording import RECORDED
from harness.export.rules import routing_file, rule_file
from harness.export.watching import WATCHED
from harness.measure.compat import COMPAT, INSTANTS, LINEAR, PER
from harness.measure.gpuside import REASON_LABELS
from harness.measure.metrics import METRICS
from harness.measure.records import Outcome
from harness.measure.slo import LATENCIES
from harness.measure.states import Decision, Purpose
from harness.measure.verdict import RULES, UNDECIDED
from harness.study import form
from harness.units import MS
from harness.wire.vllm_series import SERIES

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

HERE = Path(__file__).parent


def metrics() -> str:
    """docs/metrics.md, from METRICS."""
    rows = [
        "# Metrics",
        "",
        "Made from `METRICS` in `harness/measure/metrics.py` by `make docs`; a test compares them.",
        "Times are integer nanoseconds inside, milliseconds in JSON, reports and on the terminal,",
        "and seconds for Prometheus. How failures, open requests, quantiles and intervals are",
        "treated stands in [design.md](design.md), under Definitions.",
        "",
        "SLOs are limits on latencies, for example `ttft_p95=500ms`: any quantile from p50 to p99,",
        "or p999, which can also be written p99.9.",
        "",
        "| In JSON | In SLOs | What | Unit | Prometheus |",
        "|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        name = f"{metric.key}_ms" if metric.unit == "ms" else metric.key
        slo = f"`{metric.key}`" if metric.key in LATENCIES else ""
        rows.append(
            f"| `{name}` | {slo} | {metric.title} | {metric.unit} | `{metric.prometheus}` |"
        )
    for metric in METRICS.values():
        rows += ["", f"## {metric.title}", "", metric.definition]
    return "\n".join(rows) + "\n"


def compat() -> str:
    """docs/compat.md, from COMPAT."""
    rows = [
        "# Other tools' figures beside ours",
        "",
        "Made from `COMPAT` in `harness/measure/compat.py` by `make docs`; a test compares them.",
        "",
        "`--compat TOOL` on `knee`, `run`, `sweep` and `report` prints beside our figures those",
        "that another tool's definitions give of the same requests, in that tool's words, so that",
        "a disagreement of two tools can be explained:",
        "",
        "    vllm-harness run http://127.0.0.1:8000 --users 2 --requests 60 --compat vllm-bench",
        "    vllm-harness report reports/run-20261121-101500 --compat guidellm,aiperf,genai-bench",
        "",
        "Both columns look at the requests that were sent in the level's measured window (gaps",
        "and throughput: that ended in it); how many came before it, which the tool would count",
        "too, is said. Ours is as in [metrics.md](metrics.md): failed requests are infinitely",
        "slow, and a quantile needs enough samples. Every tool here leaves failed requests out and",
        "takes any percentile of any number of values. The reader is ours in both columns: what a",
        "tool's own event loop adds to its figures is not in them. `result.json` has the rows",
        "under `compat`.",
        "",
        "A tool divides its throughput by the time of its whole run, in which its first requests",
        "start and its last ones end on a server that is not full: with C users and N requests its",
        "figure is lower by up to about C / N. Here both columns divide by the measured window.",
    ]
    for tool in COMPAT.values():
        rows += ["", f"## {tool.title} {tool.version}", "", f"`--compat {tool.name}`. {tool.note}"]
        rule = "numpy's default, between two values" if tool.quantile == LINEAR else STEPS
        rows += ["", f"Percentiles: {rule} ([source]({tool.quantile_source})).", ""]
        rows += ["| Theirs | Beside our | From | To | Per | How it differs |"]
        rows += ["|---|---|---|---|---|---|"]
        for d in tool.definitions:
            per = PER[d.per] + (", weighted by its tokens" if d.by_tokens else "")
            why = d.why or "as ours"
            rows.append(f"| {d.name} | `{d.key}` | {d.start} | {d.end} | {per} | {why} |")
        rows += [""]
        rows += [f"- **{d.name}**: {d.says} ([source]({d.source}))" for d in tool.definitions]
    rows += ["", "## The instants", ""]
    rows += [f"- *{name}*: {text}" for name, text in INSTANTS.items()]
    return "\n".join(rows) + "\n"


STEPS = "the smallest value up to which this share of the weight lies, never between two"


def vllm_series() -> str:
    """docs/vllm-series.md, from SERIES."""
    rows = [
        "# vLLM's figures, and what we call them",
        "",
        "Made from `SERIES` in `harness/wire/vllm_series.py` by `make docs`; a test compares them.",
        "The newest spelling that a server gives counts. Several engines (label `engine`) and API",
        "servers become one figure: *sum*, *mean*, *max* or *min* over them. Histograms keep their",
        "buckets in `server.jsonl`; engines' buckets add up. What a server does not say is missing",
        "from the step's figures, and the report says so.",
        "",
        "| Ours | Kind | vLLM's | vLLM's version or pull request | Engines |",
        "|---|---|---|---|---|",
    ]
    for series in SERIES:
        label = f"{{{series.where[0]}={series.where[1]}}}" if series.where[0] else ""
        over = {"fsum": "sum"}.get(series.over.__name__, series.over.__name__)
        if series.by:
            over = f"sum, by `{series.by}`"
        for spelling in series.spellings:
            until = f"before {spelling.until}" if spelling.until else ""
            when = ", ".join(filter(None, [spelling.since and f"from {spelling.since}", until]))
            name = f"`{spelling.name}{label}`"
            rows.append(f"| `{series.key}` | {series.kind} | {name} | {when} | {over} |")
    return "\n".join(rows) + "\n"


def exporter() -> str:
    """docs/exporter.md: its own words, then tables from EXPORTED."""
    rows = [(HERE / "exporter.md").read_text().partition(TABLES)[0].rstrip()]
    for where, exported in EXPORTED.items():
        rows += ["", f"{TABLES}{where}", "", "| Metric | Kind | Labels | What |"]
        rows += ["|---|---|---|---|"]
        for row in exported:
            labels = ", ".join(f"`{label}`" for label in row.labels)
            rows.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    rows += ["", "## Label values", "", "| Label | Values |", "|---|---|"]
    for label, values in LABEL_VALUES.items():
        rows.append(f"| `{label}` | {values} |")
    rows += ["", "## Buckets, in seconds", ""]
    for key, bounds in BUCKETS_OF.items():
        finite = bounds[:-1]
        told = ", ".join(f"{bound:g}" for bound in finite)
        rows.append(f"- `harness_{key}_seconds` ({len(finite)} and +Inf): {told}")
    return "\n".join(rows) + "\n"


TABLES = "## Metrics: "  # from here on docs/exporter.md is generated; what stands above is not
LABEL_VALUES = {
    "decision": ", ".join(Decision),
    "gpu": "its index",
    "kind": "knee, run, sweep, locust",
    "model": "as the server calls it",
    "outcome": ", ".join(o.value for o in Outcome if o is not Outcome.open),
    "part": "queue, prefill, rest",
    "phase": ", ".join(PHASES),
    "process": "main, worker N, decoder N",
    "purpose": ", ".join(Purpose),
    "reason": ", ".join(REASON_LABELS.values()),
    "run": "its folder's name; empty where there is none",
    "slo": "metric and quantile, for example ttft_p95",
    "source": "given, read, inferred",
    "target": "HOST:PORT",
    "workload": "of `--workload`",
}
TTFT_NS, ITL_NS = 500 * MS, 50 * MS  # the limits of the README's examples


def routing() -> str:
    """prometheus/rules/harness_routing.yml."""
    return routing_file(TTFT_NS, ITL_NS)


def recorded() -> str:
    """prometheus/rules/harness_recorded.yml."""
    return rule_file(
        RECORDED,
        [
            "Worked out ahead, over the last minute; what each is: docs/stack.md.",
            "Made by `make docs` from `RECORDED` in harness/export/recording.py.",
        ],
    )


RULES_HERE = "## Variables"  # from here on docs/stack.md is generated; what is above is not


def stack() -> str:
    """docs/stack.md: its own words, then .env.example and tables from RECORDED and WATCHED."""
    rows = [(HERE / "stack.md").read_text().partition(RULES_HERE)[0].rstrip(), "", RULES_HERE]
    rows += ["", "`.env.example`, of which `make up` makes `.env`:", ""]
    example = (HERE.parent / ".env.example").read_text().splitlines()
    rows += [f"    {line}".rstrip() for line in example]
    rows += [
        "",
        "## Recorded series",
        "",
        "Over the last minute, by `job` and `instance`, the server's",
    ]
    rows += ["also by `model_name`."]
    rows += ["", "| Series | What |", "|---|---|"]
    rows += [f"| `{r.name}` | {r.what} |" for group in RECORDED.values() for r in group]
    rows += ["", "## Alerts on the stack itself", "", "| Alert | When | For |", "|---|---|---|"]
    for alert in WATCHED:
        expr = alert.expr.replace("|", "\\|")
        rows.append(f"| `{alert.name}` | `{expr}` | {alert.wait} |")
    return "\n".join(rows) + "\n"


def watched() -> str:
    """prometheus/rules/harness_watched.yml."""
    return rule_file(
        {"harness_watched": WATCHED},
        [
            "Whether what is seen is whole and may be believed.",
            "Made by `make docs` from `WATCHED` in harness/export/watching.py.",
        ],
    )


def verdict() -> str:
    """docs/verdict.md, from RULES, RESOURCES and the tally of tests/test_study_verdicts.py."""
    found = json.loads((HERE.parent / "tests/data/verdicts.json").read_text())
    cases, right = found["cases"], found["right"]
    rows = [
        "# What stops it there",
        "",
        "Made from `RULES` in `harness/measure/verdict.py`, `RESOURCES` in",
        "`harness/engine/bottlenecks.py` and `tests/data/verdicts.json` by `make docs`; a test",
        "compares them.",
        "",
        VERDICT_HOW,
        "| Named | When |",
        "|---|---|",
    ]
    rows += [f"| {name} | {_first_line(rule.__doc__)} |" for name, rule in RULES.items()]
    rows += ["", VERDICT_TRUTH, "| Resource | Doubled, it is |", "|---|---|"]
    rows += [f"| {name} | {resource.what} |" for name, resource in RESOURCES.items()]
    sure = f"{found['right_and_sure'] / right:.0%} with a confidence of 0.8 or more"
    rows += [
        "",
        f"Right in **{right} of {cases}** ({right / cases:.1%}); of these {sure}.",
        f"Wrong with such a confidence: {len(found['wrong_and_sure'])}.",
        "Rows are the resource that moves the knee most:",
        "",
    ]
    names = [*RESOURCES, UNDECIDED]
    rows += ["| Truth, named | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for true, named in found["table"].items():
        cells = [str(named.get(name, "")) for name in names]
        rows.append(f"| {true} | " + " | ".join(cells) + " |")
    return "\n".join([*rows, "", VERDICT_LIMITS])


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


VERDICT_HOW = """\
Each rule sees the figures of one level, the longest hold of the first above the knee, as they
stand in `result.json`, and answers with a confidence and its evidence. The highest confidence wins;
below 0.5 the verdict is *undecided*, which is a legal answer. `result.json` holds under
`bottleneck` the name, the confidence, the window, the evidence, every other cause with why it is
ruled out, and what to try next.

From the records: gaps between tokens with and without somebody's prompt in the same engine step
(a prompt's first token arrives with the token that it delayed), how evenly requests were sent,
and how many events were made on time but sent late. From the server: what runs and waits, KV
cache, preemptions, means of queue, prefill, decode and TTFT. From the host: CPU of the API
servers and of the engine cores, where they run on this machine; elsewhere that of the engine cores
from `vllm-harness exporter` beside them (`--gpu-metrics http://SERVER:9400`). From the GPU: how
busy it is, its clocks, and how much of its busy time is spent at memory, compared with the lowest
level that was held: absolute values of that figure differ from GPU to GPU. Without a GPU's figures
the engine's own process cannot be told from slow decoding.
"""
VERDICT_TRUTH = """\
## How often it is right

In simulated time, on 200 engine configurations drawn by seed: slots, KV cache, prefill, decoding,
interference, API server or engine process are made short in turn. The rules read what `/metrics`,
the host's process table and NVML would show. The truth is the resource whose doubling moves the
simulated knee most; where a second one moves it over half as far (in the logarithm), that name or
*undecided* is right too. Only configurations count whose knee is at 4 to 300 users and moves by
22 % or more. The rules' constants were chosen while looking at seeds below 4000; the 200 are the
first that count from there on. An engine's process costs CPU for each step and each sequence, in
which the GPU waits; it may wait for the GPU in a loop, so that its CPU is a core all the time. An
API server is a queue: CPU for each request before the engine sees it, and for each event; what
waits is merged, as vLLM does.
"""
VERDICT_LIMITS = """\
The truths are rough (levels of some hundred requests, interpolated between two at most 20 %
apart), made by `tests/simulated_verdict.py truths`. Client, network, throttling and bursts are
not simulated: table tests pin them. A simulated GPU reads memory or computes, whichever takes
longer; a real one is less clean. Without the GPU's figures the same rules were right in 89 % of
these configurations, surely wrong in none: what they miss is the engine's own process.
"""


def dashboards() -> str:
    """docs/dashboards.md, from PANELS."""
    rows = ["# Dashboards", "", DASHBOARDS_HOW]
    for name, page in PANELS.items():
        picture = f"![{page.title} over that run](pictures/dashboard-{name}.png)"
        rows += [f"## {page.title}", "", page.says, "", picture, ""]
        rows += ["| Panel | Shows | Reading it | What to do |", "|---|---|---|---|"]
        for panel in (panel for row in page.rows for panel in row.panels):
            cells = (panel.title, panel.shows, panel.read, panel.do)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        rows += [""]
        if page.notes:
            rows += ["Annotations on its graphs: " + "; ".join(
                f"*{note.name}* ({note.colour})" for note in page.notes) + ".", ""]  # fmt: skip
    return "\n".join(rows).rstrip() + "\n"


DASHBOARDS_HOW = """\
Made from `PANELS` in `harness/export/dashboards/` by `make docs`; a test compares them. So are
`grafana/dashboards/*.json`, by `grafana/generate.py` with Grafana's own typed builders.

Grafana finds them by provisioning: mount `grafana/provisioning` at `/etc/grafana/provisioning`
and `grafana/dashboards` at `/var/lib/grafana/dashboards`, both read-only. To use them in a
Grafana that you have, import the JSON files and choose your Prometheus under **Data source**.
They need what [exporter.md](exporter.md) describes: vLLM's own `/metrics`, the exporter on the
server's machine, and a run with `--metrics-port`, each scraped by Prometheus. Without a run,
*Server* and *GPU* show a production server; *Knee*, *Latency* and *Client health* need a run's
series.

The variables above each dashboard:

- **Data source**: a Prometheus; the provisioned one by default.
- **Model**: vLLM's `model_name`.
- **Target**: Prometheus' `instance`. The exporter's `target` is HOST:PORT as given on its command
  line, so give it the name that Prometheus scrapes, or leave Target at All.
- **Run**: the name of a run folder.
- **Window**: the range of rates and quantiles, 1 minute by default, which suits a scrape interval
  of 15 s. Choose 5 s or 10 s where Prometheus scrapes every second or two, as the Docker stack
  does: the steps of a search last only seconds. Set `timeInterval` of the data source to the
  scrape interval.

Quantiles are interpolated by Prometheus within a bucket and are off by at most a third; the
report has the exact ones.

No Grafana server was run to make or test any of this. Tested were: every query of every panel,
annotation and variable by a real Prometheus over a real run, of the embedded engine and of vLLM
on a CPU, each answer compared with a recomputation from the stored samples, and these with the
run folder; the GPU panels over recorded readings of an H200; and the JSON against the types of
`@grafana/schema`. The pictures show those answers, drawn by `tests/dashboard_pictures.py` where
Grafana would place the panels. They are not screenshots. The run: an embedded engine with
`max_num_seqs` 8 and 112 KV blocks, for 80 seconds, with a window of 5 s.
"""


class Options:
    """Takes what an argument parser takes, as rows of a table."""

    def __init__(self, rows: list[str], where: str) -> None:
        """`where`: whether Locust's form shows them."""
        self.rows, self.where = rows, where

    def add_argument_group(self, _title: str) -> Options:
        """Locust's form knows nothing of groups."""
        return Options(self.rows, "")

    def add_argument(self, name: str, **how: Any) -> None:
        """One row."""
        choices = ", ".join(f"`{one}`" for one in how.get("choices", ()))
        default = how.get("default") or ("0" if how.get("type") is int else "")
        shown = f"`{default}`" if default else ""
        text = how["help"] + (f". One of {choices}" if choices else "")
        self.rows.append(f"| `{name}` | {shown} | {self.where} | {text} |")


def options_of(add: Callable[[ArgumentParser], None]) -> list[str]:
    """The table of what `add` adds to Locust's parser."""
    rows = ["", "| Option | Default | In Locust's form | What |", "|---|---|---|---|"]
    add(cast("ArgumentParser", Options(rows, "yes")))
    return rows


def locust() -> str:
    """docs/locust.md: its own words, then the options that Locust's `--help` does not show."""
    rows = [(HERE / "locust.md").read_text().partition(OPTIONS)[0].rstrip(), "", OPTIONS]
    rows += ["", "With every locustfile:", *options_of(arguments.add_arguments)]
    rows += ["", "With `knee.py`, also:", *options_of(form.add_arguments)]
    return "\n".join(rows) + "\n"


OPTIONS = "## Options"  # from here on docs/locust.md is generated; what stands above is not
PAGES = {
    "locust.md": locust,
    "metrics.md": metrics,
    "compat.md": compat,
    "vllm-series.md": vllm_series,
    "exporter.md": exporter,
    "stack.md": stack,
    "verdict.md": verdict,
    "../prometheus/rules/harness_recorded.yml": recorded,
    "dashboards.md": dashboards,
    "../prometheus/rules/harness_routing.yml": routing,
    "../prometheus/rules/harness_watched.yml": watched,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
