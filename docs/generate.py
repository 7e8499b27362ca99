"""Write the pages of docs/ that are generated from tables in the code: `make docs`."""  # noqa: INP001 - a script

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, cast

from harness.capacity.alert_rules import routing_alerts, rule_file
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
from harness.records import names
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
from harness.units import MS
from harness.wire.gpu_series import REASON_LABELS
from harness.wire.vllm_series import NOT_READ, SERIES

sys.path.extend(
    str(Path(__file__).parents[1] / name)
    for name in (".", "docs", "grafana", "prometheus", "tests")
)
from command_page import commands
from kept_observations import cases
from panels import PANELS
from planted_bottlenecks import RESOURCES
from recording import RECORDED
from simulated_knee import known_truths
from simulated_verdict import answers, calibration, known, tally
from stored_statistics import stored
from watching import WATCHED

from lab import duel

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterable
    from enum import StrEnum

HERE = Path(__file__).parent
WIDTH = 130
DUEL_BEGINS = "<!-- `make docs` writes the duel -->"
DUEL_ENDS = "<!-- up to here -->"


def metrics() -> str:
    """docs/metrics.md, from METRICS."""
    rows = [
        "# Metrics",
        "",
        "`make docs` generates this page from `METRICS` in `harness/metrics/metrics.py`.",
        "Times are integer nanoseconds internally, milliseconds in JSON, reports and the terminal,",
        "and seconds for Prometheus. [result.md](result.md) defines failures, quantiles, intervals",
        "and open requests.",
        "",
        "A latency that each request has once (TTFT, TPOT, e2e) is exact. Gaps between tokens are",
        "counted in bins: their quantiles and the ends of their intervals are within 0.1%; their",
        "number, mean and maximum and the share over an SLO's limit are exact.",
        "",
        "An SLO limits a latency, for example `ttft_p95=500ms`: any quantile from p50 to p99, or",
        "p999, which can also be written p99.9. `tps_p5=30` is a lower limit on output speed in",
        "tokens/s, for any quantile from p1 to p50.",
        "",
        "| In JSON | In SLOs | What | Unit | Prometheus |",
        "|---|---|---|---|---|",
    ]
    for metric in METRICS.values():
        named = getattr(metric, "slo", True) or getattr(metric, "scheduled", False)
        name = f"`{metric.field}`" if named else ""
        series = f"`{metric.prometheus}`" if metric.prometheus else ""
        slo = f"`{metric.key}`" if metric.key in SLO_METRICS else ""
        rows.append(f"| {name} | {slo} | {metric.title} | {metric.unit} | {series} |")
    for metric in METRICS.values():
        rows += ["", f"## {metric.title}", "", metric.definition]
    rows += [
        "",
        "## Why some texts have TPOT above ITL",
        "",
        "Here a request's TPOT is the mean of its ITL per token: both divide the time from the",
        "first token to the last by the tokens after the first. So over requests of one length the",
        "two means are equal. Elsewhere TPOT is larger, for one of these reasons:",
        "",
        "- **TTFT is in it**: TPOT is the whole latency over all output tokens there, e2e / n",
        "  (GuideLLM's, for example: [compat.md](compat.md)).",
        "- **A mean beside a median**: most gaps are one short step, and a few are long, because",
        "  the prefill of another request fell into them. The median ITL leaves the few out; TPOT",
        "  has them.",
        "- **A request counts once, whatever its length**: an answer of 10 tokens counts as much",
        "  in TPOT as one of 1,000, but has 9 of their 1,008 gaps. If short answers are slower per",
        "  token, the mean and the p95 of TPOT are higher than those of ITL. The other way round,",
        "  one pause in each answer raises the p95 of ITL and hardly that of TPOT.",
        "- **Gaps of zero**: an event of several tokens is counted there as one gap and further",
        "  gaps of zero, which lower the quantiles of ITL and not those of TPOT.",
        "",
        "Where an event of several tokens is one gap, as in our ITL, it is the other way round:",
        "with four tokens in each event, ITL is four times TPOT.",
    ]
    return "\n".join(rows) + "\n"


def compat() -> str:
    """docs/compat.md, from COMPAT."""
    rows = [
        "# Comparison with other tools",
        "",
        "`make docs` generates this page from `COMPAT` in",
        "`harness/compat/definitions.py` and `definitions.csv` beside it.",
        "",
        "`--compat TOOL` on `knee`, `run`, `sweep` and `report` computes another tool's metrics",
        "from the same requests, under that tool's names, and prints them next to ours, so that a",
        "disagreement between two tools can be explained:",
        "",
        "    vllm-harness run http://127.0.0.1:8000 --users 2 --requests 60 --compat vllm-bench",
        "    vllm-harness report reports/run-20261121-101500 --compat guidellm,xk6-llm",
        "",
        "Both columns use the requests sent in the level's measured window (for gaps and",
        "throughput, those that ended in it). The number of earlier requests, which the tool would",
        "count too, is reported. Our definitions are those of [metrics.md](metrics.md): failed",
        "requests are infinitely slow, and a quantile is an observed value. Every tool here leaves",
        "failed requests out and computes any percentile of any number of values. Both columns use",
        "our timestamps, so the delay of a tool's own event loop is not included. `result.json`",
        "has the rows under `compat`, and under `figures` the tool's with further percentiles.",
        "",
        "A tool divides its throughput by the duration of its whole run, whose first requests",
        "start and whose last ones end on a server that is not full: with C users and N requests",
        "its figure is lower by up to about C / N. Here both divide by the measured window.",
        FILES_FOR_OTHERS.rstrip(),
    ]
    for tool in COMPAT.values():
        rows += ["", f"## {tool.title} {tool.version}", "", f"`--compat {tool.name}`. {tool.note}"]
        rule = "numpy's default, between two values" if tool.quantile == LINEAR_RULE else STEPS
        rows += ["", f"Percentiles: {rule} ([source]({tool.quantile_source})).", ""]
        rows += ["| Theirs | Ours | From | To | Per | How it differs |"]
        rows += ["|---|---|---|---|---|---|"]
        for d in tool.definitions:
            per = PER_WORDS[d.per] + (", weighted by its tokens" if d.by_tokens else "")
            why = d.why or "as ours"
            rows.append(f"| {d.name} | `{d.key}` | {d.start} | {d.end} | {per} | {why} |")
        rows += [""]
        rows += [f"- **{d.name}**: {d.says} ([source]({d.source}))" for d in tool.definitions]
    rows += ["", "## The instants", ""]
    rows += [f"- *{name}*: {text}" for name, text in INSTANTS.items()]
    return "\n".join(rows) + "\n"


