"""Latencies drawn: TTFT and ITL below, at and above the knee, and TTFT by turn of a session."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.charts.definition import (
    Axis,
    Chart,
    Color,
    Dash,
    Limit,
    Panel,
    Point,
    Scale,
    Series,
    line,
)
from harness.core.states import Decision, Verdict
from harness.metrics.latency_figures import in_window
from harness.metrics.metrics import LATENCIES, ttft
from harness.metrics.numbers import format_number, metric_name, slo_limit
from harness.metrics.token_gaps import pool_gaps
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

FAILED: Final = (Decision.failed, Verdict.missed)
MAX_CURVE_POINTS: Final = 240  # more would not be visible
MIN_MEDIAN_DIVISOR: Final = 20  # a drawing begins at this part of the lowest median
MEDIAN: Final = 0.5
CURVE_STYLES: Final = {
    "below": (Color.blue, Dash.solid),
    "knee": (Color.green, Dash.dashed),
    "above": (Color.red, Dash.dotted),
}


def distribution_charts(facts: ReportData) -> list[Chart]:
    """One each for TTFT and ITL; none where nothing was measured."""
    charts = (distribution_chart(facts, metric) for metric in ("ttft", "itl"))
    return [chart for chart in charts if chart is not None]


def chosen_levels(facts: ReportData) -> dict[str, list[Level]]:
    """The holds of the level at the knee, of the next failing one, and of one near its half."""
    at = facts.result.at_knee
    levels = facts.by_users
    if at is None:
        return {"knee": levels[-1]} if levels else {}
    chosen = {"knee": next(holds for holds in levels if holds[0].load == at.load)}
    below = [holds for holds in levels if holds[0].load < at.load]
    if below:
        chosen["below"] = min(below, key=lambda holds: abs(holds[0].load - at.load / 2))
    above = [holds for holds in levels if holds[0].load > at.load]
    failing = [holds for holds in above if any(level.result in FAILED for level in holds)]
    if above:
        chosen["above"] = (failing or above)[0]
    return {name: chosen[name] for name in CURVE_STYLES if name in chosen}


Curve = tuple["Floats", "Floats"]  # x in ms, share at most x


def ttft_curve(facts: ReportData, levels: list[Level]) -> Curve:
    """Of all requests sent in the windows; failed requests count as infinite."""
    table = facts.run.table
    seen = ttft(table)
    windows = [(level.settled_ns, level.end_ns) for level in levels]
    parts = [in_window(seen, table, "ttft", start, end).ns for start, end in windows]
    values = np.sort(np.concatenate(parts)) / MS
    n = len(values)
    rank = _drawn_ranks(n)
    # Infinite values (failed requests) are not drawn but count in n, so the curve ends below 1.
    rank = rank[np.isfinite(values[rank])]
    return values[rank], (rank + 1) / max(n, 1)


def itl_curve(facts: ReportData, levels: list[Level]) -> Curve:
    """Of all gaps that ended in the windows; gaps that never ended count as infinite."""
    windows = [(level.settled_ns, level.end_ns) for level in levels]
    gaps = pool_gaps([facts.gaps[window] for window in windows if window in facts.gaps])
    _, counts, means = gaps.histograms["ns"].totals
    rank = _drawn_ranks(gaps.finite)
    bin_of_rank = np.searchsorted(np.cumsum(counts), rank, "right")
    return means[bin_of_rank] / MS, (rank + 1) / max(gaps.n, 1)


def _drawn_ranks(n: int) -> Ints:
    """The ranks, evenly spread, of the values of n that a curve goes through."""
    spread = np.linspace(0, n - 1, min(n, MAX_CURVE_POINTS))
    return np.unique(spread.round().astype(int))


def level_curves(facts: ReportData, metric: str) -> dict[str, tuple[float, Curve]]:
    """(users, curve) of each chosen level that has observations above zero: x is logarithmic."""
    curve = {"ttft": ttft_curve, "itl": itl_curve}[metric]
    curves = {}
    for name, holds in chosen_levels(facts).items():
        x_ms, shares = curve(facts, holds)
        if (x_ms > 0).any():
            curves[name] = (holds[0].load, (x_ms, shares))
    return curves


def distribution_chart(facts: ReportData, metric: str) -> Chart | None:
    """The empirical distribution of one latency; None when there are no observations."""
    samples = level_curves(facts, metric)
    if not samples:
        return None
    series = []
    for name, (users, (x_ms, shares)) in samples.items():
        color, dash = CURVE_STYLES[name]
        if name == "above" and users not in failed_loads(facts):
            color = Color.gold
        label = facts.unit.short(users) + " (holds)" * (users == facts.knee.holds)
        points = zip(x_ms.tolist(), (100 * shares).tolist(), strict=True)
        series.append(line(label, color, points, dash=dash))
    what = "requests" if metric == "ttft" else "gaps"
    title = f"{metric_name(metric)}: share of {what} up to x ms, %"
    x = Axis("ms", unit="ms", scale=Scale.log, low=_lowest_drawn([*samples.values()]))
    panel = Panel(series, Axis(unit="%", low=0, high=100), limits=_shares_and_slos(facts, metric))
    return Chart(f"spread-{metric}", title, [panel], x)


def failed_loads(facts: ReportData) -> set[float]:
    return {level.load for level in facts.used if level.result in FAILED}


def _lowest_drawn(curves: list[tuple[float, Curve]]) -> float:
    """Not down to the gaps of nearly nothing between tokens that came in one read."""
    medians = [float(x[np.argmax(shares >= MEDIAN)]) for _, (x, shares) in curves]
    lows = [float(x[x > 0][0]) for _, (x, _) in curves]
    return max(min(medians) / MIN_MEDIAN_DIVISOR, 0.8 * min(lows))


def _shares_and_slos(facts: ReportData, metric: str) -> list[Limit]:
    """The share of p95, and the limits on this latency."""
    slos = [slo for slo in facts.slos if slo.metric == metric]
    lines = [Limit(slo.limit_ns / MS, f"SLO {slo_limit(slo)}", upright=True) for slo in slos]
    return [Limit(100 * 0.95, "p95", Color.muted, dash=Dash.solid), *lines]


# The first turns of a row; later turns are few in each level.
FIRST_TURNS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 65, 1 << 62)


Figures = tuple[int, int, int, float, float, float, float]


def turn_figures(facts: ReportData) -> list[Figures]:
    """(first and last turn, requests, mean prompt and cached tokens, p50, p95 of TTFT in ms).

    At the level that stands for the run, turns counted from 1; [] without sessions.
    """
    level = facts.result.at_knee
    table = facts.run.table
    if level is None or not (table.turn >= 0).any():
        return []
    ttft = LATENCIES["ttft"].observe(table)
    ttft = in_window(ttft, table, "ttft", level.settled_ns, level.end_ns)
    turns = table.turn[ttft.row] + 1
    found = []
    for first, after in pairwise(FIRST_TURNS):
        here = (turns >= first) & (turns < after)
        row = ttft.row[here]
        if not len(row):
            continue
        last = int(turns[here].max())
        prompt = _mean(table.prompt_tokens[row])
        cached = _mean(table.cached_tokens[row])
        p50, p95 = np.quantile(ttft.ns[here] / MS, [0.5, 0.95], method="higher").tolist()
        found.append((first, last, len(row), prompt, cached, p50, p95))
    return found


def _mean(counts: Ints) -> float:
    """Of those that are known."""
    known = counts[counts >= 0]
    return float(known.mean()) if len(known) else nan


def turn_rows(facts: ReportData) -> list[dict[str, str]]:
    """The same in words."""
    rows = []
    for first, last, n, prompt, cached, p50, p95 in turn_figures(facts):
        row = {
            "Turn": f"{first} to {last}" if last > first else f"{first}",
            "n": f"{n:,}",
            "Prompt tokens": format_number(prompt),
            "Of them cached": format_number(cached),
            "TTFT p50, ms": format_number(p50),
            "p95": format_number(p95),
        }
        rows.append(row)
    return rows


def turn_chart(facts: ReportData) -> Chart | None:
    """p95 and median by turn; None for fewer than two points."""
    found = turn_figures(facts)
    if len(found) < 2:  # noqa: PLR2004 - a line
        return None
    turns, _, counts, *_, p50_ms, p95_ms = zip(*found, strict=True)
    by_turn = zip(turns, p95_ms, counts, strict=True)
    p95_points = [Point(turn, ms, n=count) for turn, ms, count in by_turn]
    p95 = Series("p95", Color.blue, p95_points, dots=True)
    p50 = line("median", Color.muted, zip(turns, p50_ms, strict=True), dash=Dash.dotted, dots=True)
    x = Axis("turn of the session", ticks=turns)
    panel = Panel([p95, p50], Axis(unit="ms", low=0))
    return Chart("turns", "TTFT by turn, ms", [panel], x)
