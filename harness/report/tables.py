"""The tables and cards of a report: rows of words, and how they look as text and as Markdown.

A row is a dict from a column's head to its cell; all rows of a table have the columns of the first.
The page renders the same rows with one macro.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.core.load import UNITS, recorded_load
from harness.core.states import Purpose, Status
from harness.diagnosis.server_window import load_shares
from harness.export import tiles as export_tiles
from harness.memory.cards import GPUS
from harness.metrics.level_figures import ServerFigures
from harness.metrics.metrics import HEADLINES, LATENCIES, SCHEDULED
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
from harness.metrics.server_summary import SHARE, Summary, summaries
from harness.report.report_data import TRUE, ReportData, as_mapping, phase_names
from harness.search.level_words import PURPOSES, purpose_text, reported_result_text

if TYPE_CHECKING:
    from harness.core.load import Load, Number
    from harness.export.tiles import Tile
    from harness.memory.cards import GpuSpec
    from harness.metrics.level_figures import PlateauKnee, PowerKnee
    from harness.metrics.result import Latency, Level

    Row = dict[str, str]

GIVEN: Final = PURPOSES[Purpose.hold]
STATISTICS: Final = ("p50", "p95", "p99")
PARTS: Final = {
    "prefill_server": "Prefill server",
    "prefill_server_queue": "of it queue",
    "queue": "Queue",
    "prefill": "Prefill",
    "rest": "Rest",
    "ttft": "Server",
    "residual": "Residual",
    "client": "Client",
}
APART: Final = "prefill_server"
OBSERVED: Final = {"ttft": "TTFT", "queue": "Queue", "prefill": "Prefill"}
TOOL_DIGITS: Final = 4  # one more than elsewhere: two tools are compared
WIDTH: Final = 100  # characters of remarks in a terminal


def markdown(rows: Sequence[Row], *texts: str) -> list[str]:
    """Lines of a table, as Markdown: figures to the right, columns called `texts` to the left."""
    if not rows:
        return []
    rules = [" --- |" if name in texts else " ---: |" for name in rows[0]]
    lines = [f"| {' | '.join(rows[0])} |", f"|{''.join(rules)}"]
    for row in rows:
        cells = map(escape_markdown, row.values())
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def aligned(rows: Sequence[Row], escape: Callable[[str], str] = escape_markdown) -> list[str]:
    """Lines of a table that reads well as it is and is Markdown too."""
    heads = list(rows[0])
    table = [[escape(cell) for cell in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *table, strict=True)]
    rule = ["-" * width for width in widths]
    lines = []
    for cells in [heads, rule, *table]:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append(f"| {' | '.join(padded)} |")
    return lines


def tiles(facts: ReportData) -> list[dict[str, str]]:
    """The tiles below the headline, in words; of several given levels the table has it all."""
    if not facts.searched and len(facts.used) != 1:
        return []
    in_words = map(_tile_in_words, export_tiles.tiles(facts.result))
    return [tile for tile in in_words if not tile["value"].startswith(UNKNOWN)]


def _tile_in_words(tile: Tile) -> dict[str, str]:
    value = tile.value
    note = tile.note
    if not isinstance(value, str):
        middle, low, high = value
        figure = Quantity(middle, low, high, tile.unit, tile.limit)
        value = figure.digits
        if figure.interval:
            note = f"95% CI: {figure.interval}"
    return {"name": tile.name, "value": f"{value} {tile.unit}".strip(), "note": note}


def throughput_note(facts: ReportData) -> str:
    """Where throughput over latency peaks, and where throughput levels off; "" if neither."""
    if facts.status == Status.not_reached:  # neither a peak nor a plateau was reached
        return ""
    sentences = []
    if power := facts.result.power:
        peak = f"{facts.unit.short(power.users)} ({_ends(power)})"
        sentences.append(f"Throughput divided by latency peaks at {peak}.")
    if plateau := facts.result.plateau:
        where = f"{facts.unit.short(plateau.users)} ({_ends(plateau)})"
        sentences.append(f"Throughput is within 10% of its peak from {where} on.")
    return " ".join(sentences)


def _ends(knee: PowerKnee | PlateauKnee) -> str:
    low, high = knee.ci95
    return f"95% interval {low:,} to {high:,}"


def level_rows(facts: ReportData) -> list[Row]:
    """Every level held, in the order of the run."""
    purposes = _purposes(facts)
    return [_level(facts, level, purposes[level.index]) for level in facts.levels]


def _purposes(facts: ReportData) -> dict[int, str]:
    """By the place of a level: why it was held, or the name of its phase."""
    if facts.kind.has_phases:
        return dict(enumerate(phase_names(facts)))
    texts = {}
    before: list[Load] = []
    for level in facts.levels:
        load = recorded_load(level.users, level.rate_per_s)
        texts[level.index] = purpose_text(level.purpose, load, before, searches=facts.kind.searches)
        before.append(load)
    return texts


def _level(facts: ReportData, level: Level, purpose: str) -> Row:
    row = _first_columns(facts, level)
    row["Result"] = _result_cell(facts, level)
    row |= _open_loop(level)
    for key, name in HEADLINES.items():
        p95 = Quantity.of(level.latency(key), "p95", facts.limit_ms(key))
        row[f"p95 {name}, ms"] = p95.cell
    row["Tokens/s"] = format_number(level.output_tokens_per_s)
    row["Goodput, req/s"] = format_number(level.goodput_per_s)
    row["n"] = f"{level.ttft_ms.n:,}"
    row["Failed"] = f"{level.n_failed:,}"
    row["Running"] = format_number(level.server.running_mean)
    row["Waiting"] = format_number(level.server.waiting_mean)
    row |= _extras(facts, level)
    row["Seconds"] = f"{level.seconds:.0f}"
    row["Phase" if facts.kind.has_phases else "Purpose"] = purpose
    row["Why"] = level.reason
    return row


# A page has these in one table, which fits on it, and what else there is in another.
MAIN_COLUMNS: Final = (
    *dict.fromkeys(unit.title for unit in UNITS),
    "Phase",
    "Purpose",
    "Result",
    *(f"p95 {name}, ms" for name in HEADLINES.values()),
    "Tokens/s",
    "n",
    "Failed",
    "Seconds",
    "Why",
)


def main_level_rows(facts: ReportData) -> list[Row]:
    """The figures that people look for first; without columns that say the same of every level."""
    left_out = set()
    rows = level_rows(facts)
    if all(row["Why"] == "" for row in rows):
        left_out.add("Why")
    if all(row.get("Purpose") == GIVEN for row in rows):
        left_out.add("Purpose")
    columns = [name for name in MAIN_COLUMNS if name not in left_out]
    return [{"#": row["#"], **_selected(row, columns)} for row in rows]


def further_level_rows(facts: ReportData) -> list[Row]:
    """All other figures of the levels."""
    rows = level_rows(facts)
    load = facts.unit.title
    others = [name for name in rows[0] if name not in MAIN_COLUMNS] if rows else []
    return [{"#": row["#"], load: row[load], **_selected(row, others)} for row in rows]


def _selected(row: Row, names: Sequence[str]) -> Row:
    return {name: row[name] for name in names if name in row}


def expectation_rows(facts: ReportData) -> list[Row]:
    """What a drill expected, each with what came of it; [] of other runs."""
    if not facts.kind.has_phases:
        return []
    rows = []
    for gate in facts.result.gates:
        row = {"Result": TRUE[gate.verdict], "Expected": gate.name}
        row["At"] = "" if math.isnan(gate.at_s) else f"{gate.at_s:.1f} s"
        row["Seen"] = gate.sentence
        rows.append(row)
    return rows


def _result_cell(facts: ReportData, level: Level) -> str:
    """`pass`, `passing so far`, `measured, unstable, drifts`."""
    words = [reported_result_text(level, facts.slos)]
    if level.unstable:
        words.append("unstable")
    if level.drift:
        words.append("drifts")
    return ", ".join(words)


def _open_loop(level: Level) -> Row:
    """How late requests were sent, and TTFT without that: in an open loop only."""
    row = {}
    for key in ("ttft_from_send", "schedule_lag"):
        metric = SCHEDULED[key]
        if latency := level.of_schedule[metric.field]:
            row[f"p95 {metric.name}, ms"] = Quantity.of(latency).digits
    return row


def _share(value: Any) -> str:
    share = as_float(value)
    return UNKNOWN if math.isnan(share) else f"{share:.1%}"


# Columns for what only some servers report: shown if a level has the figure.
EXTRAS: Final = {
    name: summary for name, summary in summaries(ServerFigures).items() if summary.column
}


def _extra_cell(summary: Summary, value: float) -> str:
    if summary.how == SHARE:
        return _share(value)
    return format_number(value / summary.column_unit)


def _extras(facts: ReportData, level: Level) -> Row:
    """The EXTRAS that any level has; MFU and MBU over the data sheet's peaks of a known GPU."""
    row = {}
    for name, summary in EXTRAS.items():
        if any(getattr(other.server, name) > 0 for other in facts.levels):
            row[summary.column] = _extra_cell(summary, getattr(level.server, name))
    if any(other.prefix for other in facts.levels):  # by the server, and as the plan has it
        hits = level.prefix
        row["Prefix hits, tokens"] = UNKNOWN
        if hits:
            row["Prefix hits, tokens"] = f"{hits.counted:,.0f} of {hits.expected:,.0f}"
    card = _known_card(facts)
    if "TFLOP/s" in row and card:
        row["MFU"] = _share(level.server.flops_per_s / card.flops_s)
        row["MBU"] = _share(level.server.memory_bytes_per_s / card.bandwidth_bytes_s)
    return row