FILES_FOR_OTHERS = """
## Files that other tools read

`vllm-harness report DIR --format NAME` also writes each level into the run folder as another tool's
file. The option may be repeated.

| `--format` | File | Whose figures | Read by |
|---|---|---|---|
| `vllm-bench` | the result of `vllm bench serve` 0.32: `vllm-bench-*.json` | \
`--compat vllm-bench` | llm-d-benchmark 0.8 |
| `llm-d` | llm-d's Benchmark Report 0.2: `benchmark_report_v0.2,_*.yaml` | \
`--compat inference-perf` | llm-d-benchmark 0.8 |

The latencies and rates in a file are those in the column *theirs*, never ours under another name.
Ours, with their intervals, and the knee are in a field of their own, `vllm_harness` (for llm-d
below *observability*, the only place where its schema allows other keys). Counts are of the
requests sent in the measured window and rates of those that ended in it, so a rate is not exactly
count / duration. A figure that nothing is known about is null, where `vllm bench serve` writes 0.

`vllm-bench` lacks `max_output_tokens_per_s`, `max_concurrent_requests` and `rtfx`, and the lists of
`--save-detailed`. llm-d's report describes the server as a *generic* component: its *inference
engine* needs numbers of GPUs that a client does not always know.

GuideLLM's report is not written. Its reader (0.8.1, report version 2) refuses one without the times
of GuideLLM's scheduler, its strategy and data loader, and distributions of rates and concurrency,
with a mode and a variance each, which a client without that scheduler could only invent. Its
schema is young, too: GuideLLM 0.6 writes version 1, 0.7 version 2, and 0.8 adds fields to that.
"""
STEPS = "the smallest value up to which this share of the weight lies, never between two"


OLDER_PAGES = "KV tokens unknown with `--api-server-count` above 1"
TRIED = (
    ("0.11.0", "CPU", "chat, completions", f"{OLDER_PAGES}; no split of cached prompt tokens"),
    (
        "0.15.1",
        "CPU",
        "chat, completions, responses, messages",
        f"{OLDER_PAGES}; sleep state, external caches, computed tokens",
    ),
    (
        "0.18.1",
        "CPU",
        "chat, completions, responses, messages",
        f"{OLDER_PAGES}; cached and computed prompt tokens, FLOPs and bytes",
    ),
    ("0.22.1", "CPU", "chat, completions, responses, messages, generate", "who waits for capacity"),
    (
        "0.26.0",
        "CPU, H200",
        "chat, completions, responses, messages, generate",
        "KV tokens in vLLM's own words",
    ),
    (
        "0.32.0",
        "CPU, in each CI run",
        "chat, completions, responses, messages, generate",
        "preemptions of a request, rejections at admission",
    ),
    ("0.32.0 in Rust", "CPU", "as above (not tried one by one)", "no KV tokens, CPU and start"),
)


def _in_code(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def vllm_series() -> str:
    """docs/vllm-series.md, from SERIES."""
    rows = [
        "# vLLM's metrics, and our names for them",
        "",
        "`make docs` generates this page from `SERIES` in `harness/wire/vllm_series.py`.",
        "",
        "The harness uses the newest name that a server exports. Several engines (label `engine`)",
        "and API servers become one value: the *sum*, *mean*, *max* or *min* over them. Histograms",
        "keep their buckets in `server.jsonl`; the buckets of several engines are added. What a",
        "server does not export is missing from the level's metrics, and the report says so.",
        "",
        "vLLM has the counters of speculative decoding only with `--speculative-config`. The",
        "acceptance rate and the mean accepted length are computed from them. A test reads them",
        "from a real vLLM that speculates by n-grams.",
        "",
        "It has FLOPs and bytes, which are its own estimates, only with `--enable-mfu-metrics`:",
        "without it the counters stay 0, and the figures are null. Reports divide them by the data",
        "sheet's peaks of a GPU that is known: MFU and MBU.",
        "",
        "Ray Serve writes the same names as `ray_vllm:` or `ray_vllm_`. On a page of several",
        "models, as routers have it, the lines of `--model` count; a line that is there twice",
        "counts once. A page of several models without `--model` among them has no figures. Behind",
        "a router the size of the KV cache is unknown: vLLM's line of it names no model.",
        "",
        "The front end in Rust (`VLLM_USE_RUST_FRONTEND=1`, read from `vllm-rs` 0.32) writes the",
        "same names, but neither the process's CPU and start, nor `vllm:engine_sleep_state`,",
        "`vllm:cache_config_info` and `vllm:admission_rejections`. A run says so before its load,",
        "and the report under *Limitations*: the size of the KV cache is unknown, a restart shows",
        "only in counters that fall, and the front end's CPU is known only where it runs on",
        "the client's machine.",
        "",
        "## Which version has what",
        "",
        "*Streams*: the API's answers can be measured; an older one is refused before the load,",
        "with the version that is needed. *Figures*: what else differs.",
        "",
        "| vLLM | Tried on | APIs that stream | Figures |",
        "|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in TRIED),
        "",
        f"`--api messages` needs vLLM {STREAMS_SINCE['messages']}, `--api responses`",
        f"{STREAMS_SINCE['responses']}, `--api generate` {STREAMS_SINCE['generate']} (and",
        "`--enable-scale-out` where vLLM has that flag). `make versions` installs CPU builds and",
        "tries each: the APIs, the KV tokens, and a search with 8 slots planted, which has to hold",
        "7 or 8 users, to fail at 9 or 10 and to name the batch slots. A workflow does so weekly.",
        "The CPU build of 0.18.1 does not start without Debian's `libtcmalloc-minimal4`.",
        "",
        "## Series",
        "",
        "The first version is that of vLLM's pull request, or the first of those above whose page",
        "has the series.",
        "",
        "| Ours | Kind | vLLM's | vLLM's version or pull request | Engines |",
        "|---|---|---|---|---|",
    ]
    for series in SERIES:
        label = f"{{{series.where[0]}={series.where[1]}}}" if series.where[0] else ""
        over = series.over.__name__.removeprefix("f")  # fsum, fmean
        if series.by:
            over = f"sum, by `{series.by}`"
        for spelling in series.spellings:
            until = f"before {spelling.until}" if spelling.until else ""
            when = ", ".join(filter(None, [spelling.since and f"from {spelling.since}", until]))
            name = f"`{spelling.name}{label}`"
            rows.append(f"| `{series.key}` | {series.kind} | {name} | {when} | {over} |")
    rows += ["", "## Series that are not read", "", "| vLLM's | Why not |", "|---|---|"]
    rows += [f"| {_in_code(names)} | {why} |" for names, why in NOT_READ.items()]
    return "\n".join(rows) + "\n"


def exporter() -> str:
    """docs/exporter.md: its own words, then tables from METRIC_DEFINITIONS."""
    rows = [(HERE / "exporter.md").read_text().partition(TABLES)[0].rstrip()]
    for where, exported in METRIC_DEFINITIONS.items():
        rows += ["", f"{TABLES}{where}", "", "| Metric | Kind | Labels | What |"]
        rows += ["|---|---|---|---|"]
        for row in exported:
            labels = ", ".join(f"`{label}`" for label in row.labels)
            rows.append(f"| `{row.name}` | {row.kind} | {labels} | {row.help} |")
    rows += ["", "## Label values", "", "| Label | Values |", "|---|---|"]
    for label, values in LABEL_VALUES.items():
        rows.append(f"| `{label}` | {values} |")
    rows += ["", "## Buckets, in seconds", ""]
    for key, metric in HISTOGRAMS.items():
        finite = metric.buckets_s[:-1]
        bounds = ", ".join(f"{bound:g}" for bound in finite)
        rows.append(f"- `harness_{key}_seconds` ({len(finite)} and +Inf): {bounds}")
    return "\n".join(rows) + "\n"


TABLES = "## Metrics: "  # from here on docs/exporter.md is generated; what is above is not
LABEL_VALUES = {
    "decision": ", ".join(Decision),
    "gpu": "its index",
    "kind": ", ".join(RUN_KINDS),
    "model": "the server's name for it",
    "outcome": ", ".join(o.value for o in Outcome if o is not Outcome.open),
    "part": "queue, prefill, rest",
    "phase": ", ".join(PHASES),
    "process": "main, worker N, decoder N",
    "purpose": ", ".join(Purpose),
    "reason": ", ".join(REASON_LABELS.values()),
    "run": "the name of its folder; empty if there is none",
    "slo": "metric and quantile, for example ttft_p95",
    "source": "given, read, inferred",
    "target": "HOST:PORT",
    "workload": "of `--workload`",
}
TTFT_NS, ITL_NS = 500 * MS, 50 * MS  # the limits of the README's examples


def routing() -> str:
    """prometheus/rules/harness_routing.yml."""
    return rule_file(
        {"harness_routing": routing_alerts(TTFT_NS, ITL_NS)},
        [
            "Where to look when p95 TTFT or p95 ITL is over its limit; if both are, both alerts",
            "fire. Generated by `make docs` with the limits of this project's examples. For the",
            "limits and the knee of a run: `vllm-harness rules DIR`.",
        ],
    )


def recorded() -> str:
    """prometheus/rules/harness_recorded.yml."""
    return rule_file(
        RECORDED,
        [
            "Recording rules over the last minute; docs/stack.md describes each.",
            "Generated by `make docs` from `RECORDED` in prometheus/recording.py.",
        ],
    )


RULES_HERE = "## Variables"  # from here on docs/stack.md is generated; what is above is not


def stack() -> str:
    """docs/stack.md: its own words, then .env.example and tables from RECORDED and WATCHED."""
    rows = [(HERE / "stack.md").read_text().partition(RULES_HERE)[0].rstrip(), "", RULES_HERE]
    rows += ["", "`make up` copies `.env.example` to `.env`:", ""]
    example = (HERE.parent / ".env.example").read_text().splitlines()
    rows += [f"    {line}".rstrip() for line in example]
    rows += [
        "",
        "## Recorded series",
        "",
        "All are over the last minute and have the labels `job` and `instance`; the server's also",
        "have `model_name`.",
        "",
        "| Series | What |",
        "|---|---|",
    ]
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
            "Whether the metrics are complete and valid.",
            "Generated by `make docs` from `WATCHED` in prometheus/watching.py.",
        ],
    )


