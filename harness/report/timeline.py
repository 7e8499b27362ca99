"""The run over time: users and requests in flight, latency, KV cache and GPUs below."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Final

import numpy as np

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
    line,
)
from harness.metrics.metrics import SLO_METRICS
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.records.samples import GpuSample
    from harness.report.report_data import ReportData

    Readings = list[tuple[int, float]]  # when, ns since 1970, and what

GRID_POINTS: Final = 400  # at which the client's own count is taken
TOP_PX: Final = 190
BELOW_PX: Final = 85
LEAST_KV_PCT: Final = 1.0  # a cache that is never fuller has no panel
HALF_FULL_PCT: Final = 50.0  # from there on the axis ends at 100
ROOM_OF_A_NAME: Final = 0.12  # of the run: events closer together share one name
SHADED: Final = "Shaded: the measured windows; between them ramps and warm-ups."


def timeline_chart(facts: ReportData) -> Chart | None:
    """None when there are neither levels nor records nor samples."""
    zero_ns = _start_ns(facts)
    if zero_ns is None:
        return None
    bands = [
        Band(_seconds(level.settled_ns, zero_ns), _seconds(level.end_ns, zero_ns), Color.rule)
        for level in facts.levels
    ]
    requests = [*_requests(facts, zero_ns), *_events(facts, zero_ns)]
    unit = Axis(unit="requests")
    names = _event_lines(facts, zero_ns)
    panels = [Panel(requests, unit, "Requests in flight", names, bands, TOP_PX)]
    lines = [Limit(limit.at, "", limit.color, upright=True) for limit in names]
    for title, (unit_name, readings, high) in _below(facts).items():
        points = [(_seconds(at_ns, zero_ns), value) for at_ns, value in readings]
        series = [line(title.partition(",")[0], Color.blue, points, width_px=1.6)]
        axis = Axis(unit=unit_name, low=0, high=high)
        panels.append(Panel(series, axis, title, lines, bands, BELOW_PX))
    x = Axis("time since the start, min:s", scale=Scale.time, low=0)
    return Chart("timeline", "Requests and the server over time", panels, x, wide=True, note=SHADED)


def _start_ns(facts: ReportData) -> int | None:
    """When the first of the levels, the samples and the requests began."""
    table = facts.run.table
    begins = [level.start_ns for level in facts.levels[:1]]
    begins += [sample.at_ns for sample in facts.run.server[:1]]
    if len(table):
        begins.append(int(table.sent_ns.min()))
    return min(begins, default=None)


def _seconds(at_ns: int, zero_ns: int) -> float:
    return (at_ns - zero_ns) / SECOND


def _below(facts: ReportData) -> dict[str, tuple[str, Readings, float]]:
    """Title -> unit, readings and the end of the axis, of what has something to show."""
    below: dict[str, tuple[str, Readings, float]] = {}
    if facts.kind.has_phases:
        below["p95 TTFT of the requests of two seconds, ms"] = ("ms", _p95_ttft(facts), nan)
    kv_pct = [(sample.at_ns, 100 * sample.kv_usage) for sample in facts.run.server]
    if any(pct >= LEAST_KV_PCT for _, pct in kv_pct):
        fullest = max(pct for _, pct in kv_pct)
        below["KV cache in use, %"] = ("%", kv_pct, 100 if fullest >= HALF_FULL_PCT else nan)
    busy_pct, watts = _gpus(facts)
    below["GPU utilization, %"] = ("%", busy_pct, 100)
    below["GPU power, W"] = ("W", watts, nan)
    return {title: row for title, row in below.items() if _known(row[1])}


def _known(readings: Readings) -> bool:
    return any(isfinite(value) for _, value in readings)


def _requests(facts: ReportData, zero_ns: int) -> list[Series]:
    """The users of the levels, what the client has in flight, what runs and waits in the server."""
    series = []
    if facts.levels:
        steps = [Point(_seconds(level.chosen_ns, zero_ns), level.load) for level in facts.levels]
        last = facts.levels[-1]
        steps.append(Point(_seconds(last.end_ns, zero_ns), last.load))
        name = f"{facts.unit.short_many} (target)"
        series.append(Series(name, Color.gold, steps, Shape.steps, width_px=2.5))
    if len(facts.run.table):
        in_flight = _in_flight(facts, zero_ns)
        series.append(line("in flight (client)", Color.ink, in_flight, width_px=1))
    samples = facts.run.server
    if samples:
        at = [_seconds(sample.at_ns, zero_ns) for sample in samples]
        running = zip(at, (sample.running for sample in samples), strict=True)
        waiting = zip(at, (sample.waiting for sample in samples), strict=True)
        series.append(line("running (server)", Color.blue, running, width_px=1.6))
        series.append(line("waiting (server)", Color.red, waiting, dash=Dash.dashed, width_px=1.6))
    return series


def _in_flight(facts: ReportData, zero_ns: int) -> list[tuple[float, float]]:
    """Requests in flight at t: sent up to t, minus done up to t."""
    table = facts.run.table
    ends = np.sort(table.done_ns)
    begins = np.sort(table.sent_ns)
    grid = np.linspace(begins[0], ends[-1], GRID_POINTS)
    counts = np.searchsorted(begins, grid, "right") - np.searchsorted(ends, grid, "right")
    seconds = (grid - zero_ns) / SECOND
    return list(zip(seconds.tolist(), counts.tolist(), strict=True))


def _events(facts: ReportData, zero_ns: int) -> list[Series]:
    """What a drill did, told where it is pointed at."""
    points = [
        Point(_seconds(row["at_ns"], zero_ns), 0, note=f"{row['name']} {row['what']}")
        for row in facts.run.events
    ]
    return [Series("event", Color.red, points, Shape.points)] if points else []


def _event_lines(facts: ReportData, zero_ns: int) -> list[Limit]:
    """Each named, unless the name before needs the room."""
    seconds = [_seconds(row["at_ns"], zero_ns) for row in facts.run.events]
    room_s = ROOM_OF_A_NAME * max(seconds, default=0)
    lines = []
    named_until_s = -1.0
    for row, at_s in zip(facts.run.events, seconds, strict=True):
        name = ""
        if at_s >= named_until_s:
            name = f"{row['name']} {row['what']}"
            named_until_s = at_s + room_s
        lines.append(Limit(at_s, name, Color.red, upright=True))
    return lines


def _p95_ttft(facts: ReportData) -> Readings:
    """The p95 of the requests that began in each two seconds; a gap where it never came."""
    seen = SLO_METRICS["ttft"].observe(facts.run.table)
    begun = facts.run.table.begun_ns[seen.row]
    points = []
    if len(begun):
        for at in range(int(begun.min()), int(begun.max()), 2 * SECOND):
            inside = (begun >= at) & (begun < at + 2 * SECOND)
            points.append((at + SECOND, _p95_ms(seen.ns[inside])))
    return points


def _p95_ms(ns: Floats) -> float:
    """NaN, a gap in the line, without a value or where too many are infinite."""
    if not len(ns):
        return nan
    p95_ns = float(np.quantile(ns, 0.95, method="higher"))
    return p95_ns / MS if isfinite(p95_ns) else nan


def _gpus(facts: ReportData) -> tuple[Readings, Readings]:
    """Mean utilization and total power of the GPUs, reading by reading."""
    by_time: dict[int, list[GpuSample]] = {}
    for sample in facts.run.gpu:
        by_time.setdefault(sample.at_ns, []).append(sample)
    busy = []
    watts = []
    for at_ns, readings in by_time.items():
        total_pct = sum(reading.util_pct for reading in readings)
        busy.append((at_ns, total_pct / len(readings)))
        watts.append((at_ns, sum(reading.power_w for reading in readings)))
    return busy, watts