def _known_card(facts: ReportData) -> GpuSpec | None:
    """The first GPU of the machine, if a word of its name is a card whose peaks are known."""
    gpus = as_mapping(facts.run.info.get("gpu")).get("gpus") or [{}]
    name = str(as_mapping(gpus[0]).get("name", ""))
    for word in name.lower().replace("-", " ").split():
        if word in GPUS:
            return GPUS[word]
    return None


def _first_columns(facts: ReportData, level: Level) -> Row:
    row = {"#": str(level.index + 1)}
    unit = facts.unit
    row[unit.title] = unit.load.digits(level.load)
    if unit.by_schedule:
        row["In flight"] = format_number(level.in_flight)
    return row


def quantile_rows(facts: ReportData) -> list[Row]:
    """Each quantile at the knee with its sampling and instrument intervals, in ms."""
    level = facts.result.at_knee
    if level is None:
        return []
    rows = []
    for key, metric in LATENCIES.items():
        latency = level.latency(key)
        for statistic in STATISTICS:
            figure = Quantity.of(latency, statistic)
            if figure.known:
                row = {"Quantile": f"{metric.name} {statistic}", "ms": figure.digits}
                row["Sampling interval (95%)"] = figure.interval or UNKNOWN
                row["Instrument interval"] = _sharp(getattr(latency, f"{statistic}_instrument"))
                rows.append(row)
    return rows


