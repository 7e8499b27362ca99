"""A chart as plain data: its axes, series and marks.

No drawing library is in it: `page/charts.js` turns it into a picture, in a page or without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isinf, isnan, nan
from typing import Any, Final

DIGITS: Final = 6  # significant, of a number in a page: a chart shows four


class Color(StrEnum):
    """Variables of the pages' style sheets: they differ in light, in dark and in print."""

    ink = "ink"
    muted = "muted"
    rule = "rule"
    blue = "blue"
    red = "red"
    green = "green"
    gold = "gold"


class Shape(StrEnum):
    line = "line"
    steps = "steps"  # each value lasts until the next
    points = "points"
    spans = "spans"  # bars from `low` to `high`


class Dash(StrEnum):
    solid = "solid"
    dashed = "dashed"
    dotted = "dotted"


class Scale(StrEnum):
    linear = "linear"
    log = "log"
    time = "time"  # in seconds
    names = "names"  # 0, 1, ... stand for `Axis.names`


class Symbol(StrEnum):
    circle = "circle"
    cross = "cross"


@dataclass(frozen=True, slots=True)
class Point:
    x: float
    y: float  # NaN: a gap; infinite: too many requests failed
    low: float = nan  # of its interval; infinite `high`: without an upper end
    high: float = nan
    n: int = 0  # observations; 0: not told
    note: str = ""
    hollow: bool = False  # a wide interval


@dataclass(frozen=True, slots=True)
class Series:
    """Those of one name are shown and hidden together."""

    name: str
    color: Color
    points: Sequence[Point] = ()
    shape: Shape = Shape.line
    dash: Dash = Dash.solid
    width_px: float = 2.0
    symbol: Symbol = Symbol.circle  # of points
    dots: bool = False  # on a line
    column: str = ""  # of the live page's history, which fills the points


@dataclass(frozen=True, slots=True)
class Limit:
    """A line across a panel."""

    at: float
    name: str
    color: Color = Color.ink
    upright: bool = False
    dash: Dash = Dash.dashed
    before: bool = False  # the name of an upright one stands to the left of it


@dataclass(frozen=True, slots=True)
class Band:
    """A shaded part of a panel, upright."""

    low: float
    high: float
    color: Color = Color.green


@dataclass(frozen=True, slots=True)
class Axis:
    title: str = ""
    unit: str = ""
    scale: Scale = Scale.linear
    low: float = nan  # NaN: from what is shown
    high: float = nan
    ticks: Sequence[float] = ()  # () where any will do
    names: Sequence[str] = ()
    one: str = ""  # `user`: how a value of x is said; "": as `title`


@dataclass(frozen=True, slots=True)
class Panel:
    series: Sequence[Series]
    y: Axis = field(default_factory=Axis)
    title: str = ""
    limits: Sequence[Limit] = ()
    bands: Sequence[Band] = ()
    height_px: int = 230


@dataclass(frozen=True, slots=True)
class Chart:
    """Panels below each other over one x axis."""

    name: str  # unique in a page
    title: str
    panels: Sequence[Panel]
    x: Axis
    zoom: tuple[float, float] | None = None  # what is shown first of a longer axis
    zoom_name: str = ""
    sideways: bool = False  # x runs down, y to the right
    wide: bool = False
    note: str = ""


def as_json(chart: Chart) -> dict[str, Any]:
    """What `charts.js` takes; a point is a list without its last fields that say nothing."""
    return {
        "name": chart.name,
        "title": chart.title,
        "x": _axis(chart.x),
        "panels": [_panel(panel) for panel in chart.panels],
        "zoom": None if chart.zoom is None else [_number(end) for end in chart.zoom],
        "zoom_name": chart.zoom_name,
        "sideways": chart.sideways,
        "wide": chart.wide,
        "note": chart.note,
    }


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "title": axis.title,
        "unit": axis.unit,
        "scale": axis.scale,
        "low": _number(axis.low),
        "high": _number(axis.high),
        "ticks": list(axis.ticks),
        "names": list(axis.names),
        "one": axis.one,
    }


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "y": _axis(panel.y),
        "series": [_series(series) for series in panel.series],
        "limits": [_limit(limit) for limit in panel.limits],
        "bands": [[_number(band.low), _number(band.high), band.color] for band in panel.bands],
        "height": panel.height_px,
    }


def _series(series: Series) -> dict[str, Any]:
    return {
        "name": series.name,
        "color": series.color,
        "shape": series.shape,
        "dash": series.dash,
        "width": series.width_px,
        "symbol": series.symbol,
        "dots": series.dots,
        "column": series.column,
        "points": [_row(point) for point in series.points],
    }


def _limit(limit: Limit) -> dict[str, Any]:
    return {
        "at": _number(limit.at),
        "name": limit.name,
        "color": limit.color,
        "upright": limit.upright,
        "dash": limit.dash,
        "before": limit.before,
    }


def _row(point: Point) -> list[float | str | None]:
    row = [_number(value) for value in (point.x, point.y, point.low, point.high)]
    row += [point.n or None, point.note or None, 1 if point.hollow else None]
    while row[-1] is None and len(row) > 2:  # noqa: PLR2004 - x and y
        row.pop()
    return row


def _number(value: float) -> float | str | None:
    """As JSON has it; whole numbers without a point."""
    if isnan(value):
        return None
    if isinf(value):
        return "inf" if value > 0 else "-inf"
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) else short


def line(
    name: str,
    color: Color,
    points: Iterable[tuple[float, float]],
    *,
    dash: Dash = Dash.solid,
    width_px: float = 2.0,
    dots: bool = False,
) -> Series:
    """A line through (x, y)."""
    through = [Point(x, y) for x, y in points]
    return Series(name, color, through, dash=dash, width_px=width_px, dots=dots)


def drawable(value: float) -> bool:
    """Whether it has a place, at least at the top of the panel."""
    return not isnan(value) and value != -inf
