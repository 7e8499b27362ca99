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
NOTED_RISE: Final = 1.5  # of the p95 from one level to the next
LEAST_PERCENT: Final = 0.005  # a share that rounds to one
NOT_COUNTED: Final = "the server counts no tokens: output tokens are events, tok_s is not known"
WHAT_REPEATS_SHOW: Final = (
    "Intervals are 95%, Student's t over the repeats, which took turns: wide, as a few repeats say "
    "little of their own spread, and none for a single one. They show what varied within these "
    "minutes, not between days, and nothing of rare events. Tokens/s is of prompt and output."
)


def _means(levels: Sequence[Level]) -> Row:
    values = {name: [of(level) for level in levels] for name, of in FIGURES.items()}
    means: Row = {name: round(fmean(each), 6) for name, each in values.items()}
    means |= {"failed": sum(level.n_failed for level in levels)}
    for name, each in values.items():
        means[f"{name}_ci95"] = [round(end, 6) for end in mean_interval(each)]
    return means


def concurrency_rows(facts: ReportData) -> list[Row]:
    """Of concurrency_sweep.csv: for each number of users the means over its valid measurements.

    A level without one has no figures, and its reason in `notes`.
    """
    if facts.result.command != "sweep":
        return []
    load = "rate_per_s" if facts.is_rate else "concurrency"
    rows: list[Row] = []
    before: Row = {}  # the level before that has figures
    for load_of_level in sorted({level.load for level in facts.levels}):
        every = [level for level in facts.levels if level.load == load_of_level]
        used = [level for level in every if level.usable]
        row: Row = {load: load_of_level, "measurements": len(used), **_figures(used)}
        row["notes"] = "; ".join(_notes(facts, row, before, every))
        rows.append(row)
        before = row if used else before
    return rows


def _figures(used: Sequence[Level]) -> Row:
    """Of the measurements of one level that may be used; {} where there is none."""
    if not used:
        return {}
    ends = [level.e2e_ms.p95_ci95 for level in used]  # NaN: without an upper end
    row = _means(used)
    row["p95_e2e_s_lo"] = round(min(lo for lo, _ in ends) / 1e3, 6)
    row["p95_e2e_s_hi"] = round(max(inf if isnan(hi) else hi for _, hi in ends) / 1e3, 6)
    return row


def _notes(facts: ReportData, row: Row, before: Row, every: Sequence[Level]) -> list[str]:
    """What a reader of the row would want to know: first what is wrong with it."""
    notes = []
    invalid = [level for level in every if not level.usable]
    if invalid:
        some = f" ({len(invalid)} of {len(every)})" if len(invalid) < len(every) else ""
        notes.append(one_line(f"invalid{some}: {invalid[0].reason.rstrip('.')}"))
    used = [level for level in every if level.usable]
    if not used:
        return notes
    failed = row["failed"] / max(sum(sum(level.outcomes.values()) for level in used), 1)
    if failed:
        notes.append(f"errors {failed:.0%}" if failed >= LEAST_PERCENT else "errors below 1%")
    if before and (rise := _rise(row, before)) >= NOTED_RISE:
        notes.append(f"p95 {rise:.1f} times the level before")
    plateau = facts.result.plateau
    highest = max(level.load for level in facts.used)
    if plateau is not None and plateau.users == every[0].load < highest:
        notes.append("levels off here")
    if isnan(row["tok_s"]):
        notes.append(NOT_COUNTED)
    return notes


def _rise(row: Row, before: Row) -> float:
    """The p95 end-to-end latency over that of the level before; 0: one of them is not known."""
    now_s, then_s = row["p95_e2e_s"], before["p95_e2e_s"]
    return float(now_s / then_s) if then_s > 0 and not isnan(now_s) else 0.0


def findings(facts: ReportData) -> list[str]:
    """Where throughput levels off, the knee, where latency blows up, and the use of the GPU."""
    rows = [row for row in concurrency_rows(facts) if row["measurements"]]
    plateau, power = facts.result.plateau, facts.result.power
    if len(rows) < 2 or plateau is None or power is None:  # noqa: PLR2004 - one shows no growth
        return []
    at = next(row for row in rows if row["concurrency"] >= plateau.users)
    flat = "still grows" if at is rows[-1] else "levels off, within 10% of its peak,"
    knee = f"{power.users:,} ({power.ci95[0]:,} to {power.ci95[1]:,})"
    told = [f"Throughput {flat} at {plateau.users:,} users."]
    told.append(f"The knee, where throughput over latency peaks, is at {knee} users.")
    told += filter(None, [sweet_spot_sentence(facts)])
    for low, high in pairwise(rows):
        late, more = (high[x] / (low[x] or inf) for x in ("p95_e2e_s", "output_tok_s"))
        if late > more:
            sure = "" if high["p95_e2e_s_lo"] > low["p95_e2e_s_hi"] else " (intervals overlap)"
            where = f"from {low['concurrency']:,} to {high['concurrency']:,} users"
            growth = f"{format_number(late)} times the p95 end-to-end latency{sure}"
            gain = f"{format_number(more)} times the tokens/s"
            told.append(f"Latency blows up {where}: {growth} for {gain}.")
            break
    else:
        told.append("At every step latency grows by less than throughput.")
    if not isnan(use := at["gpu_util_pct"]):
        means = next(text for limit, text in GPU_USE.items() if use < limit)
        told.append(f"GPU utilization at {at['concurrency']:,} users is {use:.0f}%: {means}.")
    return told