def _sharp(interval: tuple[float, float]) -> str:
    """With microseconds, because the bounds of the instrument are close together."""
    low, high = interval
    return UNKNOWN if math.isnan(low) else f"{low:,.3f} to {high:,.3f}"


def client_rows(facts: ReportData) -> list[Row]:
    """The quality of the load generator at each level."""
    rows = []
    for level in facts.levels:
        client = level.client
        if client.cpu or client.instrument_share:
            row = _first_columns(facts, level)
            largest = max(client.instrument_share.values(), default=0)
            row["Instrument share"] = _share(largest)
            row["Exact timestamps"] = _share(level.exact_share)
            row["Tokens per event"] = format_number(level.tokens_per_event)
            row["Stamped reads"] = _share(client.stamp_coverage)
            row["Turnaround, ms"] = format_number(client.turnaround_ms.mean)
            row["p99"] = format_number(client.turnaround_ms.p99)
            row["Max loop lag, ms"] = format_number(client.loop_lag_max_ms)
            row["Clock steps"] = str(client.clock_steps)
            for name, cores in client.cpu.items():
                row[f"CPU {name}"] = _share(cores)
            rows.append(row)
    return rows


def replica_rows(facts: ReportData) -> list[Row]:
    """Each replica's own figures at each level, [] with one server."""
    rows = []
    for level in facts.levels:
        shares = load_shares(level.replicas)
        for name, server in level.replicas.items():
            row = _first_columns(facts, level)
            row["Replica"] = name
            row["Load"] = _share(shares.get(name))
            row["Running"] = format_number(server.running_mean)
            row["Waiting"] = format_number(server.waiting_mean)
            row["KV cache"] = _share(server.kv_usage_mean)
            row["Requests/s"] = format_number(server.requests_per_s)
            row["Tokens/s"] = format_number(server.generation_tokens_per_s)
            rows.append(row)
    return rows


