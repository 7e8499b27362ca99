"""Figures against levels, with the knee: for the report, and for the page while levels are held."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

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
    Symbol,
    line,
)
from harness.core.states import Decision, Verdict

if TYPE_CHECKING:
    from harness.metrics.numbers import Quantity


class Look(NamedTuple):
    """How a level's result is named and marked."""

    name: str
    color: Color
    symbol: Symbol


CONFIRMED: Final = "confirmed"  # held again after the search, by --confirm
UNDECIDED: Final = Look("inconclusive", Color.muted, Symbol.circle)
LOOKS: Final[dict[str, Look]] = {
    Decision.passed: Look("passed", Color.blue, Symbol.circle),
    Verdict.met: Look("SLO met", Color.blue, Symbol.circle),
    Decision.failed: Look("failed", Color.red, Symbol.cross),
    Verdict.missed: Look("SLO missed", Color.red, Symbol.cross),
    "measured": Look("measured", Color.ink, Symbol.circle),
    CONFIRMED: Look(CONFIRMED, Color.ink, Symbol.circle),
    Decision.invalid: Look("invalid", Color.muted, Symbol.cross),
}
GROWING: Final = ("ttft", "e2e")  # latencies that grow by orders of magnitude
NEIGHBORHOOD: Final = 0.3  # of the knee: what is shown first
WIDE_HEIGHT_PX: Final = 300
MIN_NEIGHBORS: Final = 3  # holds that make a neighborhood
SIDE_BY_SIDE: Final = 0.5  # of the gap between levels: what the holds of one level spread over
WIDEST_SPREAD: Final = 0.03  # of the level, where levels are far apart


@dataclass(frozen=True, slots=True)
class Held:
    """One hold of a level, and one figure of it."""

    load: float
    figure: Quantity
    result: str
    n: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class KneeMarks:
    """What is known of the knee: None where it is not."""

    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    holds: float | None = None
    fails_at: float | None = None

    @property
    def middle(self) -> float | None:
        return self.estimate or self.holds or self.fails_at

    def limits(self) -> list[Limit]:
        """The level that holds and the one that fails, or else the best estimate."""
        lines = []
        if self.holds:
            lines.append(_promise(self.holds, f"holds {self.holds:g}"))
        elif self.estimate:
            lines.append(_promise(self.estimate, f"estimate {self.estimate:g}"))
        if self.fails_at:
            name = f"fails at {self.fails_at:g}"
            lines.append(Limit(self.fails_at, name, Color.red, upright=True))
        return lines

    def bands(self) -> list[Band]:
        """The interval of the estimate."""
        if self.low is None or self.high is None:
            return []
        return [Band(self.low, self.high)]


def _promise(at: float, name: str) -> Limit:
    return Limit(at, name, Color.green, upright=True, dash=Dash.solid, before=True)


def loads_axis(loads: Iterable[float], many: str, one: str, *, scale: Scale = Scale.log) -> Axis:
    """Levels are labeled one by one, as far as there is room."""
    return Axis(title=many, one=one, scale=scale, ticks=sorted(set(loads)))


def latency_axis(key: str) -> Axis:
    """In ms."""
    if key in GROWING:
        return Axis(unit="ms", scale=Scale.log)
    return Axis(unit="ms", low=0)


def neighborhood(held: Sequence[Held], knee: KneeMarks) -> tuple[float, float] | None:
    """The levels around the knee, with it in the middle; None where few were held there."""
    middle = knee.middle
    if middle is None:
        return None
    low, high = middle * (1 - NEIGHBORHOOD), middle * (1 + NEIGHBORHOOD)
    near = [one for one in held if low <= one.load <= high]
    if len(near) < MIN_NEIGHBORS:
        return None
    loads = [one.load for one in near]
    ends = [*loads, *(end for end in (knee.low, knee.high, knee.fails_at) if end)]
    reach = max(abs(end - middle) for end in ends) * 1.15 or 1
    return middle - min(reach, 0.9 * middle), middle + reach


def by_level(held: Sequence[Held]) -> list[Series]:
    """The mean of each level as a line, and each hold as a point, named by its result."""
    series = [line("mean", Color.muted, means(held), width_px=1.2)]
    places = side_by_side([one.load for one in held])
    points: dict[Look, list[Point]] = {}
    for one, x in zip(held, places, strict=True):
        look = LOOKS.get(one.result, UNDECIDED)
        points.setdefault(look, []).append(_point(one, x))
    for look, marked in points.items():
        series.append(Series(look.name, look.color, marked, Shape.points, symbol=look.symbol))
    return series


def _point(one: Held, x: float) -> Point:
    figure = one.figure
    high = figure.hi
    if math.isnan(high) and math.isfinite(figure.lo):
        high = math.inf
    if math.isinf(figure.value):
        return Point(x, math.inf, n=one.n, note=one.note)
    return Point(x, figure.value, figure.lo, high, one.n, one.note, figure.weak)


def means(held: Sequence[Held]) -> list[tuple[float, float]]:
    """(load, mean over the holds of the level) of each level whose figures may be used."""
    values: dict[float, list[float]] = {}
    for one in held:
        if one.result != Decision.invalid and math.isfinite(one.figure.value):
            values.setdefault(one.load, []).append(one.figure.value)
    return [(load, sum(values[load]) / len(values[load])) for load in sorted(values)]


def side_by_side(loads: Sequence[float]) -> list[float]:
    """Where each hold is drawn: those of one level are beside each other."""
    gaps = [higher - lower for lower, higher in pairwise(sorted(set(loads)))]
    narrowest = min(gaps, default=math.inf)
    places = []
    seen = dict.fromkeys(loads, 0)
    for load in loads:
        share = (seen[load] + 0.5) / loads.count(load) - 0.5
        places.append(load + share * min(SIDE_BY_SIDE * narrowest, WIDEST_SPREAD * load))
        seen[load] += 1
    return places


def level_panel(held: Sequence[Held], knee: KneeMarks, y: Axis, limits: Sequence[Limit]) -> Panel:
    """A small one has no room for the name of the level that fails."""
    marks = [replace(mark, name="") if mark.at == knee.fails_at else mark for mark in knee.limits()]
    return Panel(by_level(held), y, limits=[*limits, *marks], bands=knee.bands())


def level_chart(
    of: tuple[str, str],
    held: Sequence[Held],
    axes: tuple[Axis, Axis],
    knee: KneeMarks,
    limits: Sequence[Limit] = (),
) -> Chart:
    """The wide one, with the knee in the middle; all levels are a click away.

    `of`: its name and title; `axes`: x and y.
    """
    name, title = of
    x, y = axes
    marks = [*limits, *knee.limits()]
    panel = Panel(by_level(held), y, limits=marks, bands=knee.bands(), height_px=WIDE_HEIGHT_PX)
    zoom = neighborhood(held, knee)
    return Chart(name, title, [panel], x, zoom, "Around the knee", wide=True)
