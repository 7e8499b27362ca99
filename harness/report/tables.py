"""The tables and cards of a report: rows of words, and how they look as text and as Markdown.

A row is a dict from a column's head to its cell; all rows of a table have the columns of the first.
The page renders the same rows with one macro.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.core.states import Status
from harness.diagnosis.server_window import load_shares
from harness.memory.cards import GPUS
from harness.metrics.metrics import HEADLINES, LATENCIES
from harness.metrics.numbers import (
    UNKNOWN,
    Quantity,
    as_float,
    count_of,
    decimal_places,
    escape_markdown,
    format_number,
    format_rounded,
)
from harness.report.report_data import ReportData, as_mapping, knee_figures

if TYPE_CHECKING:
    from harness.metrics.result import Level

    Row = dict[str, str]

STATISTICS: Final = ("p50", "p95", "p99")
PARTS: Final = {
    "queue": "Queue", "prefill": "Prefill", "rest": "Rest", "ttft": "Server",
    "residual": "Residual", "client": "Client",
}  # fmt: skip
OBSERVED: Final = {"ttft": "TTFT", "queue": "Queue", "prefill": "Prefill"}
TOOL_DIGITS: Final = 4  # one more than elsewhere: two tools are compared
WIDTH: Final = 100  # characters of remarks in a terminal


def markdown(rows: Sequence[Row], *texts: str) -> list[str]:
    """Lines of a table, as Markdown: figures to the right, columns called `texts` to the left."""
    if not rows:
        return []
    rule = (" --- |" if name in texts else " ---: |" for name in rows[0])
    lines = [f"| {' | '.join(rows[0])} |", f"|{''.join(rule)}"]
    return lines + [f"| {' | '.join(map(escape_markdown, row.values()))} |" for row in rows]


def aligned(rows: Sequence[Row], escape: Callable[[str], str] = escape_markdown) -> list[str]:
    """Lines of a table that reads well as it is and is Markdown too."""
    lines = [list(rows[0]), *([escape(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([x.ljust(n) for x, n in zip(line, widths, strict=True)] for line in lines)
    return [f"| {' | '.join(line)} |" for line in padded]


def tiles(facts: ReportData) -> list[dict[str, str]]:
    """The tiles below the headline."""
    out: list[tuple[str, str, str]] = []
    knee, result = facts.knee, facts.result
    if knee.holds:
        fails = f"fails by {knee.fails_by:,}" if knee.fails_by else "the highest level tried"
        out.append(("Holds", facts.level_text(knee.holds, facts.who), fails))
    if knee.estimate is not None:
        lo, hi = knee.ci95
        note = f"95% CI: {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
        out.append(("Best estimate", facts.level_text(knee.estimate, facts.who), note))
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            at = f"at {facts.level_text(facts.measured_at, facts.who)}"
            out.append((name, value, f"95% CI: {figure.interval}" if figure.interval else at))
    shown = facts.status != Status.not_reached  # else neither a peak nor a plateau was
    for name, found in (("Power knee", result.power), ("Throughput plateau", result.plateau)):
        if found and shown:
            note = "between {:,} and {:,}".format(*found.ci95)
            out.append((name, facts.level_text(found.users, facts.who), note))
    return [dict(zip(("name", "value", "note"), tile, strict=True)) for tile in out]


def level_rows(facts: ReportData) -> list[Row]:
    """Every level held, in the order of the run."""
    return [_level(facts, level) for level in facts.levels]


def _level(facts: ReportData, level: Level) -> Row:
    return _first_columns(facts, level) | {
        "Result": ", ".join(
            [level.result, *["unstable"] * bool(level.unstable), *["drifts"] * bool(level.drift)]
        ),
        **_open_loop(level),
        **{
            f"p95 {name}, ms": Quantity.of(level.latency(key), "p95", facts.limit_ms(key)).cell
            for key, name in HEADLINES.items()
        },
        "Tokens/s": format_number(level.output_tokens_per_s),
        "Goodput, req/s": format_number(level.goodput_per_s),
        "n": f"{level.ttft_ms.n:,}",
        "Failed": f"{level.n_failed:,}",
        "Running": format_number(level.server.running_mean),
        "Waiting": format_number(level.server.waiting_mean),
        **_extras(facts, level),
        "Seconds": f"{level.seconds:.0f}",
        "Purpose": level.purpose,
        "Why": level.reason,
    }


def _open_loop(level: Level) -> Row:
    """How late requests were sent, and TTFT without that: in an open loop only."""
    shown = {"TTFT from send": level.ttft_from_send_ms, "schedule lag": level.schedule_lag_ms}
    return {f"p95 {name}, ms": Quantity.of(x).digits for name, x in shown.items() if x}


def _share(value: Any) -> str:
    number = as_float(value)
    return UNKNOWN if number != number else f"{number:.1%}"  # noqa: PLR0124 - NaN


# Columns for what only some servers report: shown if a level has the figure.
EXTRAS: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "Drafts accepted": ("spec_acceptance", _share),
    "Tokens per draft": ("spec_accepted_length", format_number),
    "Prompt tokens cached": ("prompt_cached_share", _share),
    "Found in an external cache": ("external_hit_share", _share),
    "Fetching KV": ("kv_fetching_mean", format_number),
    "Preemptions per request": ("preemptions_per_request", format_number),
    "Rejected at admission": ("admission_rejections", format_number),
    "TFLOP/s": ("flops_per_s", lambda x: format_number(x / 1e12)),
    "Memory GB/s": ("memory_bytes_per_s", lambda x: format_number(x / 1e9)),
}


def _extras(facts: ReportData, level: Level) -> Row:
    """The EXTRAS that any level has; MFU and MBU over the data sheet's peaks of a known GPU."""
    row = {
        head: show(getattr(level.server, name))
        for head, (name, show) in EXTRAS.items()
        if any(getattr(one.server, name) > 0 for one in facts.levels)
    }
    if any(one.prefix for one in facts.levels):  # by the server, and as the plan has it
        hits = level.prefix
        known = f"{hits.counted:,.0f} of {hits.expected:,.0f}" if hits else UNKNOWN
        row["Prefix hits, tokens"] = known
    gpus = as_mapping(facts.run.info.get("gpu")).get("gpus") or [{}]
    words = str(as_mapping(gpus[0]).get("name", "")).lower().replace("-", " ").split()
    if "TFLOP/s" in row and (peaks := next((GPUS[word] for word in words if word in GPUS), None)):
        row["MFU"] = _share(level.server.flops_per_s / peaks.flops_s)
        row["MBU"] = _share(level.server.memory_bytes_per_s / peaks.bandwidth_bytes_s)
    return row


