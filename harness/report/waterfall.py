"""Where each level's mean TTFT is spent: a bar per level, with the bounds of its parts."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING, Final

from harness.charts.definition import Axis, Chart, Color, Panel, Point, Scale, Series, Shape
from harness.report.tables import mean_part

if TYPE_CHECKING:
    from harness.metrics.result import Level
    from harness.report.report_data import ReportData

BAR_PX: Final = 22  # of a level, with the gap
BAR_WIDTH_PX: Final = 15
MAX_BARS: Final = 40
PARTS: Final = {
    "prefill_server": Color.ink,
    "queue": Color.gold,
    "prefill": Color.blue,
    "rest": Color.green,
    "residual": Color.red,
}
WHISKERS: Final = {"queue": -0.24, "prefill": 0.0, "ttft": 0.24}  # where in the bar's height


def waterfall_chart(facts: ReportData) -> Chart | None:
    """One bar per level, in the order of the run; None without any breakdown."""
    levels = facts.split[-MAX_BARS:]
    if not levels:
        return None
    series = [*_bars(levels), _whiskers(levels)]
    names = [f"#{level.index + 1}: {level.load:,}" for level in levels]
    x = Axis(f"level: {facts.unit.many}", scale=Scale.names, names=names)
    panel = Panel(series, Axis("ms", unit="ms"), height_px=12 + BAR_PX * max(len(levels), 3))
    title = "Mean TTFT by where it is spent, ms"
    return Chart("waterfall", title, [panel], x, sideways=True)


def _bars(levels: list[Level]) -> list[Series]:
    """Positive parts stack to the right of 0, negative ones to the left."""
    right = [0.0] * len(levels)
    left = [0.0] * len(levels)
    series = []
    for name, color in PARTS.items():
        points = []
        for place, level in enumerate(levels):
            width, _, _ = mean_part(level, name)
            if isnan(width):  # no servers of their own prefill
                continue
            begin = right[place] if width >= 0 else left[place]
            right[place] += max(width, 0.0)
            left[place] += min(width, 0.0)
            points.append(Point(place, width, begin, begin + width))
        if points:
            label = name.replace("_", " ")
            series.append(Series(label, color, points, Shape.spans, width_px=BAR_WIDTH_PX))
    return series


def _whiskers(levels: list[Level]) -> Series:
    """The bounds of queue, prefill and the server's TTFT; exact values have none."""
    points = []
    for place, level in enumerate(levels):
        apart, _, _ = mean_part(level, "prefill_server")
        begin_ms = 0.0 if isnan(apart) else apart
        queue, _, _ = mean_part(level, "queue")
        begins = {"prefill": begin_ms + queue}
        for key, offset in WHISKERS.items():
            mean, low, high = mean_part(level, key)
            begin = begins.get(key, begin_ms)
            if isfinite(low) and high > low:
                whisker = Point(place + offset, mean, begin + low, begin + high)
                points.append(whisker)
    return Series("", Color.ink, points, Shape.spans, width_px=1)