def searches() -> str:
    """lab/results/duel.md, from what `make statistics` has stored."""
    return told_of_searches().page


def told_of_searches() -> duel.Published:
    return duel.published(
        stored("knees"), stored("duel"), stored("duel_continuous"), known_truths()
    )


def how_good() -> str:
    """docs/how-good.md, with a paragraph on the duel between its two comments."""
    before, rest = (HERE / "how-good.md").read_text().split(DUEL_BEGINS)
    _, after = rest.split(DUEL_ENDS)
    told = fill(told_of_searches().headline, WIDTH, break_on_hyphens=False)
    return f"{before}{DUEL_BEGINS}\n\n{told}\n\n{DUEL_ENDS}{after}"


def verdict() -> str:
    """docs/verdict.md, from RULES, RESOURCES and what `make statistics` has stored."""
    truths = known()
    told = {seed: said for (seed, _), said in stored("verdicts").items()}
    found = tally(truths, told)
    n, right = found["cases"], found["right"]
    rows = [
        "# The bottleneck",
        "",
        "`make docs` generates this page from `RULES` in",
        "`harness/diagnosis/bottleneck.py`, `RESOURCES` in `tests/planted_bottlenecks.py`,",
        "`tests/data/statistics/verdicts.json` and `tests/data/observations`.",
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
        f"Right in **{right} of {n}** ({right / n:.1%}); of these {sure}.",
        f"Wrong with such a confidence: {len(found['wrong_and_sure'])}.",
        "Rows are the resource that moves the knee most:",
        "",
    ]
    names = [*RESOURCES, UNDECIDED]
    rows += ["| Truth, named | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for true, named in found["table"].items():
        cells = [str(named.get(name, "")) for name in names]
        rows.append(f"| {true} | " + " | ".join(cells) + " |")
    rows += ["", VERDICT_STATED, "| Stated, mean | Cases | Right | Share right (95% interval) |"]
    rows += ["|---|---|---|---|"]
    for stated, cases_here, fine, low, high in calibration(truths, told):
        share = f"{fine / cases_here:.0%} ({low:.0%} to {high:.0%})"
        rows.append(f"| {stated:.2f} | {cases_here} | {fine} | {share} |")
    rows += ["", "Every miss:", "", "| Seed | Moves the knee most (log) | Said |", "|---|---|---|"]
    for seed, (name, _, causes) in told.items():
        if name not in answers(truths[seed]):
            moved = sorted(truths[seed]["moved"].items(), key=lambda one: -one[1])[:2]
            most = ", ".join(f"{resource} {by:.2f}" for resource, by in moved)
            rows.append(f"| {seed} | {most} | {_causes(causes.items())} |")
    heads = "| Server | Moved the knee most | Named now | Used to tune the rules |"
    rows += ["", VERDICT_REAL, heads]
    rows += ["|---|---|---|---|"]
    for case in cases():
        said = _causes((one.name, one.probability) for one in case.judge().causes)
        chosen = "yes" if case.chosen_on else "no"
        rows.append(f"| {case.source} | {case.truth or 'not verified'} | {said} | {chosen} |")
    return "\n".join([*rows, "", VERDICT_LIMITS])


def _causes(causes: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {probability:.2f}" for name, probability in causes)


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


VERDICT_HOW = """\
Each rule reads the metrics of one level, as they are in `result.json`, and asks why one SLO is
broken there. The SLO is the one that breaks first: that whose own knee is lowest (by its `curves`),
or that which is broken at all levels near the knee together, where its own knee is not known. Where
the knees of two SLOs lie within each other's interval, both are said, each with its cause (`also`).
The level is at most 25% above the knee: the lowest one that breaks the SLO and was held at least
half as long as the longest of them. If the only failing level is further away, a search with budget
left holds one more at 1.15 times the knee for up to 20 s (*looking for the cause*), where the
server has metrics and three request lifetimes take at most 40 s. The knee does not depend on it.
Otherwise the cause is of that level, and the answer says at how many times the knee (`times_knee`):
there another resource may bind.

A rule returns its confidence c, which is the probability of its cause if it were the only one, and
its evidence. Together the causes are odds c / (1 - c) against 1 for *unknown*, so that the
probabilities add up to 1, and two causes that both hold share it: if the runner-up is at least
half as likely, both are named. A cause below 1/3, or one with *unknown* above 0.5,
is not named: the bottleneck is *undecided*, which is a valid result. `bottleneck` in `result.json`
has the name, its probability (`confidence`), all causes with theirs (`causes`), the window, the
evidence, every other cause with the reason why it was ruled out, and what to try next.

A cause is judged by its share of what breaks the SLO. For an SLO on TTFT these are the requests
over the limit. vLLM observes queue and prefill when a request ends; under overload these are
requests of long ago. So at each scrape the records show who has no token yet, and vLLM's gauges how
many of them run or wait in the engine; the others are outside of it (`late` in `result.json`). A
scrape counts as often as late requests wait at it. A full KV cache is blamed for the time in the
queue, a busy API server for the time outside, prompts and the engine's process for the rest. At a
level that breaks no SLO, every probability is smaller by how far its latency is below the limit.

What the rules read:

- From the records: gaps between tokens with and without a prompt in the same engine step (a
  prompt's first token arrives with the token that it delayed), how evenly requests were sent, and
  how many events were made on time but sent late.
- From the server: requests running and waiting, KV cache, preemptions, and the means of queue,
  prefill, decode and TTFT.
- From the records and the server together: where requests over the limit wait for a first token.
- From the host: CPU of the API servers and the engine cores if they run on this machine; otherwise
  that of the engine cores, from `vllm-harness exporter` on their machine
  (`--gpu-metrics http://SERVER:9400`).
  The front end in Rust (`VLLM_USE_RUST_FRONTEND=1`) is found as `vllm-rs`; it is short of CPU when
  all of its threads are busy, and vLLM refuses `--api-server-count` beside it.
- From the GPU: utilization, clocks, and the share of its busy time in which memory is accessed,
  relative to the lowest level held, because the absolute value differs between GPUs.

Without GPU metrics the engine process cannot be told apart from slow decoding. A GPU under full
load sits at its power cap: it is called throttled only if its clock is lower than at a lower level
with the GPU as busy, and if that explains how much longer the engine's steps are.
"""
VERDICT_TRUTH = """\
## How often it is right

The rules are tested in simulated time on 200 engine configurations drawn by seed, in which slots,
KV cache, prefill, decoding, interference, API server or engine process are scarce in turn. They
read what `/metrics`, the host's process table and NVML would show. The truth is the resource whose
doubling moves the simulated knee most. If a second one moves it more than half as far (on a log
scale), that name or *undecided* is right, too. Only configurations with a knee of 4 to 300 users
that moves by at least 22% count. The rules' constants were chosen on seeds below 4000, the
confidences on the 212 of the seeds 0 to 239 that count, and on the real servers marked below; the
200 are the first that count from 4000 on. They were looked at while the rules of decision 17 were
made, so they are a check, not a proof.

The simulated engine process takes CPU time for each step and each sequence, during which the GPU
waits; it may poll the GPU in a loop, so that it uses a whole core all the time. A simulated API
server is a queue: it takes CPU time for each request before the engine sees it, and for each event;
waiting events are merged, as in vLLM.
"""
VERDICT_STATED = """\
What is stated against how often it is right (what is undecided is left out). The probabilities are
meant to be too low here: a rule that never failed in the simulator did fail on real servers, so
none of the simulated causes goes above 0.9.
"""
VERDICT_REAL = """\
## Real servers

Earlier rules were wrong on real servers, and certain of it. On one H200 with 48,000
tokens of KV cache they said *front end*, 0.9, because 190 ms of the mean TTFT were neither in the
queue nor in prefill; on another day *KV cache capacity*, 0.9. Doubling the cache moved the knee
from 56-82 to 96-140 users, and there they said *front end*, 0.9, again. On another server one of
two runs said *GPU throttled*, 0.9: the GPU was 86 to 96% busy and at its power cap, and nothing
showed that to be the cause. Two runs on a third server, whose prompts were the limit, said the
same.

The rules that replaced them were wrong once, too, when they were first asked: of the server with
16,384 batched tokens they said *prefill compute*, 0.9, where 2,048 of them tripled the knee; and of
the one with 2,048 they said *batch slots*, 0.9, which cannot be, as it has 512 and 63 ran. Both are
among the cases that the rules were then chosen on. Later they said *batch slots*, 0.81, of a server
with 512 slots of which 237 were taken, as 17 requests waited at one of three readings: two readings
with a queue are needed since.

Two searches on an H100 with a 7B shape and one API server named *front end*, one with 0.84 and the
other with 0.5; four API servers tripled the knee. They had answered different questions. In the
first, ITL was over its limit at 139 users for 12 s, by chance: it was in time at 150 and 163 users,
which were held for longer. The second can only have been about TTFT, where the rule had a cliff: an
API server at 0.84 cores had a confidence of 0.5, and one at 0.86 cores 0.9. Now the SLO that breaks
first is asked about, which is TTFT, and the confidence rises from 0.5 at half a core to 0.9 at 0.85
cores: of the first search's records *front end* has 0.85. On another H100, whose KV cache was full,
the engine's process at one core looked as probable as the KV cache. Twice the blocks held a third
more users, so a process behind a full cache counts less.

What `result.json` had of these runs (but for the second server) is kept in
`tests/data/observations`, and every test run judges it again by today's rules. `python
tests/kept_observations.py` prints what they say and why; with `--keep` it prints a case to keep.
Where nobody turned a knob, nothing is known to be right.
"""
VERDICT_LIMITS = """\
The truths are rough (levels of a few hundred requests, interpolated between two at most 20%
apart), computed by `tests/simulated_verdict.py`. Client, network, throttling and bursts are
not simulated; table tests cover them. A simulated GPU either reads memory or computes, whichever
takes longer; a real one is less clear-cut. Without GPU metrics the same rules were right in 88% of
these configurations and never wrong with a confidence of 0.8 or more; what they miss is the engine
process.
"""


def dashboards() -> str:
    """docs/dashboards.md, from PANELS."""
    rows = ["# Dashboards", "", DASHBOARDS_HOW]
    for name, page in PANELS.items():
        rows += [f"## {page.title}", "", page.says, ""]
        if name in DRAWN:
            rows += [f"![{page.title} over that run](pictures/dashboard-{name}.png)", ""]
        rows += ["| Panel | Shows | Reading it | What to do |", "|---|---|---|---|"]
        for panel in (panel for row in page.rows for panel in row.panels):
            cells = (panel.title, panel.shows, panel.read, panel.do)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        rows += [""]
        if page.notes:
            rows += [
                "Annotations on its graphs: "
                + "; ".join(f"*{note.name}* ({note.colour})" for note in page.notes)
                + ".",
                "",
            ]
    return "\n".join(rows).rstrip() + "\n"


DASHBOARDS_HOW = """\
`make docs` generates this page and `grafana/dashboards/*.json` from `PANELS` in `grafana/panels/`,
the JSON with Grafana's own typed builders.

To provision the dashboards, mount `grafana/provisioning` at `/etc/grafana/provisioning` and
`grafana/dashboards` at `/var/lib/grafana/dashboards`, both read-only. To use them in an existing
Grafana, import the JSON files: Grafana asks for the data source, and no UID is fixed. *Knee* needs
Grafana 13, because its XY charts have other options in 10.4; the others are for 10.4 and newer.

vLLM ships dashboards of its own (`examples/observability/dashboards/grafana` in its repository),
tested in Grafana 10 to 13. These do not replace them: what is here is the knee, client against
server, the exporter's view, and one page for who is on call. Where vLLM's have the tag `vllm`, a
menu at the top right of ours lists them, and takes the variables along.

They need what [exporter.md](exporter.md) describes: vLLM's own `/metrics`, the exporter on the
server's machine, and a run with `--metrics-port`, each scraped by Prometheus. Without a run,
*Overview*, *Server*, *GPU* and the server's side of *Latency* still show a production server.
*Overview* and *Server* need nothing but vLLM's own `/metrics`, and *GPU* takes NVIDIA's
dcgm-exporter where ours is not there.

The variables above each dashboard:

- **Data source**: a Prometheus; provisioned, the first there is.
- **Namespace** and **Pod**: labels that a cluster's Prometheus adds. Where there are none, leave
  them at All, which also matches series without the label.
- **Model**: vLLM's `model_name`.
- **Target**: Prometheus' `instance`. The exporter's `target` is the HOST:PORT of its command line,
  so start it with the name that Prometheus scrapes, or leave Target at All. A click on a replica
  in the table of *Overview* or *Server* chooses it.
- **Engine**: vLLM's `engine`, several with data parallelism.
- **Run**: the name of a run folder.
- **Price of a replica-hour** (*Overview*): for the cost per million tokens, in any currency.

Rates and quantiles look back over `$__rate_interval`, at least four scrapes. Grafana takes the
scrape interval from the data source: set its `timeInterval`, as the provisioned one does (2 s).
With Grafana's default of 15 s a rate is one of a minute, and the levels of a search last only
seconds. Where a quantile or a share is of nothing, a figure says *No traffic*.

Prometheus interpolates quantiles within a bucket, so they are off by at most a third; the report's
come from the records.

No Grafana was run: the dashboards were tested without a Grafana server. Every query of every panel
and annotation is checked by `promtool test rules`, over samples and answers written by hand, with a
second run, model and server beside them, with a cluster's labels and without. Each query has data
in a real Prometheus after a real run of the embedded engine, with those labels and without, and of
vLLM on a CPU (the GPU panels over recorded readings of an H200 during a burn-in, not vLLM; DCGM's
names only over samples by hand). The JSON fits the types of `@grafana/schema` 10.4 and 13.2. Clicks
and menus were not tried. The pictures are not screenshots: `tests/dashboard_pictures.py` draws what
that Prometheus answered, placed as Grafana would place the
panels, for an embedded engine with `max_num_seqs` 8 and 112 KV blocks, over 80 seconds, with a
rate interval of 5 s.
"""
DRAWN = ("overview", "knee", "latency", "server", "gpu", "client")  # by tests/dashboard_pictures.py


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
        choices = ", ".join(f"`{one}`" for one in how.get("choices") or ())
        default = how.get("default")
        shown = f"`{default}`" if default else ""
        text = how["help"] + (f". One of {choices}" if choices else "")
        cell = text.replace("|", r"\|")
        self.rows.append(f"| `{name}` | {shown} | {self.where} | {cell} |")


def options_of(add: Callable[[ArgumentParser], None]) -> list[str]:
    """The table of what `add` adds to Locust's parser."""
    rows = ["", "| Option | Default | In Locust's form | What |", "|---|---|---|---|"]
    add(cast("ArgumentParser", Options(rows, "yes")))
    return rows


def locust() -> str:
    """docs/locust.md: its own words, then the options that Locust's `--help` does not show."""
    rows = [(HERE / "locust.md").read_text().partition(OPTIONS)[0].rstrip(), "", OPTIONS]
    rows += ["", "With every locustfile:", *options_of(arguments.add_arguments)]
    rows += ["", "With `rate.py`, also:", *options_of(LocustRateStudy.add_arguments)]
    rows += ["", "With `knee.py`, also:", *options_of(form.add_arguments)]
    return "\n".join(rows) + "\n"


OPTIONS = "## Options"  # from here on docs/locust.md is generated; what is above is not


def run_folder() -> str:
    """docs/run-folder.md: the files, and the frames' columns from the code that makes them."""
    empty, levels = TableBuilder().piece(), Levels(HERE / "no such folder")
    rows = ["# The run folder", "", RUN_FOLDER_HOW, "## Files", "", "| File | What |", "|---|---|"]
    rows += [f"| `{name}` | {what} |" for name, what in FILES.items()]
    extra = "`pip install 'vllm-harness[pandas]'` has what this takes ([install.md](install.md))."
    rows += ["", "## With pandas", "", extra, "", *(f"    {line}".rstrip() for line in SETUP)]
    for what, code in ONE_LINERS.items():
        rows += ["", f"{what}:", "", f"    {code}"]
    rows += ["", RULES_OF_FRAMES]
    for name, arrow, texts, note in (
        ("requests", frames.requests_of([empty], levels).schema, REQUESTS, REQUESTS_NOTE),
        ("tokens", frames.tokens_of(empty.table, levels).schema, TOKENS, TOKENS_NOTE),
    ):
        kinds = {f.name: KINDS[str(f.type)] for f in arrow}
        rows += _columns(name, note, [(c, kinds[c], _unit(c), texts[c]) for c in kinds])
    rows += _columns(
        "levels",
        LEVELS_NOTE,
        [
            (c, KINDS[kind], "", LEVELS[c])
            for c, kind in zip(
                frames.LEVELS, ("int64",) * 2 + ("string",) + (TIME,) * 3, strict=True
            )
        ],
    )
    for name, sample, columns, note in (
        ("server", ServerSample, NUMBER_FIELDS, SERVER_NOTE),
        ("gpu", GpuSample, frames.READINGS, GPU_NOTE),
    ):
        texts = dict(re.findall(r"^ +(\w+): .*  # (.+)$", inspect.getsource(sample), re.MULTILINE))
        texts |= {series.key: series.words for series in series_of(sample)}
        rows += _columns(
            name,
            note,
            [("at", "time", "", "when it was read")]
            + [
                (c, {"gpu": "integer", "throttled": "text"}.get(c, "number"), _unit(c), texts[c])
                for c in columns
            ],
        )
    return "\n".join(rows) + "\n"


def _columns(name: str, note: str, columns: list[tuple[str, str, str, str]]) -> list[str]:
    rows = [
        "",
        f"## run.{name}",
        "",
        note,
        "",
        "| Column | Type | Unit | What |",
        "|---|---|---|---|",
    ]
    return rows + [f"| `{c}` | {kind} | {unit} | {what} |" for c, kind, unit, what in columns]


def _unit(column: str) -> str:
    """By the first of UNITS that its name has between underscores."""
    return next((UNITS[part] for part in UNITS if re.search(rf"{part}(_|$)", column)), "")


def result_schema() -> str:
    """docs/result.schema.json."""
    return json.dumps(json_schema(Result), indent=1) + "\n"


def result() -> str:
    """docs/result.md: rules, states, then each object with its fields, from the schema."""
    sample = json.loads((HERE.parent / "reports/samples/result.json").read_text())
    held = (x for x in sample["levels"] if x["users"] == sample["knee"]["measured_at_users"])
    sample["levels"] = [max(held, key=lambda x: x["ttft_ms"]["n"])]
    example = _layout(_shown(sample, EXAMPLE)).splitlines()
    rows = ["# result.json", "", RESULT_HOW, *(f"    {line}" for line in example), "", RESULT_RULES]
    for states in (Status, Decision, Verdict, Purpose, Source, Change):
        rows += ["", f"### {states.__name__}", "", str(states.__doc__), ""]
        code = states is Status
        rows += ["| Value | Exit code | Meaning |", "|---|---|---|"] if code else []
        rows += [] if code else ["| Value | Meaning |", "|---|---|"]
        for value, meaning in _members(states).items():
            shown = f"`{value}`" if value else "empty"
            cells = [shown, *([str(EXIT_OF[Status(value)])] if code else []), meaning]
            rows.append(f"| {' | '.join(cells)} |")
    found = json_schema(Result)
    objects = {"Result": found} | {k: v for k, v in found["$defs"].items() if "properties" in v}
    rows += ["", RESULT_FIELDS]
    for name, one in objects.items():
        rows += ["", f"### {name}", "", one["description"], ""]
        rows += ["| Field | Type | Unit | Meaning |", "|---|---|---|---|"]
        for field, part in one["properties"].items():
            text, _, last = part["description"].rpartition(", ")
            in_text = last in UNITS.values()  # units are in names, else at the end of the text
            unit, what = (last, text) if in_text else (_unit(field), part["description"])
            rows.append(f"| `{field}` | {_kind(part)} | {unit} | {what} |")
    return "\n".join(rows) + "\n"


def _members(states: type[StrEnum]) -> dict[str, str]:
    """Value and comment of each."""
    return dict(re.findall(r'^ +\w+ = "(\w*)"  # (.+)$', inspect.getsource(states), re.MULTILINE))


def _kind(part: dict[str, Any]) -> str:
    """A type of the schema, in words."""
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return name if name == "number" else f"[{name}](#{name.lower()})"
    if "anyOf" in part:
        return " or ".join(map(_kind, part["anyOf"]))
    if "prefixItems" in part:
        return f"[{', '.join(map(_kind, part['prefixItems']))}]"
    if "items" in part:
        return f"list of {_kind(part['items'])}"
    if of := part.get("additionalProperties"):
        return f"{_kind(of)} by name"
    return str(part.get("type", "any"))


def _shown(whole: Any, wanted: Any) -> Any:
    """The fields of `whole` that `wanted` names."""
    if not wanted:
        return whole
    if isinstance(whole, list):
        return [_shown(item, wanted) for item in whole]
    return {key: _shown(whole[key], of) for key, of in wanted.items()}


def _layout(value: Any, indent: str = "") -> str:
    """JSON, in lines of at most 90 characters where that can be."""
    text = json.dumps(value)
    if len(indent + text) <= 90 or not isinstance(value, dict | list):  # noqa: PLR2004
        return text
    deeper = indent + "  "
    if isinstance(value, list):
        items = [_layout(item, deeper) for item in value]
    else:
        items = [f'"{key}": {_layout(item, deeper)}' for key, item in value.items()]
    opening, closing = text[0], text[-1]
    return opening + ",".join(f"\n{deeper}{item}" for item in items) + f"\n{indent}{closing}"


SLO_RESULT: dict[str, Any] = {"slo": {}, "verdict": {}, "observed": {}, "users": {}}
EXAMPLE: dict[str, Any] = {
    "command": {},
    "status": {},
    "exit_code": {},
    "target": {"model": {}, "simulated": {}, "gpu": {}},
    "slos": SLO_RESULT,
    "knee": {"holds": {}, "estimate": {}, "fails_by": {}, "ci95": {}},
    "levels": {
        "users": {}, "decision": {}, "reason": {},
        "ttft_ms": {"n": {}, "n_failed": {}, "p95": {}, "p95_ci95": {}},
        "output_tokens_per_s": {}, "requests_per_s": {},
    },
    "bottleneck": {"bound_by": {}, "confidence": {}},
}  # fmt: skip
RESULT_HOW = """\
`make docs` generates this page from the dataclasses in `harness/metrics/result.py`.

`result.json` holds what `knee`, `run` or `sweep` found, in the same form for all three, and for
Locust tests that search or keep their records. It is in every run folder. `--json FILE` also writes
it to a file, and `--json -` prints it, with the text output on stderr. See also
[the run folder](run-folder.md), [exit codes](exit-codes.md), [metrics](metrics.md) and
[terms](terms.md). The JSON Schema (2020-12) is [result.schema.json](result.schema.json). Fields may
be added; `schema_version` changes when a field changes its meaning or is removed.

    vllm-harness run http://HOST:8000 --users 32 --slo ttft_p95=500ms --json - > result.json
    jq '.slos[] | select(.verdict != "met")' result.json
    jq -r '.levels[] | [.users, .ttft_ms.p95, .output_tokens_per_s] | @tsv' result.json

In Python, `harness.open_run(DIR).result` is the same as typed dataclasses. Some fields of the
result of `make knee`, with one of its levels ([the whole file](../reports/samples/result.json)):
"""
RESULT_RULES = """\
## Rules

- **Numbers.** JSON has neither NaN nor infinity: an undefined number is `null`, an infinite one
  `"inf"`. Counts (of users, requests, scrapes) and shares have no unit; a share of 0.05 is 5%.
- **Quantiles** are observed values, by one rule everywhere: the value of rank ceil(q (n - 1)),
  counted from 0 in ascending order. pandas and NumPy call that `"higher"`. Failed requests are
  infinite and come last, so a p95 is `"inf"` if 5% or more failed. Verdicts follow the share over
  the limit, not the quantile: at exactly 5% the SLO is not missed yet. `mean` and `max` are over
  the finite values, with `n_failed` beside them. For gaps between tokens (`itl_ms`), quantiles and
  the ends of their intervals are within 0.1% of the observed value; everything else is exact.
- **Intervals.** `..._ci95` is the 95% confidence interval: how far another window of the same
  length may differ. Its ends are observed values too (order statistics), with the ranks that a
  binomial leaves open for the number of independent observations (`effective_n` for the p95). With
  too few values above the quantile there is no upper end: `[480.1, null]` reads "at least 480.1".
  Every quantile has an interval, whatever `n` is. `..._instrument` is the measurement uncertainty:
  the bounds of the quantile that the time stamps allow.
- **Levels.** A level's figures are of its measured window: latencies and outcomes of the requests
  *sent* in it, each followed to its end; ITL and throughput of the tokens that *arrived* in it.
  `all` has the latencies of every request sent in the level, including its warm-up and drain. The
  two differ if the load had not settled: `all` is what users felt, the window is what the level is
  judged by.
- **Nothing is pooled over levels.** There is no p95 "of the run". A level that a search held again
  is another entry with the same `users`; only `knee` combines all holds of the one level that it
  reports.
- **Verdicts.** The levels of `run`, `sweep` and a recorded Locust test are judged once, after the
  load, at alpha 0.05: `slos` of each level has a verdict per SLO, and `slos` of the result has each
  SLO at its worst level. In a search, each level's `decision` comes from a sequential test, and
  `slos` of the result is from the longest hold of the level that holds. Without an SLO nothing is
  judged.
- **Gates.** `knee --at-least N`, `--baseline DIR` and `--confirm TIME` add to `gates`. If the
  search has an answer, the gates decide the exit code in place of the status: 99 if one is missed,
  otherwise 6 if one is inconclusive, otherwise 0. See [exit-codes.md](exit-codes.md).

## States"""
RESULT_FIELDS = """\
## Fields

A *number* may also be `null` or `"inf"`, as above. Points in time are nanoseconds since 1970 on the
clock of the run folder's records."""
TIME = "timestamp[ns, tz=UTC]"
KINDS = {
    "int64": "integer", "double": "number", "string": "text", "bool": "true or false",
    TIME: "time", "list<item: int64>": "list of integers",
}  # fmt: skip
UNITS = {
    "tokens_per_s": "tokens/s", "_mb_per_s": "MB/s", "_per_s": "1/s", "_mib": "MiB",
    "_mhz": "MHz", "_pct": "%", "_ms": "ms", "_ns": "ns",
    "tokens_total": "tokens", "queries_total": "tokens", "hits_total": "tokens", "tokens": "tokens",
    "_s": "s", "_w": "W", "_j": "J", "_c": "°C", "_cores": "cores",
}  # fmt: skip
FILES = {
    names.RUN: "written before any load: configuration, seeds, versions, server, hardware, clocks",
    names.SCENARIO: "the options that repeat the run ([scenarios.md](scenarios.md))",
    names.DRILL: "of a drill, in its place: the file that was run ([drills.md](drills.md))",
    names.EVENTS: "of a drill: what happened when",
    names.records("N"): "every request of worker N with every token, appended as requests end",
    names.sends("N"): "how many requests worker N had begun, counted before each was sent",
    names.LEVELS: "the held levels: window, users, purpose, decision",
    names.SERVER: "a scrape of the server's metrics each second, histograms included; of several "
    "replicas the sum, with the numbers of each in `replicas` ([replicas.md](replicas.md))",
    names.REPLICAS: "of several replicas: the numbers of those that answered, where others did not",
    names.CLIENT: "the load processes' own figures: CPU, loop lag, reads",
    names.HOST: "the client's machine: CPU used by it and by others, waiting for a core, load",
    names.GPU: "readings of the GPUs, if there are any",
    names.ENDED: "how the run ended, and the client's figures about itself",
    names.PROOF: "with `--prove`: what turning knobs did to the knee ([vary.md](vary.md))",
    names.PARQUET: "one row per request, for pandas, DuckDB, Polars: `run.requests`; where pyarrow "
    "is installed",
    names.RESULT: "the result: `run.result`; its levels with all figures are `run.levels`",
    names.LEVELS_PARQUET: "the same levels as a table, intervals as two columns `..._lo` and "
    "`..._hi`; where pyarrow is installed",
    names.LEVELS_CSV: "the columns of it that a spreadsheet is opened for",
    names.REPORT_HTML: "the report, one file without scripts",
    names.SWEEP_CSV: "of a `sweep`: a row for each number of users, means over its measurements",
    names.BATCHING: "of `sweep --batch`: a batch at each concurrency and one at a time",
    names.BATCHING_MD: "the same for people, with rules of thumb",
    names.REPORT_MD: "the report for a comment on a pull request",
}
SETUP = (
    "import harness",
    "",
    'run = harness.open_run("reports/knee-20261121-093000")',
    "measured = run.requests.query('phase == \"measured\"')",
    "tokens = run.tokens.query('phase == \"measured\"')",
    'levels = run.levels.set_index("level")',
)
ONE_LINERS = {
    "p95 TTFT of a run with one level": 'measured.ttft_ms.quantile(0.95, interpolation="higher")',
    "p95 TTFT of each level":
    'measured.groupby("level").ttft_ms.quantile(0.95, interpolation="higher")',
    "The share of each level's requests over 500 ms, open ones by their age":
    "(measured.ttft_ms.fillna(measured.e2e_ms) > 500).groupby(measured.level).mean()",
    "p95 ITL of each level":
    'tokens.groupby("level").gap_ms.quantile(0.95, interpolation="higher")',
    "Output tokens per second of each level":
    'tokens.groupby("level").tokens.sum() / '
    "(levels.ended_at - levels.settled_at).dt.total_seconds()",
    "How the requests of each level ended":
    'run.requests.groupby(["level", "phase", "outcome"]).size()',
    "Why requests failed": "run.requests.error.value_counts()",
    "The most requests that waited at the server": "run.server.waiting.max()",
}  # fmt: skip
RUN_FOLDER_HOW = """\
`make docs` generates this page from the code that writes and reads the folder. Whatever stopped a
run, its folder can be read: `vllm-harness report DIR` recomputes the results and reports from the
first nine files, and `harness.open_run(DIR)` returns pandas frames. Start from
[examples/analyze.py](examples/analyze.py).
"""
RULES_OF_FRAMES = """\
## Rules

- **A quantile is an observed value**: the one of rank ceil(q (n - 1)), counted from 0 in ascending
  order, with the infinite values at the end. pandas calls that `interpolation="higher"`, NumPy
  `method="higher"`. The quantiles in the result are these; those of gaps are within 0.1% of them.
  pandas' default interpolates between two values, which is meaningless between a finite and an
  infinite one.
- **Failed is infinite.** `ttft_ms`, `ttfot_ms`, `tpot_ms` and `e2e_ms` of a failed request are
  +infinity, even if some of its tokens arrived, and so is the gap before each token that it still
  owed, so shedding load never looks fast. A successful response without a token has an infinite
  TTFT, too.
- **Missing is null** (NaN, `<NA>`, NaT), for example the TPOT of a single token. There are no
  sentinel numbers.
- **`open` is neither finished nor failed.** The harness stopped waiting for the request (Ctrl-C,
  the end of the drain, a load process that died), which is not a failure of the server. Its
  `e2e_ms` is its age at that time. Without a first token its `ttft_ms` is null: quantiles leave it
  out, and it counts as over a limit once its age exceeds the limit.
- **Phases**: a level's *warm-up* lasts until the load has settled; *measured* is its window, both
  ends included; *drain* is what follows until the next level. The result's latencies are those of
  the requests *sent* in the window, each followed to its end; its ITL and its throughput are those
  of the tokens that *arrived* in it. Before the first level, and in a level that was still warming
  up when the run was stopped, `level`, `users` and `phase` are null.
- **Nothing is lost without being counted.** A worker counts each request in `sends.N.txt` before
  its first byte leaves, in place, so that neither `kill -9` nor a full disk takes the count away:
  requests sent = records + requests that the report names as without a record. A worker on another
  host keeps both files in its own `reports/workers` as well, under the run's id. If the master, or
  the way to it, was lost, `vllm-harness report DIR --merge WORKERS` takes from there what the run
  folder lacks ([locust.md](locust.md#on-several-hosts)).
- **Times** are UTC in nanoseconds, on a clock that never steps: each worker takes the time of day
  once and counts from there. Latencies are in milliseconds."""
REQUESTS_NOTE = """\
One row per request, in the order in which they ended. This is `requests.parquet`; a run that was
killed has none, and the frame is made from its records. `pd.read_parquet` gives the same, but
turns integers with nulls into floats."""
TOKENS_NOTE = """\
One row per event that carried a token, and one with an infinite gap per token that a failed
request still owed. `level`, `users` and `phase` are those of the instant `at`."""
LEVELS_NOTE = """\
One row per held level. The columns below are followed by the level's figures in the result, under
the same names: nested names are joined by a dot (`ttft_ms.p95`), and an interval is two columns
(`ttft_ms.p95_ci95_lo` and `..._hi`). The metrics are defined in [metrics.md](metrics.md)."""
SERVER_NOTE = """\
One row per scrape. `_total`, `_sum_s` and `_count` count from the server's start. What the server
does not report is null. Finished requests by reason follow as `finished.length` and so on. vLLM's
own names are in [vllm-series.md](vllm-series.md)."""
GPU_NOTE = "One row per reading of one GPU. What the GPU does not report is null."
PLACE = {
    "level": "index of the held level, from 0",
    "users": "concurrent users of that level",
    "phase": "`warm-up`, `measured` or `drain`",
}
KEY = {
    "worker": "the load process that sent it",
    "number": "counts from 0 in each worker; both together are the request's key",
}
FAILED_AS = ", ".join(
    f"`{o}`" for o in Outcome if o not in (Outcome.ok, Outcome.open, Outcome.cancelled)
)
REQUESTS = {
    **KEY,
    "user": "the worker's user that sent it",
    "session": "its user's session, from 0; null without sessions",
    "turn": "its turn in the session, from 0; null without sessions",
    "mix_row": "the number of its workload in a mix, from 0; null without a mix",
    "name": "the `name=` that a locustfile gave it; null without one",
    **PLACE,
    "scheduled_at": "when it was scheduled; null in a closed loop",
    "sent_at": "first byte sent on an open connection; if it was never sent, when that failed",
    "first_token_at": "null if none arrived",
    "last_token_at": "null if none arrived",
    "done_at": "last byte received, or when it failed; null if it is `open`",
    **{metric.field: metric.request_text for metric in LATENCIES.values()},
    "think_ms": "planned pause between its end and its user's next request; null for none",
    "connect_ms": "TCP and TLS, before `sent_at`; null if a connection was reused",
    "outcome": f"`ok`, `open`, or how it failed: {FAILED_AS}",
    "error": "why it failed; null if it did not",
    "finish_reason": "as the server reported it",
    "status": "HTTP status; null if none arrived",
    "planned_tokens": "output tokens requested",
    "planned_prompt": "prompt tokens asked for; null where nobody knows, as of own data",
    "prompt_tokens": "as reported by the server",
    "output_tokens": "as reported by the server",
    "cached_tokens": "prompt tokens from the prefix cache, as reported by the server",
    "token_at_ns": "when each event with a token arrived, since `sent_at`",
    "token_not_before_ns": "it arrived after this; equal to `token_at_ns` if the stamp is exact",
    "tokens": "tokens in each of these events",
}
TOKENS = {
    **KEY,
    **PLACE,
    "at": "when it arrived; if it never did, when its request failed",
    "gap_ms": "since the request's previous event; null for its first",
    "tokens": "tokens in the event; 0 if it never arrived",
    "exact": "whether `at` is an exact time stamp; null if it never arrived",
}
LEVELS = {
    "level": "its index",
    "users": "concurrent users held",
    "purpose": "why it was held: " + ", ".join(f"`{p}`" for p in Purpose),
    "started_at": "its users were requested",
    "settled_at": "its measured window begins",
    "ended_at": "its measured window ends",
}


def decisions() -> str:
    """docs/decisions/index.md: the title of each note."""
    titles = {
        path.name: path.read_text().partition("\n")[0].removeprefix("# ")
        for path in sorted((HERE / "decisions").glob("0*.md"))
    }
    links = "\n".join(f"- [{title}]({name})" for name, title in titles.items())
    return DECISIONS_HOW.format(links=links)


DECISIONS_HOW = """\
# Decisions

Why a choice between two good ways was made, as it was seen on that day. `make docs` writes this
list.

{links}

```{{toctree}}
:hidden:
:glob:

0*
```
"""


def llms_txt() -> str:
    """llms.txt: what docs/index.md lists, for readers that are programs (https://llmstxt.org)."""
    title, first, *rest = (HERE / "index.md").read_text().split("\n\n")
    quoted = "> " + " ".join(first.split())
    groups = [part for part in rest if part.startswith(("## ", "- ["))]
    from_here = "\n\n".join(groups).replace("](", "](docs/").replace("(docs/../", "(")
    return f"{title}\n\n{quoted}\n\n{from_here.rstrip()}\n"


PAGES = {
    "../llms.txt": llms_txt,
    "commands.md": commands,
    "decisions/index.md": decisions,
    "locust.md": locust,
    "metrics.md": metrics,
    "run-folder.md": run_folder,
    "result.md": result,
    "result.schema.json": result_schema,
    "compat.md": compat,
    "vllm-series.md": vllm_series,
    "exporter.md": exporter,
    "stack.md": stack,
    "verdict.md": verdict,
    "../prometheus/rules/harness_recorded.yml": recorded,
    "dashboards.md": dashboards,
    "../lab/results/duel.md": searches,
    "how-good.md": how_good,
    "../prometheus/rules/harness_routing.yml": routing,
    "../prometheus/rules/harness_watched.yml": watched,
}


def main() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page())


if __name__ == "__main__":
    main()
