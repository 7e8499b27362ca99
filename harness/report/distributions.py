"""The distributions of TTFT and ITL below, at and above the knee."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.latency_figures import in_window
from harness.measure.metrics import ttft
from harness.measure.records.token_gaps import pool_gaps
from harness.measure.states import Decision, Verdict
from harness.report.curves import HEIGHT, WIDTH, log_ticks
from harness.report.numbers import metric_name, slo_limit
from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, MUTED, PAPER, RED, drawing, to_svg
from harness.units import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.measure.result import Level
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


Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]"]  # x in ms, share at most x


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
        axes.annotate("p95", (1.01, 0.95), xycoords=("axes fraction", "data"), ha="left",
                      va="center", fontsize=11, color=MUTED)  # fmt: skip
        for name, (users, (x, y)) in samples.items():
            color, dash = CURVE_STYLES[name]
            if name == "above" and users not in failed:
                color = GOLD
            label = facts.level_text(users, facts.who) + (
                " (holds)" if users == facts.knee.holds else ""
            )
            axes.plot(x, y, color=color, linestyle=dash, linewidth=2, label=label)
        for slo in facts.slos:
            if slo.metric == metric:
                axes.axvline(slo.limit_ns / MS, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
                axes.annotate(f"SLO {slo_limit(slo)}", (slo.limit_ns / MS, 0.02), rotation=90,
                              va="bottom", ha="center", fontsize=11,
                              bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
        # not down to the gaps of nearly nothing between tokens that came in one read
        middles = [float(x[np.argmax(y >= 0.5)]) for _, (x, y) in samples.values()]  # noqa: PLR2004
        lows = [float(x[x > 0][0]) for _, (x, _) in samples.values()]
        axes.set_xlim(left=max(min(middles) / MIN_MEDIAN_DIVISOR, 0.8 * min(lows)))
        log_ticks(axes.xaxis)
        # A frame in the color of the page keeps the p95 line from striking through the names.
        axes.legend(loc="best", handlelength=2.4, frameon=True, facecolor=PAPER, edgecolor="none")
        return to_svg(figure, f"spread-{metric}", title, right=2 * LINE)