def mix_rows(facts: ReportData) -> list[Row]:
    """The latencies of each workload of a mix at each level, [] without a mix."""
    return _group_rows(facts, "Workload", {level.index: level.mix for level in facts.levels})


def name_rows(facts: ReportData) -> list[Row]:
    """The latencies of the requests of each name at each level, [] where none has one."""
    return _group_rows(facts, "Name", {level.index: level.by_name for level in facts.levels})


def _group_rows(
    facts: ReportData, kind: str, groups: Mapping[int, Mapping[str, Mapping[str, Latency]]]
) -> list[Row]:
    """A row for each group of requests; `groups`: by the number of the level, then by name."""
    shown = {"TTFT": "ttft_ms", "ITL": "itl_ms", "e2e": "e2e_ms"}
    rows = []
    for level in facts.levels:
        for name, latencies in groups[level.index].items():
            row = _first_columns(facts, level)
            row[kind] = name
            row["n"] = f"{latencies['e2e_ms'].n:,}"
            row["Failed"] = f"{latencies['e2e_ms'].n_failed:,}"
            for head, key in shown.items():
                for statistic in ("p50", "p95"):
                    row[f"{statistic} {head}, ms"] = Quantity.of(latencies[key], statistic).cell
            rows.append(row)
    return rows


def mean_part(level: Level, key: str) -> tuple[float, float, float]:
    """(mean, lower bound, upper bound) of one part, in ms."""
    split = level.ttft_split
    bounds = getattr(split, f"{key}_ms_bound") or (math.nan, math.nan)
    return getattr(split, f"{key}_ms"), *bounds


def ttft_split(facts: ReportData) -> list[Row]:
    """The breakdown in ms, with bounds in parentheses where a value is not exact."""
    rows = []
    for level in facts.split:
        split = level.ttft_split
        row = _first_columns(facts, level)
        row["n"] = f"{split.n:,}"
        total_ms, _, _ = mean_part(level, "client")
        decimals = max(decimal_places(total_ms), 0)  # the same for all parts: they add up
        for key, name in PARTS.items():
            mean_ms, low_ms, high_ms = mean_part(level, key)
            if key.startswith(APART) and math.isnan(mean_ms):  # no servers of their own prefill
                continue
            low = format_rounded(low_ms, decimals)
            high = format_rounded(high_ms, decimals)
            row[name] = format_rounded(mean_ms, decimals)
            if low != high:
                row[name] += f" ({low} to {high})"
        row["Exact"] = "yes" if split.exact else "no"
        rows.append(row)
    return rows


def ttft_buckets(facts: ReportData) -> list[Row]:
    """Quantiles of the parts, each as the histogram bucket in ms that contains it."""
    rows = []
    for level in facts.split:
        buckets = {}
        for quantile in ("p50", "p95"):
            for key, name in OBSERVED.items():
                bounds_ms = getattr(level.ttft_split, f"{key}_{quantile}_ms_bucket")
                buckets[f"{name} {quantile}"] = _bucket(bounds_ms)
        if any(bucket != UNKNOWN for bucket in buckets.values()):
            rows.append(_first_columns(facts, level) | buckets)
    return rows