def _first_columns(facts: ReportData, level: Level) -> Row:
    number = {"#": str(level.index + 1)}
    if not level.rate_per_s:
        return number | {f"{facts.who.capitalize()}s": f"{level.users:,}"}
    return number | {"Rate, 1/s": f"{level.load:,}", "In flight": format_number(level.in_flight)}


def quantile_rows(facts: ReportData) -> list[dict[str, str]]:
    """Each quantile at the knee with its sampling and instrument intervals, in ms."""
    level = facts.result.at_knee
    if level is None:
        return []
    return [
        {
            "Quantile": f"{metric.name} {name}",
            "ms": figure.digits,
            "Sampling interval (95%)": figure.interval or UNKNOWN,
            "Instrument interval": _sharp(getattr(level.latency(key), f"{name}_instrument")),
        }
        for key, metric in LATENCIES.items()
        for name in STATISTICS
        if (figure := Quantity.of(level.latency(key), name)).known
    ]


def _sharp(pair: tuple[float, float]) -> str:
    """With microseconds, because the bounds of the instrument are close together."""
    lo, hi = pair
    return UNKNOWN if lo != lo else f"{lo:,.3f} to {hi:,.3f}"  # noqa: PLR0124 - NaN


def client_rows(facts: ReportData) -> list[dict[str, str]]:
    """The quality of the load generator at each level."""
    return [
        _first_columns(facts, level)
        | {
            "Instrument share": _share(max(client.instrument_share.values(), default=0)),
            "Exact timestamps": _share(level.exact_share),
            "Tokens per event": format_number(level.tokens_per_event),
            "Stamped reads": _share(client.stamp_coverage),
            "Turnaround, ms": format_number(client.turnaround_ms.mean),
            "p99": format_number(client.turnaround_ms.p99),
            "Max loop lag, ms": format_number(client.loop_lag_max_ms),
            "Clock steps": str(client.clock_steps),
            **{f"CPU {name}": _share(cores) for name, cores in client.cpu.items()},
        }
        for level in facts.levels
        if (client := level.client).cpu or client.instrument_share
    ]


