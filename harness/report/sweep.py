"""What a sweep shows: throughput and latency by concurrency, and batches beside one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Decision, Purpose
from harness.errors import one_line
from harness.metrics.numbers import Quantity, escape_markdown, format_number
from harness.metrics.statistics import mean_interval
from harness.report import tables
from harness.report.remarks import sweet_spot_sentence
from harness.search.power import PLATEAU

if TYPE_CHECKING:
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

    Row = dict[str, Any]

FIGURES: Final[dict[str, Callable[[Level], float]]] = {
    "s": lambda level: level.seconds,
    "qps": lambda level: level.requests_per_s,
    "tok_s": lambda level: level.output_tokens_per_s + level.prompt_tokens_per_s,
    "output_tok_s": lambda level: level.output_tokens_per_s,
    "mean_e2e_s": lambda level: round(level.e2e_ms.mean / 1e3, 6),
    "p95_e2e_s": lambda level: round(level.e2e_ms.p95 / 1e3, 6),
    "gpu_util_pct": lambda level: level.gpu.util_pct_mean,
    "in_flight": lambda level: level.requests_per_s * level.e2e_ms.mean / 1e3,
}
# What the GPU's utilization means, below each limit in %.
GPU_USE: Final = {
    50: "mostly idle, from too few requests or a CPU that does not keep up",
    80: "at 50 to 80% it waits for the CPU (scheduling, launches, sampling) for a fifth to a half "
    "of the time, so a faster GPU alone would gain little",
    101: "hardly ever without a kernel, whether memory or arithmetic limits it",
}
# Heads of the table of batches -> their figures.
BATCH_COLUMNS: Final = {
    "Batch, s": "concurrent_s",
    "One at a time, s": "sequential_s",
    "Times as fast": "speedup",
    "Requests/s": "concurrent_qps",
    "Tokens/s": "concurrent_tok_s",
    "Output tokens/s": "concurrent_output_tok_s",
    "p95 e2e, s": "concurrent_p95_e2e_s",
    "In flight": "concurrent_in_flight",
}
NOTED_RISE: Final = 1.5  # of the p95 from one level to the next
LEAST_PERCENT: Final = 0.005  # a share that rounds to one
NOT_COUNTED: Final = "the server counts no tokens: output tokens are events, tok_s is not known"
WHAT_REPEATS_SHOW: Final = (
    "Intervals are 95%, Student's t over the repeats, which took turns: wide, as a few repeats say "
    "little of their own spread, and none for a single one. They show what varied within these "
    "minutes, not between days, and nothing of rare events. Tokens/s is of prompt and output."
)


def _means(levels: Sequence[Level]) -> Row:
    means: Row = {}
    intervals: Row = {}
    for name, figure_of in FIGURES.items():
        values = [figure_of(level) for level in levels]
        means[name] = round(fmean(values), 6)
        interval = mean_interval(values)
        intervals[f"{name}_ci95"] = [round(end, 6) for end in interval]
    means["failed"] = sum(level.n_failed for level in levels)
    return means | intervals


def concurrency_rows(facts: ReportData) -> list[Row]:
    """Of concurrency_sweep.csv: for each number of users the means over its valid measurements.

    A level without one has no figures, and its reason in `notes`.
    """
    if facts.kind.searches or not facts.kind.spans_loads:
        return []
    load_column = facts.unit.load.column
    rows: list[Row] = []
    before: Row = {}  # the level before that has figures
    for load in sorted({level.load for level in facts.levels}):
        measurements = [level for level in facts.levels if level.load == load]
        used = [level for level in measurements if level.usable]
        row: Row = {load_column: load, "measurements": len(used), **_figures(used)}
        notes = _notes(facts, row, before, measurements)
        row["notes"] = "; ".join(notes)
        rows.append(row)
        if used:
            before = row
    return rows


def _figures(used: Sequence[Level]) -> Row:
    """Of the measurements of one level that may be used; {} where there is none."""
    if not used:
        return {}
    row = _means(used)
    lower_ends_ms = []
    upper_ends_ms = []
    for level in used:
        low_ms, high_ms = level.e2e_ms.p95_ci95
        lower_ends_ms.append(low_ms)
        upper_ends_ms.append(inf if isnan(high_ms) else high_ms)  # NaN: without an upper end
    row["p95_e2e_s_lo"] = round(min(lower_ends_ms) / 1e3, 6)
    row["p95_e2e_s_hi"] = round(max(upper_ends_ms) / 1e3, 6)
    return row


def _notes(facts: ReportData, row: Row, before: Row, measurements: Sequence[Level]) -> list[str]:
    """What a reader of the row would want to know: first what is wrong with it."""
    notes = []
    invalid = [level for level in measurements if not level.usable]
    used = [level for level in measurements if level.usable]
    if invalid:
        how_many = f" ({len(invalid)} of {len(measurements)})" if used else ""
        reason = invalid[0].reason.rstrip(".")
        notes.append(one_line(f"invalid{how_many}: {reason}"))
    if not used:
        return notes
    requests = 0
    for level in used:
        requests += sum(level.outcomes.values())
    failed = row["failed"] / max(requests, 1)
    if failed:
        notes.append(f"errors {failed:.0%}" if failed >= LEAST_PERCENT else "errors below 1%")
    if before and (rise := _rise(row, before)) >= NOTED_RISE:
        notes.append(f"p95 {rise:.1f} times the level before")
    plateau = facts.result.plateau
    highest = max(level.load for level in facts.used)
    if plateau is not None and plateau.users == measurements[0].load < highest:
        notes.append("levels off here")
    if isnan(row["tok_s"]):
        notes.append(NOT_COUNTED)
    return notes


def _rise(row: Row, before: Row) -> float:
    """The p95 end-to-end latency over that of the level before; 0: one of them is not known."""
    now_s = row["p95_e2e_s"]
    then_s = before["p95_e2e_s"]
    if isnan(now_s) or not then_s > 0:  # NaN is not, either
        return 0.0
    return float(now_s / then_s)


def findings(facts: ReportData) -> list[str]:
    """Where throughput levels off, the knee, where latency blows up, and the use of the GPU."""
    rows = [row for row in concurrency_rows(facts) if row["measurements"]]
    plateau = facts.result.plateau
    power = facts.result.power
    if len(rows) < 2 or plateau is None or power is None:  # noqa: PLR2004 - one shows no growth
        return []
    row_there = next(row for row in rows if row["concurrency"] >= plateau.users)
    growth = "levels off, within 10% of its peak,"
    if row_there is rows[-1]:
        growth = "still grows"
    knee = f"{power.users:,} ({power.ci95[0]:,} to {power.ci95[1]:,})"
    sentences = [
        f"Throughput {growth} at {plateau.users:,} users.",
        f"The knee, where throughput over latency peaks, is at {knee} users.",
    ]
    if sweet_spot := sweet_spot_sentence(facts):
        sentences.append(sweet_spot)
    sentences.append(_blow_up_sentence(rows))
    if not isnan(row_there["gpu_util_pct"]):
        sentences.append(_gpu_sentence(row_there))
    return sentences


def _blow_up_sentence(rows: Sequence[Row]) -> str:
    """The first step at which latency grows by more than throughput."""
    for low, high in pairwise(rows):
        slower = _growth(low, high, "p95_e2e_s")
        more_tokens = _growth(low, high, "output_tok_s")
        if slower > more_tokens:
            where = f"from {low['concurrency']:,} to {high['concurrency']:,} users"
            latency = f"{format_number(slower)} times the p95 end-to-end latency"
            if not high["p95_e2e_s_lo"] > low["p95_e2e_s_hi"]:
                latency += " (intervals overlap)"
            gain = f"{format_number(more_tokens)} times the tokens/s"
            return f"Latency blows up {where}: {latency} for {gain}."
    return "At every step latency grows by less than throughput."


def _growth(low: Row, high: Row, figure: str) -> float:
    """The figure as a multiple of that of the lower level; 0 where that one has none."""
    return float(high[figure] / (low[figure] or inf))


def _gpu_sentence(row: Row) -> str:
    use_pct = row["gpu_util_pct"]
    meaning = next(text for limit_pct, text in GPU_USE.items() if use_pct < limit_pct)
    return f"GPU utilization at {row['concurrency']:,} users is {use_pct:.0f}%: {meaning}."


def batches(facts: ReportData) -> list[Row]:
    """Of batching.json: means over the batches that are complete and valid."""
    done = [level for level in facts.levels if level.decision == Decision.held]
    alone = [level for level in done if level.purpose == Purpose.sequential]
    if not alone:
        return []
    by_users: dict[int, list[Level]] = {}
    for level in done:
        if level.purpose == Purpose.batch:
            by_users.setdefault(level.users, []).append(level)
    sequential = _means(alone)
    rows = []
    for users in sorted(by_users):
        batch = by_users[users]
        concurrent = _means(batch)
        n_requests = sum(batch[0].outcomes.values())
        row: Row = {"n": n_requests, "concurrency": users}
        for figure in concurrent:
            row[f"sequential_{figure}"] = sequential[figure]
            row[f"concurrent_{figure}"] = concurrent[figure]
        speedup = row["sequential_s"] / row["concurrent_s"]
        row["speedup"] = round(speedup, 4)
        row["repeats"] = len(batch)
        rows.append(row)
    return rows


def batch_table(facts: ReportData) -> list[tables.Row]:
    """The same for people."""
    table = []
    for row in batches(facts):
        cells = {"At once": f"{row['concurrency']:,}"}
        for head, figure in BATCH_COLUMNS.items():
            cells[head] = _cell(row, figure)
        cells["Failed"] = f"{row['concurrent_failed']:,}"
        table.append(cells)
    return table


def _cell(row: Row, figure: str) -> str:
    """With its interval, whose lower end is no less than zero: times and rates have no sign."""
    if f"{figure}_ci95" not in row:  # the speedup
        return Quantity(row[figure]).cell
    low, high = row[f"{figure}_ci95"]
    return Quantity(row[figure], max(low, 0.0), high).cell


def rules_of_thumb(facts: ReportData) -> list[str]:
    """What the batches advise; [] without any."""
    rows = batches(facts)
    if not rows:
        return []
    highest_tok_s = max(row["concurrent_output_tok_s"] for row in rows)
    enough_tok_s = PLATEAU * highest_tok_s
    advised = next(row for row in rows if row["concurrent_output_tok_s"] >= enough_tok_s)
    at_once_s = format_number(advised["concurrent_s"])
    one_at_a_time_s = format_number(advised["sequential_s"])
    speedup = format_number(advised["speedup"])
    advice = (
        f"Send {advised['concurrency']:,} at once: {advised['n']:,} requests take {at_once_s} s in "
        f"place of {one_at_a_time_s} s one at a time ({speedup} times as fast, within 10% of the "
        "most tokens/s)."
    )
    smallest = rows[0]
    largest = rows[-1]
    in_flight = format_number(largest["concurrent_in_flight"])
    larger = (
        f"With {largest['concurrency']:,} at once, {in_flight} were in flight on average: fewer "
        "are left at the end, so a larger batch gains more."
    )
    sentences = [advice, larger]
    if smallest["concurrency"] == 1:
        again = format_number(smallest["speedup"])
        sentences.append(
            f"With 1 at once the batch repeats one at a time and was {again} times as fast: what "
            "differs there is noise."
        )
    return sentences


def batching_benchmark(facts: ReportData) -> str:
    """batching_benchmark.md."""
    n = batches(facts)[0]["n"]
    title = f"# {n:,} requests as one batch"
    if facts.result.target.label:
        title += f" ({facts.result.target.label})"
    lines = [title, ""]
    lines += [*tables.markdown(batch_table(facts)), ""]
    lines += ["## Rules of thumb", ""]
    lines += [f"- {escape_markdown(text)}" for text in rules_of_thumb(facts) + findings(facts)]
    lines += ["", "## What the repeats show", ""]
    lines += [WHAT_REPEATS_SHOW, ""]
    return "\n".join(lines)
