"""Latencies drawn: TTFT and ITL below, at and above the knee, and TTFT by turn of a session."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.states import Decision, Verdict
from harness.metrics.latency_figures import in_window
from harness.metrics.metrics import LATENCIES, ttft
from harness.metrics.numbers import format_number, metric_name, slo_limit
from harness.metrics.token_gaps import pool_gaps
from harness.report.curves import HEIGHT, WIDTH, log_ticks
from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, MUTED, PAPER, RED, drawing, to_svg
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

FAILED: Final = (Decision.failed, Verdict.missed)
MAX_CURVE_POINTS: Final = 240  # more would not be visible
MIN_MEDIAN_DIVISOR: Final = 20  # a drawing begins at this part of the lowest median
CURVE_STYLES: Final = {"below": (BLUE, "-"), "knee": (GREEN, "--"), "above": (RED, ":")}


def distribution_charts(facts: ReportData) -> list[str]:
    """One SVG each for TTFT and ITL; none where nothing was measured."""
    return [svg for metric in ("ttft", "itl") if (svg := distribution_chart(facts, metric))]


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
    above = [s for s in levels if s[0].load > at.load and any(x.result in FAILED for x in s)]
    above = above or [holds for holds in levels if holds[0].load > at.load]
    if above:
        chosen["above"] = above[0]
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
    rank = np.unique(np.linspace(0, n - 1, min(n, MAX_CURVE_POINTS)).round().astype(int))
    # Infinite values (failed requests) are not drawn but count in n, so the curve ends below 1.
    rank = rank[np.isfinite(values[rank])]
    return values[rank], (rank + 1) / max(n, 1)


def itl_curve(facts: ReportData, levels: list[Level]) -> Curve:
    """Of all gaps that ended in the windows; gaps that never ended count as infinite."""
    windows = [(level.settled_ns, level.end_ns) for level in levels]
    gaps = pool_gaps([facts.gaps[window] for window in windows if window in facts.gaps])
    _, counts, means = gaps.histograms["ns"].totals
    n = gaps.finite
    rank = np.unique(np.linspace(0, n - 1, min(n, MAX_CURVE_POINTS)).round().astype(int))
    x = means[np.searchsorted(np.cumsum(counts), rank, "right")] / MS
    return x, (rank + 1) / max(gaps.n, 1)


def level_curves(facts: ReportData, metric: str) -> dict[str, tuple[float, Curve]]:
    """(users, curve) of each chosen level that has observations above zero: x is logarithmic."""
    curve = {"ttft": ttft_curve, "itl": itl_curve}[metric]
    levels = chosen_levels(facts)
    found = {name: (holds[0].load, curve(facts, holds)) for name, holds in levels.items()}
    return {name: (users, c) for name, (users, c) in found.items() if (c[0] > 0).any()}


def distribution_chart(facts: ReportData, metric: str) -> str:
    """The empirical distribution of one latency; "" when there are no observations."""
    samples = level_curves(facts, metric)
    if not samples:
        return ""
    failed = {level.load for level in facts.used if level.result in FAILED}
    what = "requests" if metric == "ttft" else "gaps"
    title = f"{metric_name(metric)}: share of {what} up to x ms"
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("ms")
        axes.set_ylim(0, 1.02)
        axes.axhline(0.95, color=MUTED, linewidth=1)
        axes.annotate(
            "p95",
            (1.01, 0.95),
            xycoords=("axes fraction", "data"),
            ha="left",
            va="center",
            fontsize=11,
            color=MUTED,
        )
        for name, (users, (x, y)) in samples.items():
            color, dash = CURVE_STYLES[name]
            if name == "above" and users not in failed:
                color = GOLD
            label = facts.unit.short(users) + " (holds)" * (users == facts.knee.holds)
            axes.plot(x, y, color=color, linestyle=dash, linewidth=2, label=label)
        for slo in facts.slos:
            if slo.metric == metric:
                axes.axvline(slo.limit_ns / MS, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
                axes.annotate(
                    f"SLO {slo_limit(slo)}",
                    (slo.limit_ns / MS, 0.02),
                    rotation=90,
                    va="bottom",
                    ha="center",
                    fontsize=11,
                    bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
                )
        # not down to the gaps of nearly nothing between tokens that came in one read
        middles = [float(x[np.argmax(y >= 0.5)]) for _, (x, y) in samples.values()]  # noqa: PLR2004
        lows = [float(x[x > 0][0]) for _, (x, _) in samples.values()]
        axes.set_xlim(left=max(min(middles) / MIN_MEDIAN_DIVISOR, 0.8 * min(lows)))
        log_ticks(axes.xaxis)
        # A frame in the color of the page keeps the p95 line from striking through the names.
        axes.legend(loc="best", handlelength=2.4, frameon=True, facecolor=PAPER, edgecolor="none")
        return to_svg(figure, f"spread-{metric}", title, right=2 * LINE)


# The first turns of a row; later turns are few in each level.
FIRST_TURNS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 65, 1 << 62)


Figures = tuple[int, int, int, float, float, float, float]


def turn_figures(facts: ReportData) -> list[Figures]:
    """(first and last turn, requests, mean prompt and cached tokens, p50, p95 of TTFT in ms).

    At the level that stands for the run, turns counted from 1; [] without sessions.
    """
    level, table = facts.result.at_knee, facts.run.table
    if level is None or not (table.turn >= 0).any():
        return []
    ttft = LATENCIES["ttft"].observe(table)
    ttft = in_window(ttft, table, "ttft", level.settled_ns, level.end_ns)
    turns, found = table.turn[ttft.row] + 1, []
    for first, after in pairwise(FIRST_TURNS):
        here = (turns >= first) & (turns < after)
        row, ms = ttft.row[here], ttft.ns[here] / MS
        if len(row):
            prompt, cached = (_mean(c[row]) for c in (table.prompt_tokens, table.cached_tokens))
            p50, p95 = np.quantile(ms, [0.5, 0.95], method="higher").tolist()
            found.append((first, int(turns[here].max()), len(ms), prompt, cached, p50, p95))
    return found


def _mean(counts: Ints) -> float:
    return float(counts[counts >= 0].mean()) if (counts >= 0).any() else nan


def turn_rows(facts: ReportData) -> list[dict[str, str]]:
    """The same in words."""
    heads = "Prompt tokens", "Of them cached", "TTFT p50, ms", "p95"
    return [
        {"Turn": f"{first}" + f" to {last}" * (last > first), "n": f"{n:,}"}
        | dict(zip(heads, map(format_number, figures), strict=True))
        for first, last, n, *figures in turn_figures(facts)
    ]


def turn_chart(facts: ReportData) -> str:
    """p95 and median by turn; "" for fewer than two points."""
    found, title = turn_figures(facts), "TTFT by turn, ms: p95 and median"
    if len(found) < 2:  # noqa: PLR2004 - a line
        return ""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - half a second

    turn, *_, p50, p95 = zip(*found, strict=True)
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("turn of the session")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.plot(turn, p95, color=BLUE, marker="o")
        axes.plot(turn, p50, color=MUTED, linestyle=":", marker=".")
        axes.set_ylim(bottom=0)
        return to_svg(figure, "turns", title)