def replica_rows(facts: ReportData) -> list[Row]:
    """Each replica's own figures at each level, [] with one server."""
    return [
        _first_columns(facts, level)
        | {
            "Replica": name,
            "Load": _share(load_shares(level.replicas).get(name)),
            "Running": format_number(one.running_mean),
            "Waiting": format_number(one.waiting_mean),
            "KV cache": _share(one.kv_usage_mean),
            "Requests/s": format_number(one.requests_per_s),
            "Tokens/s": format_number(one.generation_tokens_per_s),
        }
        for level in facts.levels
        for name, one in level.replicas.items()
    ]


def mix_rows(facts: ReportData) -> list[Row]:
    """The latencies of each workload of a mix at each level, [] without a mix."""
    shown = {"TTFT": "ttft_ms", "ITL": "itl_ms", "e2e": "e2e_ms"}
    return [
        _first_columns(facts, level)
        | {"Workload": name, "n": f"{one['e2e_ms'].n:,}", "Failed": f"{one['e2e_ms'].n_failed:,}"}
        | {
            f"{q} {head}, ms": Quantity.of(one[key], q).cell
            for head, key in shown.items()
            for q in ("p50", "p95")
        }
        for level in facts.levels
        for name, one in level.mix.items()
    ]


def mean_part(level: Level, key: str) -> tuple[float, float, float]:
    """(mean, lower bound, upper bound) of one part, in ms."""
    split = level.ttft_split
    bounds = getattr(split, f"{key}_ms_bound") or (math.nan, math.nan)
    return getattr(split, f"{key}_ms"), *bounds


def ttft_split(facts: ReportData) -> list[dict[str, str]]:
    """The breakdown in ms, with bounds in parentheses where a value is not exact."""
    rows = []
    for level in facts.split:
        split = level.ttft_split
        decimals = max(decimal_places(mean_part(level, "client")[0]), 0)  # one for all: they add up
        row = _first_columns(facts, level) | {"n": f"{split.n:,}"}
        for key, name in PARTS.items():
            mean, lo, hi = (format_rounded(x, decimals) for x in mean_part(level, key))
            row[name] = mean if lo == hi else f"{mean} ({lo} to {hi})"
        rows.append(row | {"Exact": "yes" if split.exact else "no"})
    return rows


def ttft_buckets(facts: ReportData) -> list[dict[str, str]]:
    """Quantiles of the parts, each as the histogram bucket in ms that contains it."""
    rows = []
    for level in facts.split:
        split = level.ttft_split
        held = {
            f"{name} {q}": _bucket(getattr(split, f"{key}_{q}_ms_bucket"))
            for q in ("p50", "p95")
            for key, name in OBSERVED.items()
        }
        if any(value != UNKNOWN for value in held.values()):
            rows.append(_first_columns(facts, level) | held)
    return rows


