"""The live page's charts, from its facts; its history fills the series that name a column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any, Final

from harness.charts.by_level import (
    LOOKS,
    UNDECIDED,
    Held,
    KneeMarks,
    latency_axis,
    level_chart,
    loads_axis,
)
from harness.charts.definition import (
    Axis,
    Band,
    Chart,
    Color,
    Dash,
    Limit,
    Panel,
    Point,
    Scale,
    Series,
    Shape,
    as_json,
)
from harness.core.load import CONCURRENT
from harness.metrics.metrics import LATENCIES
from harness.metrics.numbers import Quantity, format_number
from harness.wire.vllm_series import SERIES

Facts = Mapping[str, Any]
Step = Mapping[str, Any]  # a level that ended

# Requests at the server, a line each: fields of ServerSample.
SERVER_LINES: Final = tuple(row.key for row in SERIES if row.live)
KV_COLUMN: Final = "kv_pct"
LIVE: Final = {key: row for key, row in LATENCIES.items() if row.live}
HEADLINES: Final = tuple(key for key, row in LIVE.items() if row.headline)
SHADED: Final = "Shaded: the measured windows of the levels."
LATENCY_PX: Final = 130  # the height of a panel
SMALL_PX: Final = 90
SERVER_COLORS: Final = (Color.blue, Color.red, Color.gold, Color.green)
QUANTILES: Final = {
    "p50": (Color.muted, Dash.solid, 1.4),
    "p95": (Color.blue, Dash.solid, 2.2),
    "p99": (Color.gold, Dash.dotted, 1.8),
}


def live_charts(facts: Facts) -> dict[str, list[dict[str, Any]]]:
    """`time`: the run so far on one axis; `levels`: each headline by level, with the knee."""
    charts = {"time": [over_time(facts)], "levels": by_level(facts)}
    return {name: [as_json(chart) for chart in some] for name, some in charts.items()}


def over_time(facts: Facts) -> Chart:
    """Latencies, users with the promise as it narrows, throughput, and the server below."""
    limited = {slo["key"] for slo in facts.get("slos") or ()}
    shown = [key for key in LIVE if key in HEADLINES or key in limited]
    panels = [_latency_panel(key, facts) for key in shown]
    panels.append(_users_panel(facts))
    if facts.get("unit") and facts.get("searches"):
        unit = facts["unit"]
        panels.append(_small_panel(f"Levels, {unit}", _search(facts), unit))
    panels += _load_panels()
    bands = [Band(step["from_s"], step["to_s"], Color.rule) for step in _steps(facts)]
    events = _event_lines(facts)
    marked = [_with_marks(panel, bands, events) for panel in panels]
    x = Axis("time, min:s", scale=Scale.time, low=0)
    return Chart("over-time", "The run over time", marked, x, wide=True, note=SHADED)


def _load_panels() -> list[Panel]:
    """What arrives, and what the server has in hand."""
    tokens = Series("output tokens/s", Color.green, column="tokens_per_s")
    kv = Series("KV cache", Color.blue, column=KV_COLUMN)
    requests = []
    for key, color in zip(SERVER_LINES, SERVER_COLORS, strict=False):
        name = f"{key.replace('_', ' ')} (server)"
        requests.append(Series(name, color, column=key))
    return [
        _small_panel("Output tokens/s", [tokens]),
        _small_panel("Requests on the server", requests),
        _small_panel("KV cache in use, %", [kv], "%"),
    ]


def _small_panel(title: str, series: Sequence[Series], unit: str = "") -> Panel:
    return Panel(series, Axis(unit=unit, low=0), title, height_px=SMALL_PX)


def _with_marks(panel: Panel, bands: Sequence[Band], events: Sequence[Limit]) -> Panel:
    limits = [*panel.limits, *events]
    return Panel(panel.series, panel.y, panel.title, limits, bands, panel.height_px)


def _latency_panel(key: str, facts: Facts) -> Panel:
    name = LIVE[key].name
    series = [
        Series(quantile, color, dash=dash, width_px=width, column=f"{key}_{quantile}_ms")
        for quantile, (color, dash, width) in QUANTILES.items()
    ]
    title = f"{name} of the last 10 s, ms"
    height_px = LATENCY_PX if key in HEADLINES else SMALL_PX
    return Panel(series, latency_axis(key), title, _slo_lines(facts, key), height_px=height_px)


def _users_panel(facts: Facts) -> Panel:
    """A search in users has its levels and its promise here, too."""
    by_schedule = bool(facts.get("unit"))
    name = "in flight" if by_schedule else "users"
    series = [Series(name, Color.ink, column="users", width_px=1.6)]
    if facts.get("decides") and not by_schedule:
        series += _search(facts)
    title = "Requests in flight" if by_schedule else "Users (concurrent requests)"
    return Panel(series, Axis(low=0), title, height_px=LATENCY_PX)


def _search(facts: Facts) -> list[Series]:
    """Each level where it ended, and between which levels the knee lay from then on."""
    steps = _steps(facts)
    series = []
    ends = (("holds", Color.green, 0), ("fails at", Color.red, 1)) if facts.get("searches") else ()
    for name, color, end in ends:
        points = [Point(step["to_s"], _number(step["bracket"][end])) for step in steps]
        series.append(Series(name, color, points, Shape.steps, Dash.dashed, width_px=1.6))
    marked: dict[str, list[Point]] = {}
    for step in steps:
        point = Point(step["to_s"], step["users"], note=_result(step))
        marked.setdefault(step["decision"], []).append(point)
    for decision, points in marked.items():
        look = LOOKS.get(decision, UNDECIDED)
        series.append(Series(look.name, look.color, points, Shape.points, symbol=look.symbol))
    return series


def by_level(facts: Facts) -> list[Chart]:
    """The p95 of each headline, with the level that is held now."""
    knee = _knee(facts)
    charts = []
    for key in HEADLINES:
        held = [held for step in _steps(facts) if (held := _held(step, key)).figure.known]
        if not held:
            continue
        many = facts.get("unit") or CONCURRENT.many
        one = "" if facts.get("unit") else CONCURRENT.one
        x = loads_axis((each.load for each in held), many, one)
        y = latency_axis(key)
        of = (f"{key}-by-level", f"p95 {LIVE[key].name} by {many}, ms")
        chart = level_chart(of, held, (x, y), knee, _slo_lines(facts, key))
        charts.append(_with_the_level_held(chart, key, facts))
    return charts


def _with_the_level_held(chart: Chart, key: str, facts: Facts) -> Chart:
    """Its last 10 s, until it is judged."""
    if facts.get("over"):
        return chart
    now = Series("held now (last 10 s)", Color.gold, (), Shape.points, column=f"{key}_p95_ms")
    (panel,) = chart.panels
    series = [*panel.series, now]
    panels = [Panel(series, panel.y, panel.title, panel.limits, panel.bands, panel.height_px)]
    return Chart(chart.name, chart.title, panels, chart.x, chart.zoom, chart.zoom_name, wide=True)


def _held(step: Step, key: str) -> Held:
    value, low, high = map(_number, step[f"{key}_p95_ms"])
    return Held(step["users"], Quantity(value, low, high), step["decision"], note=_result(step))


def _result(step: Step) -> str:
    return str(step.get("result") or step["decision"])


def _knee(facts: Facts) -> KneeMarks:
    """Of the result, or else the promise so far."""
    estimate, low, high = facts.get("knee") or (None, None, None)
    holds, fails_at = facts.get("bracket") or (None, None)
    return KneeMarks(estimate, low, high, facts.get("holds") or holds, fails_at)


def _steps(facts: Facts) -> Sequence[Step]:
    steps: Sequence[Step] = facts.get("steps") or ()
    return steps


def _slo_lines(facts: Facts, key: str) -> list[Limit]:
    return [
        Limit(
            slo["limit_ms"], f"SLO {slo['statistic']} {format_number(slo['limit'])} {slo['unit']}"
        )
        for slo in facts.get("slos") or ()
        if slo["key"] == key
    ]


def _event_lines(facts: Facts) -> list[Limit]:
    lines = []
    for event in facts.get("events") or ():
        begins = event["what"] == "begins"
        dash = Dash.solid if begins else Dash.dotted
        lines.append(Limit(event["t_s"], "", Color.red, upright=True, dash=dash))
    return lines


def _number(value: float | str | None) -> float:
    """As the page's JSON has it: null is not known, "inf" never came."""
    if value is None:
        return nan
    return inf if isinstance(value, str) else value
