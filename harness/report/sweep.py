"""What a sweep shows: throughput and latency by concurrency, and batches beside one at a time."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from harness.measure.search.power import PLATEAU
from harness.measure.search.statistics import mean_interval
from harness.measure.states import Decision, Purpose
from harness.report import tables
from harness.report.numbers import Quantity, escape_markdown, format_number
from harness.report.report_data import as_mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.result import Level
    from harness.report.report_data import ReportData

    Row = dict[str, Any]

FIGURES: Final[dict[str, Callable[[Level], float]]] = {
    "s": lambda level: level.seconds,
    "qps": lambda level: level.requests_per_s,
    "tok_s": lambda level: level.output_tokens_per_s + level.prompt_tokens_per_s,
    "output_tok_s": lambda level: level.output_tokens_per_s,
    "mean_e2e_s": lambda level: level.e2e_ms.mean / 1e3,
    "p95_e2e_s": lambda level: level.e2e_ms.p95 / 1e3,
    "gpu_util_pct": lambda level: level.gpu.util_pct_mean,
    "in_flight": lambda level: level.requests_per_s * level.e2e_ms.mean / 1e3,
}
IN_TABLE: Final = {
    "concurrency": "At once", "concurrent_s": "Batch, s", "sequential_s": "One at a time, s",
    "speedup": "Times as fast", "concurrent_qps": "Requests/s", "concurrent_tok_s": "Tokens/s",
    "concurrent_output_tok_s": "Output tokens/s", "concurrent_p95_e2e_s": "p95 e2e, s",
    "concurrent_in_flight": "In flight", "concurrent_failed": "Failed",
}  # fmt: skip
# What the GPU's utilization means, below each limit in %.
GPU_USE: Final = {
    50: "mostly idle, from too few requests or a CPU that does not keep up",
    80: "at 50 to 80% it waits for the CPU (scheduling, launches, sampling) for a fifth to a half "
    "of the time, so a faster GPU alone would gain little",
    101: "hardly ever without a kernel, whether memory or arithmetic limits it",
}
NOT_COUNTED: Final = "the server counts no tokens: output tokens are events, tok_s is not known"


def _means(levels: Sequence[Level]) -> Row:
    means: Row = {name: round(fmean(map(of, levels)), 6) for name, of in FIGURES.items()}
    return means | {"failed": sum(level.n_failed for level in levels)}


def concurrency_rows(facts: ReportData) -> list[Row]:
    """Of concurrency_sweep.csv: for each number of users the means over its measurements."""
    rows = []
    for levels in facts.by_users if facts.result.command == "sweep" else []:
        row = {"concurrency": levels[0].users, "measurements": len(levels), **_means(levels)}
        ends = [level.e2e_ms.p95_ci95 for level in levels]  # NaN: without an upper end
        row["p95_e2e_s_lo"] = min(lo for lo, _ in ends) / 1e3
        row["p95_e2e_s_hi"] = max(inf if isnan(hi) else hi for _, hi in ends) / 1e3
        rows.append(row | {"notes": NOT_COUNTED * isnan(row["tok_s"])})
    return rows


def findings(facts: ReportData) -> list[str]:
    """Where throughput levels off, the knee, where latency blows up, and the use of the GPU."""
    rows, plateau, power = concurrency_rows(facts), facts.result.plateau, facts.result.power
    if len(rows) < 2 or plateau is None or power is None:  # noqa: PLR2004 - one shows no growth
        return []
    last, at = rows[-1], next(row for row in rows if row["concurrency"] >= plateau.users)
    told = f"Throughput levels off at {plateau.users:,} users, within 10% of its peak."
    if at is last:
        told = f"Throughput still grows at {plateau.users:,} users, the highest level."
    told += f" The knee, where throughput over latency peaks, is at {power.users:,} users "
    told += f"({power.ci95[0]:,} to {power.ci95[1]:,})."
    steep = f"Up to {last['concurrency']:,} users p95 latency grows by less than throughput."
    for low, high in pairwise(rows):
        late, more = (high[x] / (low[x] or inf) for x in ("p95_e2e_s", "output_tok_s"))
        if late > more:
            sure = "" if high["p95_e2e_s_lo"] > low["p95_e2e_s_hi"] else " (intervals overlap)"
            steep = (
                f"Latency blows up from {low['concurrency']:,} to {high['concurrency']:,} users: "
                f"p95 end-to-end latency times {format_number(late)}{sure} for tokens/s times "
                f"{format_number(more)}."
            )
            break
    use, gpu = at["gpu_util_pct"], []
    if not isnan(use):
        means = next(text for limit, text in GPU_USE.items() if use < limit)
        gpu = [f"GPU utilization at {at['concurrency']:,} users is {use:.0f}%: {means}."]
    return [told, steep, *gpu]


def batches(facts: ReportData) -> list[Row]:
    """Of batching.json: means over the repeats of which both batches are complete and valid."""
    size = int(as_mapping(facts.config.get("drive")).get("batch") or 0)
    repeats: list[dict[tuple[Purpose, int], Level]] = []
    for level in facts.levels if size else ():
        if level.purpose == Purpose.sequential:
            repeats.append({})
        if level.decision == Decision.held:
            repeats[-1][level.purpose, level.users] = level
    rows: list[Row] = []
    alone = Purpose.sequential, 1
    for key in sorted({key for one in repeats for key in one} - {alone}):
        pairs = [(one[alone], one[key]) for one in repeats if alone in one and key in one]
        if not pairs:
            continue
        sides = dict(zip(("sequential", "concurrent"), zip(*pairs, strict=True), strict=True))
        means = {side: _means(levels) for side, levels in sides.items()}
        row: Row = {"n": size, "concurrency": key[1]}
        for x in means["concurrent"]:
            row |= {f"{side}_{x}": of_side[x] for side, of_side in means.items()}
        for side, levels in sides.items():
            row[f"{side}_s_ci95"] = mean_interval([level.seconds for level in levels])
        ratios = [one.seconds / other.seconds for one, other in pairs]
        row |= {"speedup": fmean(ratios), "speedup_ci95": mean_interval(ratios)}
        rows.append(row | {"repeats": len(pairs)})
    return rows


def batch_table(facts: ReportData) -> list[tables.Row]:
    """The same for people."""
    return [
        {name: _cell(row[x], row.get(f"{x}_ci95", ())) for x, name in IN_TABLE.items()}
        for row in batches(facts)
    ]


def _cell(value: float, interval: tuple[float, ...] = ()) -> str:
    return f"{value:,}" if isinstance(value, int) else Quantity(value, *interval).cell


def rules_of_thumb(facts: ReportData) -> list[str]:
    """What the batches advise; [] without any."""
    if not (rows := batches(facts)):
        return []
    most = PLATEAU * max(row["concurrent_output_tok_s"] for row in rows)
    row = next(row for row in rows if row["concurrent_output_tok_s"] >= most)
    took, before = (format_number(row[f"{x}_s"]) for x in ("concurrent", "sequential"))
    told = (
        f"Send {row['concurrency']:,} at once: {row['n']:,} requests take {took} s in place of "
        f"{before} s one at a time, {Quantity(row['speedup'], *row['speedup_ci95']).cell} times as "
        "fast and within 10% of the most tokens/s.\n"
        f"Of {rows[-1]['concurrency']:,}, {format_number(rows[-1]['concurrent_in_flight'])} were in "
        "flight on average: fewer are left at the end, so a larger batch gains more."
    )
    if rows[0]["concurrency"] == 1:
        told += (
            "\n1 at once is one at a time again, and was "
            f"{format_number(rows[0]['speedup'])} times as fast: ignore differences like that."
        )
    return told.splitlines()


def batching_benchmark(facts: ReportData) -> str:
    """batching_benchmark.md."""
    rows = batches(facts)
    n, simulated = min(row["repeats"] for row in rows), facts.result.target.label
    note = (
        f"Intervals are 95%, Student's t over {n} repeats that took turns: wide, because a few "
        "repeats say little of their own spread. They show what varied within these minutes, not "
        "between days, and nothing of rare events."
    )
    rules = [f"- {escape_markdown(text)}" for text in rules_of_thumb(facts) + findings(facts)]
    lines = [f"# {rows[0]['n']:,} requests as one batch{f' ({simulated})' * bool(simulated)}", ""]
    lines += [*tables.markdown(batch_table(facts)), "", "Tokens/s counts prompt and output tokens."]
    lines += ["", "## Rules of thumb", "", *rules, "", "## What the repeats show", ""]
    return "\n".join([*lines, note if n > 1 else "One repeat shows no spread; try 3.", ""])