def batches(facts: ReportData) -> list[Row]:
    """Of batching.json: means over the batches that are complete and valid."""
    done = [level for level in facts.levels if level.decision == Decision.held]
    rows, alone = [], [level for level in done if level.purpose == Purpose.sequential]
    at_once = {level.users for level in done if level.purpose == Purpose.batch and alone}
    for users in sorted(at_once):
        batch = [one for one in done if (one.users, one.purpose) == (users, Purpose.batch)]
        means = {"sequential": _means(alone), "concurrent": _means(batch)}
        row: Row = {"n": sum(batch[0].outcomes.values()), "concurrency": users}
        for x in means["concurrent"]:
            row |= {f"{side}_{x}": of_side[x] for side, of_side in means.items()}
        row["speedup"] = round(row["sequential_s"] / row["concurrent_s"], 4)
        rows.append(row | {"repeats": len(batch)})
    return rows


def batch_table(facts: ReportData) -> list[tables.Row]:
    """The same for people."""
    columns = {"Batch, s": "concurrent_s", "One at a time, s": "sequential_s"}
    columns |= {"Times as fast": "speedup", "Requests/s": "concurrent_qps"}
    columns |= {"Tokens/s": "concurrent_tok_s", "Output tokens/s": "concurrent_output_tok_s"}
    columns |= {"p95 e2e, s": "concurrent_p95_e2e_s", "In flight": "concurrent_in_flight"}
    return [
        {"At once": f"{row['concurrency']:,}"}
        | {name: _cell(row, x) for name, x in columns.items()}
        | {"Failed": f"{row['concurrent_failed']:,}"}
        for row in batches(facts)
    ]


def _cell(row: Row, figure: str) -> str:
    """With its interval, whose lower end is no less than zero: times and rates have no sign."""
    if f"{figure}_ci95" not in row:  # the speedup
        return Quantity(row[figure]).cell
    low, high = row[f"{figure}_ci95"]
    return Quantity(row[figure], max(low, 0.0), high).cell


def rules_of_thumb(facts: ReportData) -> list[str]:
    """What the batches advise; [] without any."""
    if not (rows := batches(facts)):
        return []
    most = PLATEAU * max(row["concurrent_output_tok_s"] for row in rows)
    row, last = next(row for row in rows if row["concurrent_output_tok_s"] >= most), rows[-1]
    took, before = (format_number(row[f"{x}_s"]) for x in ("concurrent", "sequential"))
    faster, again = (format_number(one["speedup"]) for one in (row, rows[0]))
    told = f"Send {row['concurrency']:,} at once: {row['n']:,} requests take {took} s in place of "
    told += f"{before} s one at a time ({faster} times as fast, within 10% of the most tokens/s)."
    in_flight = format_number(last["concurrent_in_flight"])
    told += (
        f"\nWith {last['concurrency']:,} at once, {in_flight} were in flight on average: fewer are "
    )
    told += "left at the end, so a larger batch gains more."
    if rows[0]["concurrency"] == 1:
        told += (
            f"\nWith 1 at once the batch repeats one at a time and was {again} times as fast: what "
        )
        told += "differs there is noise."
    return told.splitlines()


def batching_benchmark(facts: ReportData) -> str:
    """batching_benchmark.md."""
    simulated, n = facts.result.target.label, batches(facts)[0]["n"]
    rules = [f"- {escape_markdown(text)}" for text in rules_of_thumb(facts) + findings(facts)]
    lines = [f"# {n:,} requests as one batch{f' ({simulated})' * bool(simulated)}", ""]
    lines += [*tables.markdown(batch_table(facts)), "", "## Rules of thumb", "", *rules, ""]
    return "\n".join([*lines, "## What the repeats show", "", WHAT_REPEATS_SHOW, ""])