def _bucket(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return UNKNOWN
    lo, hi = pair
    return f"over {lo:,.10g}" if math.isinf(hi) else f"{lo:,.10g} to {hi:,.10g}"


def ttft_split_note(facts: ReportData) -> str:
    """How to read the breakdown of the mean TTFT."""
    exact = [level for level in facts.split if level.ttft_split.exact]
    text = (
        "Server and client are the mean TTFT as each of them measures it, over the requests sent "
        "between two scrapes of the server. The parts add up. Queue and prefill come from the "
        "server. Rest is the remainder of its TTFT: tokenizing, and the way to the engine and "
        "back. Residual is what the client measures beyond it: network, HTTP, and reading the "
        "request."
    )
    if len(exact) < len(facts.split):
        text += (
            " If requests were in flight at a scrape, server and client count different requests, "
            "and the true mean lies within the bounds (whiskers). A level that began and ended "
            "with an empty server has no bounds."
        )
    return text


class ToolTable(NamedTuple):
    """Our figures and those of another tool at one level."""

    title: str
    remarks: list[str]
    rows: list[Row]


def tool_comparisons(facts: ReportData) -> list[ToolTable]:
    """One table per level; for a search, only that of the level that represents the knee."""
    found = []
    for tool in (facts.result.compat or {}).values():
        level_rows = [as_mapping(level) for level in as_mapping(tool).get("levels") or []]
        here = [level for level in level_rows if level.get("users") == facts.measured_at]
        if facts.searched and here:
            level_rows = here
        found += [_beside(tool, level) for level in level_rows]
    return found


def _beside(tool: dict[str, Any], level: dict[str, Any]) -> ToolTable:
    users, n, left = (int(level.get(key) or 0) for key in ("users", "requests", "left_out"))
    early = f"{count_of(left, 'request')} sent before the level had settled are in neither column; "
    remarks = [f"{early}the tool counts them." * bool(left), str(tool.get("note") or "")]
    remarks += [f"Approximate: {level['approximate']}."] if level.get("approximate") else []
    return ToolTable(
        f"Beside {tool.get('title')} {tool.get('version')}: {count_of(users, 'user')}, "
        f"{count_of(n, 'request')}",
        [text for text in remarks if text],
        [_row(row) for row in level.get("rows") or []],
    )


def _row(row: dict[str, Any]) -> Row:
    what = " ".join(filter(None, [str(row.get("name")), str(row.get("statistic") or "")]))
    our_value, their_value = (tool_number(as_float(row.get(key))) for key in ("ours", "theirs"))
    return {
        "In its words": f"{what}, {row.get('unit')}",
        "Ours": our_value,
        "Theirs": their_value,
        "Why they differ": str(row.get("why") or "no difference"),
    }


def tool_number(value: float) -> str:
    """`383.8`, `48.36`, `1,041`, `inf`."""
    return format_rounded(value, decimal_places(value, digits=TOOL_DIGITS))


def tools_as_text(tables: list[ToolTable]) -> list[str]:
    lines = []
    for table in tables:
        rows = [("", "ours", "theirs", "why they differ"), *(row.values() for row in table.rows)]
        cells = [list(row) for row in rows]
        wide = [max(len(row[i]) for row in cells) for i in range(3)]
        lines += ["", f"{table.title}."]
        lines += [
            f"  {what:<{wide[0]}}  {ours:>{wide[1]}}  {theirs:>{wide[2]}}  {why}".rstrip()
            for what, ours, theirs, why in cells
        ]
        for text in table.remarks:
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def tools_as_markdown(tables: list[ToolTable]) -> list[str]:
    """Lines of a section for each."""
    lines = []
    for table in tables:
        lines += ["", f"**{escape_markdown(table.title)}**", ""]
        lines += markdown(table.rows, "In its words", "Why they differ")
        lines += ["", *map(escape_markdown, table.remarks)]
    return lines
