"""Throughput, goodput and p95 latencies against users, with the knee, its interval and the SLOs.

One chart is wide: the latency that decides, with the knee in the middle. A point whose interval is
wide or has no upper end is hollow, so every level has its p95 and shows how certain it is.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from harness.charts.by_level import (
    CONFIRMED,
    NEIGHBORHOOD,
    Held,
    KneeMarks,
    by_level,
    latency_axis,
    level_chart,
    level_panel,
    loads_axis,
    means,
    neighborhood,
)
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
    Shape,
    line,
)
from harness.metrics.metrics import LATENCIES
from harness.metrics.numbers import Quantity, slo_limit, statistic_name
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.metrics.result import KneeCurve, Level
    from harness.metrics.slo import Slo
    from harness.report.report_data import ReportData

FIGURES: Final = {
    "throughput": "Output tokens/s",
    "goodput": "Requests/s that met every SLO",
    "gpu": "GPU utilization, %",
}
PANELS: Final = ("throughput", "goodput", "ttft", "itl", "e2e", "gpu")
LATENCY_PANELS: Final = tuple(name for name in PANELS if name in LATENCIES)
FEWEST_POINTS: Final = 2  # of a line


def curve_charts(facts: ReportData) -> list[Chart]:
    """None of a single load, and panels without any figure are left out."""
    if len({level.load for level in facts.levels}) == 1:
        return []
    return [chart for name in PANELS if (chart := curve_chart(facts, name)) is not None]


def knee_marks(facts: ReportData) -> KneeMarks:
    knee = facts.knee
    low, high = facts.result.knee_band
    return KneeMarks(knee.estimate, low, high, knee.holds, knee.fails_by)


def metric_at_knee(facts: ReportData) -> str:
    """The latency closest to its limit around the knee; TTFT without an SLO; "" without a knee."""
    at = facts.knee.estimate or facts.knee.holds
    if not at:
        return ""
    near = [level for level in facts.used if abs(level.load - at) <= NEIGHBORHOOD * at]
    on_p95 = [one for one in facts.slos if one.metric in LATENCY_PANELS and one.statistic == "p95"]

    def highest_ratio(slo: Slo) -> float:
        ratios = [level.observed(slo) * MS / slo.limit_ns for level in near]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        return max(known, default=0)

    return max(on_p95, key=highest_ratio).metric if on_p95 else "ttft"


def around_knee(facts: ReportData) -> Chart | None:
    """The p95 of the latency that decides, wide; None where few levels were held near the knee."""
    metric = metric_at_knee(facts)
    if not metric:
        return None
    held = _held(facts, _p95_of(metric))
    marks = knee_marks(facts)
    if neighborhood(held, marks) is None:
        return None
    unit = facts.unit
    x = _loads(facts, held)
    y = latency_axis(metric)
    title = f"p95 {LATENCIES[metric].name} by {unit.many}, ms"
    of = (f"{metric}-knee", title)
    return level_chart(of, held, (x, y), marks, _slo_lines(facts, metric))


def curve_chart(facts: ReportData, name: str) -> Chart | None:
    """One of PANELS over all levels; None if no level has its figure."""
    if name == "goodput" and not facts.slos:
        return None
    if name in LATENCY_PANELS:
        return _latency_chart(facts, name)
    held = _held(facts, _figure_of(name))
    if not held:
        return None
    panel = level_panel(held, knee_marks(facts), Axis(), ())
    return Chart(f"curve-{name}", FIGURES[name], [panel], _loads(facts, held))


def _latency_chart(facts: ReportData, metric: str) -> Chart | None:
    held = _held(facts, _p95_of(metric))
    medians = _held(facts, lambda level: Quantity.of(level.latency(metric), "p50"))
    if not held and not medians:
        return None
    y = latency_axis(metric)
    panel = level_panel(held, knee_marks(facts), y, _slo_lines(facts, metric))
    median = line("median", Color.muted, means(medians), dash=Dash.dotted, dots=True)
    panel = replace(panel, series=[median, *by_level(held)])
    title = f"{LATENCIES[metric].name}, ms: p95 and median"
    return Chart(f"curve-{metric}", title, [panel], _loads(facts, held or medians))


def _loads(facts: ReportData, held: Sequence[Held]) -> Axis:
    unit = facts.unit
    one = "" if unit.by_schedule else unit.one
    return loads_axis((each.load for each in held), unit.many, one)


def _p95_of(metric: str) -> Callable[[Level], Quantity]:
    return lambda level: Quantity.of(level.latency(metric))


def _figure_of(name: str) -> Callable[[Level], Quantity]:
    if name == "throughput":
        return lambda level: Quantity(level.output_tokens_per_s)
    if name == "gpu":
        return lambda level: Quantity(level.gpu.util_pct_mean)
    return lambda level: Quantity(level.goodput_per_s)


def _held(facts: ReportData, figure_of: Callable[[Level], Quantity]) -> list[Held]:
    """Every hold that has the figure."""
    held = []
    for level in facts.levels:
        figure = figure_of(level)
        if figure.known:
            note = f"level {level.index + 1}"
            held.append(Held(level.load, figure, _result(facts, level), level.ttft_ms.n, note))
    return held


def _result(facts: ReportData, level: Level) -> str:
    """What a search only measures, it confirms."""
    if facts.searched and level.result == "measured":
        return CONFIRMED
    return level.result


def _slo_lines(facts: ReportData, metric: str) -> list[Limit]:
    lines = []
    for slo in facts.slos:
        if slo.metric == metric:
            name = f"SLO {slo.statistic} {slo_limit(slo)}"
            lines.append(Limit(slo.limit_ns / MS, name))
    return lines


def knee_charts(facts: ReportData) -> list[Chart]:
    """The knee against the limit, of each SLO whose limit lies among at least two points."""
    charts = []
    for curve in facts.knee.curves:
        limits = [point[0] for point in curve.points]
        if len(limits) >= FEWEST_POINTS and min(limits) <= curve.limit <= max(limits):
            charts.append(_knee_by_limit(facts, curve))
    return charts


def _knee_by_limit(facts: ReportData, curve: KneeCurve) -> Chart:
    name, unit = statistic_name(curve.slo)
    points = [
        Point(limit, knee, low or 0.5 * knee, high)  # zero has no place
        for limit, knee, low, high in sorted(curve.points)
    ]
    through = line("", Color.blue, [(point.x, point.y) for point in points])
    knees = Series("knee", Color.blue, points, Shape.points)
    asked = Limit(curve.limit, f"SLO {curve.limit:g} {unit}", upright=True)
    y = Axis(unit=facts.unit.many, scale=Scale.log)
    x = Axis(f"limit on {name}, {unit}", unit=unit, scale=Scale.log)
    title = f"Knee by limit on {name}, {facts.unit.many}"
    panel = Panel([through, knees], y, limits=[asked])
    return Chart(f"knee-{curve.slo}", title, [panel], x)