def _bucket(bounds_ms: tuple[float, float] | None) -> str:
    if bounds_ms is None:
        return UNKNOWN
    low, high = bounds_ms
    return f"over {low:,.10g}" if math.isinf(high) else f"{low:,.10g} to {high:,.10g}"


def ttft_split_note(facts: ReportData) -> str:
    """How to read the breakdown of the mean TTFT."""
    exact = [level for level in facts.split if level.ttft_split.exact]
    text = (
        "Server and client are the mean TTFT as each of them measures it, over the requests sent "
        "between two scrapes of the server. The parts add up. Queue and prefill come from the "
        "server. Rest is the remainder of its TTFT: tokenizing, and the way to the engine and "
        "back. Residual is what the client measures beyond it: network, HTTP, and reading the "
        "request. Where servers of their own prefill, Server is of those that decode, and the "
        "prefill server's time comes before it."
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
    compared = []
    for tool in (facts.result.compat or {}).values():
        levels = [as_mapping(level) for level in as_mapping(tool).get("levels") or []]
        at_knee = [level for level in levels if _load_beside(level) == facts.measured_at]
        if facts.searched and at_knee:
            levels = at_knee
        compared += [_beside(facts, tool, level) for level in levels]
    return compared


def _load_beside(level: dict[str, Any]) -> Number:
    load: Number = level.get("rate_per_s") or level.get("users") or 0
    return load


def _beside(facts: ReportData, tool: dict[str, Any], level: dict[str, Any]) -> ToolTable:
    load = facts.unit.short(_load_beside(level))
    requests = count_of(int(level.get("requests") or 0), "request")
    title = f"Beside {tool.get('title')} {tool.get('version')}: {load}, {requests}"
    remarks = []
    if left_out := int(level.get("left_out") or 0):
        early = f"{count_of(left_out, 'request')} sent before the level had settled"
        remarks.append(f"{early} are in neither column; the tool counts them.")
    if note := str(tool.get("note") or ""):
        remarks.append(note)
    if level.get("approximate"):
        remarks.append(f"Approximate: {level['approximate']}.")
    return ToolTable(title, remarks, [_row(row) for row in level.get("rows") or []])


def _row(row: dict[str, Any]) -> Row:
    words = [str(row.get("name")), str(row.get("statistic") or "")]
    what = " ".join(filter(None, words))
    return {
        "In its words": f"{what}, {row.get('unit')}",
        "Ours": tool_number(as_float(row.get("ours"))),
        "Theirs": tool_number(as_float(row.get("theirs"))),
        "Why they differ": str(row.get("why") or "no difference"),
    }


def tool_number(value: float) -> str:
    """`383.8`, `48.36`, `1,041`, `inf`."""
    return format_rounded(value, decimal_places(value, digits=TOOL_DIGITS))


def tools_as_text(tables: list[ToolTable]) -> list[str]:
    lines = []
    for table in tables:
        lines += ["", f"{table.title}."]
        lines += _text_rows(table)
        for remark in table.remarks:
            lines += wrap(remark, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def _text_rows(table: ToolTable) -> list[str]:
    """All columns but the last one padded: the figures stand to the right."""
    rows = [["", "ours", "theirs", "why they differ"]]
    rows += [list(row.values()) for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for what, ours, theirs, why in rows:
        figures = f"{ours:>{widths[1]}}  {theirs:>{widths[2]}}"
        lines.append(f"  {what:<{widths[0]}}  {figures}  {why}".rstrip())
    return lines


def tools_as_markdown(tables: list[ToolTable]) -> list[str]:
    """Lines of a section for each."""
    lines = []
    for table in tables:
        lines += ["", f"**{escape_markdown(table.title)}**", ""]
        lines += markdown(table.rows, "In its words", "Why they differ")
        lines += ["", *map(escape_markdown, table.remarks)]
    return lines
