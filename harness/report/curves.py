"""Throughput, goodput and p95 latencies against users, with the knee, its interval and the SLOs.

A point whose interval is wide or has no upper end is hollow, so every level has its p95 and shows
how certain it is. A search holds most levels around the knee; they get a panel of their own, in
which the holds of one level are drawn side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from harness.core.states import Decision, Verdict
from harness.metrics.numbers import Quantity, slo_limit, statistic_name
from harness.report.svg import BLUE, GREEN, INK, LIMIT_LINE, MUTED, PAPER, RED, drawing, to_svg
from harness.units import MS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.metrics.result import KneeCurve, Level
    from harness.metrics.slo import Slo
    from harness.report.report_data import ReportData

    Points = list[tuple[float, float]]

WIDTH, HEIGHT = 400, 290
# result of a level -> marker, color
RESULT_MARKERS: Final[dict[str, tuple[str, str]]] = {
    Decision.passed: ("o", BLUE),
    Verdict.met: ("o", BLUE),
    Decision.failed: ("X", RED),
    Verdict.missed: ("X", RED),
    Decision.invalid: ("x", MUTED),
    "measured": ("o", INK),
}
PANELS: Final = {
    "throughput": ("Output tokens/s", ""),
    "goodput": ("Requests/s that met every SLO", ""),
    "ttft": ("TTFT, ms: p95 and median", "ttft"),
    "itl": ("ITL, ms: p95 and median", "itl"),
    "e2e": ("End to end, ms: p95 and median", "e2e"),
    "gpu": ("GPU utilization, %", ""),
}
KNEE_NEIGHBORHOOD: Final = 0.3  # of the best estimate: levels that are shown apart,
LABEL_SHARE: Final = 0.2  # of the width: what the knee's label takes
MIN_NEIGHBORHOOD_POINTS: Final = 3  # where so many holds lie there
MAX_SLO_LINE_RATIO: Final = 3.0  # times the highest point: an SLO's line above that is only named
MAX_TICKS: Final = 7
# times the lower end of a log axis: above, a tick for each power of ten
MAX_RATIO_FOR_125_TICKS: Final = 3_000
MIN_TICK_DISTANCE: Final = 0.04  # of the axis: closer ticks would overlap
ARROW_PX: Final = 16  # px above a point: the arrow of an interval without upper end
THREE_DIGITS: Final = 100  # a label from there on needs twice the room


def curve_charts(facts: ReportData) -> list[str]:
    """One SVG per panel; none of a single load, and panels without any figure are omitted."""
    if len({level.load for level in facts.levels}) == 1:
        return []
    names = [name for name in PANELS if facts.slos or name != "goodput"]
    drawn = [curve_chart(facts, name) for name in names]
    if (metric := metric_around_knee(facts)) is not None:
        drawn.insert(names.index(metric) + 1, curve_chart(facts, metric, around=True))
    return [svg for svg in drawn if svg]


def knee_charts(facts: ReportData) -> list[str]:
    """The knee against the limit, one SVG for each SLO that has at least two points."""
    return [_knee_by_limit(facts, one) for one in facts.knee.curves if len(one.points) > 1]


def _knee_by_limit(facts: ReportData, curve: KneeCurve) -> str:
    limits, knees, lows, highs = zip(*sorted(curve.points), strict=True)
    lows = tuple(low or 0.5 * knees[0] for low in lows)  # zero has no place
    name, unit = statistic_name(curve.slo)
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(f"Knee by limit on {name}")
        axes.set_ylabel(facts.unit.many)
        axes.set_xlabel(f"limit on {name}, {unit}")
        axes.set_xlim(limits[0] / 1.1, limits[-1] * 1.1)
        axes.set_ylim(min(lows) / 1.2, max(highs) * 1.2)
        log_ticks(axes.xaxis)
        log_ticks(axes.yaxis)
        axes.fill_between(limits, lows, highs, color=GREEN, alpha=0.25, linewidth=0)
        axes.plot(limits, knees, color=BLUE, marker=".")
        if limits[0] <= curve.limit <= limits[-1]:
            axes.axvline(curve.limit, **LIMIT_LINE)
        return to_svg(figure, f"knee-{curve.slo}", f"The knee against the limit on {name}")


def metric_around_knee(facts: ReportData) -> str | None:
    """The latency closest to its limit around the knee; None if few levels are there."""
    near = [level for level in facts.used if _is_near_knee(facts, level)]
    drawn = [slo for slo in facts.slos if slo.metric in PANELS]
    on_p95 = [slo for slo in drawn if slo.statistic == "p95"]
    if len(near) < MIN_NEIGHBORHOOD_POINTS or not on_p95:
        return None

    def highest_ratio(slo: Slo) -> float:
        ratios = [level.observed(slo) * MS / slo.limit_ns for level in near]
        known = [ratio for ratio in ratios if not math.isnan(ratio)]
        return max(known, default=0)

    return max(on_p95, key=highest_ratio).metric


def curve_chart(facts: ReportData, name: str, *, around: bool = False) -> str:
    """One panel of PANELS; "" if no level has its figure. `around`: only levels near the knee."""
    title, metric = PANELS[name]

    def figure_of(level: Level) -> Quantity:
        if metric:
            return Quantity.of(level.latency(metric))
        plain = {"throughput": level.output_tokens_per_s, "gpu": level.gpu.util_pct_mean}
        return Quantity(plain.get(name, level.goodput_per_s))

    def near(level: Level) -> bool:
        return not around or _is_near_knee(facts, level)

    groups = [levels for levels in facts.by_users if near(levels[0])]
    medians = _means(groups, lambda s: Quantity.of(s.latency(metric), "p50")) if metric else []
    shown = [level for level in facts.levels if near(level) and figure_of(level).known]
    if not shown and not medians:
        return ""
    if around:
        title, medians = f"{title.partition(' and')[0]}, around the knee", []
    # details near the knee are in their own panel
    dense = not around and metric_around_knee(facts) is not None
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel(facts.unit.many)
        _x_axis(axes, [level.load for level in facts.levels if near(level)], linear=around)
        values = [*(figure_of(level).value for level in shown), *(y for _, y in medians)]
        if around:
            values += [end for level in shown for end in (figure_of(level).lo, figure_of(level).hi)]
        _y_axis(axes, facts, metric, values, around=around)
        axes.plot(*_columns(medians), color=MUTED, linestyle=":", marker=".", zorder=2)
        axes.plot(*_columns(_means(groups, figure_of)), color=MUTED, linewidth=1, zorder=2)
        _knee(axes, facts)
        for x, level in zip(_x_positions(shown, apart=around), shown, strict=True):
            small = dense and _is_near_knee(facts, level)
            _point(axes, x, level.result, figure_of(level), small=small)
        _slo_lines(axes, facts, metric)
        return to_svg(
            figure, f"curve-{name}{'-around' * around}", f"{title} against {facts.unit.plotted}"
        )


def _is_near_knee(facts: ReportData, level: Level) -> bool:
    at = facts.knee.estimate or 0
    return abs(level.load - at) <= KNEE_NEIGHBORHOOD * at


def _x_positions(levels: Sequence[Level], *, apart: bool) -> list[float]:
    """The x position of each point; with `apart`, the holds of a level are side by side."""
    loads = [level.load for level in levels]
    gap: float = 0
    if apart:
        gaps = [higher - lower for lower, higher in pairwise(sorted(set(loads)))]
        gap = min(gaps, default=1)
    places = []
    seen = dict.fromkeys(loads, 0)
    for load in loads:
        share = (seen[load] + 0.5) / loads.count(load)
        places.append(load + gap * 0.6 * (share - 0.5))
        seen[load] += 1
    return places


def _x_axis(axes: Axes, users: list[float], *, linear: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    low = min(users)
    high = max(users)
    if linear:
        margin = max((high - low) * 0.08, 0.6)
        axes.set_xlim(low - margin, high + margin)
    else:
        axes.set_xscale("log", base=2)
        axes.set_xlim(low / 1.25, high * 1.25)
    # Few levels are labeled one by one, many by powers of two.
    wanted: list[float] = sorted(set(users))
    if not linear and len(wanted) > MAX_TICKS:
        powers = [2**i for i in range(1 + math.ceil(high).bit_length())]
        wanted = [power for power in powers if low / 1.25 <= power <= high * 1.25]
    axes.xaxis.set_major_locator(FixedLocator(_with_room(axes, wanted)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _with_room(axes: Axes, wanted: Sequence[float]) -> list[float]:
    """The ticks, ascending, without those too close to the one before for their labels."""
    width_px = _distance_px(axes, *axes.get_xlim())
    ticks: list[float] = []
    for tick in wanted:
        times = 2 if tick >= THREE_DIGITS else 1
        room_px = MIN_TICK_DISTANCE * times * width_px
        if not ticks or _distance_px(axes, ticks[-1], tick) >= room_px:
            ticks.append(tick)
    return ticks


def _distance_px(axes: Axes, left: float, right: float) -> float:
    """In pixels, because a log axis has no constant spacing."""
    left_px, right_px = axes.transData.transform([(left, 1.0), (right, 1.0)])[:, 0]
    return float(right_px - left_px)


def _y_axis(
    axes: Axes, facts: ReportData, metric: str, values: Sequence[float], *, around: bool
) -> None:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    finite = [v for v in values if math.isfinite(v)]
    max_value = max(finite, default=0.0) or 1.0
    lines = [slo.limit_ns / MS for slo in facts.slos if slo.metric == metric]
    # A limit far above all points would flatten the curve; it is named at the top instead.
    lines = [line for line in lines if line <= MAX_SLO_LINE_RATIO * max_value]
    low = min([*finite, *lines], default=max_value)
    top = max([max_value, *lines])
    if around:
        span = top - low
        axes.set_ylim(low - span * 0.08, top + span * 0.15)
    elif metric in ("ttft", "e2e"):
        above_zero = [v for v in (*finite, *lines) if v > 0]  # zero has no place
        low = min(above_zero, default=top)
        axes.set_ylim(low / 1.6, top * 1.9)
        log_ticks(axes.yaxis)
        return
    else:
        axes.set_ylim(0, top * 1.2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def log_ticks(axis: object) -> None:
    """Make a matplotlib axis logarithmic: ticks at 1, 2 and 5, or at 1 over many decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    axis._set_axes_scale("log")  # type: ignore[attr-defined]  # noqa: SLF001
    low, high = axis.get_view_interval()  # type: ignore[attr-defined]
    subs = (1, 2, 5) if high < MAX_RATIO_FOR_125_TICKS * low else (1,)
    axis.set_major_locator(LogLocator(10, subs=subs))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]


def _means(groups: Sequence[Sequence[Level]], figure_of: Callable[[Level], Quantity]) -> Points:
    """(users, mean over the level's holds) of each level with a finite figure."""
    means: Points = []
    for levels in groups:
        values = [figure_of(level).value for level in levels]
        finite = [v for v in values if math.isfinite(v)]
        if finite:
            means.append((levels[0].load, sum(finite) / len(finite)))
    return means


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _point(axes: Axes, x: float, result: str, seen: Quantity, *, small: bool) -> None:
    marker, color = RESULT_MARKERS.get(result, ("o", MUTED))
    if math.isinf(seen.value):  # requests failed, so the value is infinite
        place = axes.get_xaxis_transform()
        axes.plot([x], [0.97], marker="^", color=RED, transform=place, clip_on=False)
        return
    if not math.isnan(seen.lo) and not small:
        _interval(axes, x, seen, color)
    axes.plot(
        [x],
        [seen.value],
        marker=marker,
        color=color,
        markerfacecolor=PAPER if seen.weak else color,
        markersize=3 if small else 7,
        zorder=3,
    )


def _interval(axes: Axes, x: float, seen: Quantity, color: str) -> None:
    """A line, which ends in an arrow where there is no upper end."""
    high = seen.hi
    marker = ""
    if not math.isfinite(high):
        # The arrow has a fixed length in pixels, whatever the scale of the axis.
        x_px, y_px = axes.transData.transform((x, seen.value))
        _, high = axes.transData.inverted().transform((x_px, y_px + ARROW_PX))
        marker = "^"
    axes.plot(
        [x] * 2,
        [seen.lo, high],
        markevery=[1],
        markersize=4,
        marker=marker,
        color=color,
        linewidth=1,
        alpha=0.7,
    )


def _knee(axes: Axes, facts: ReportData) -> None:
    knee = facts.knee
    if knee.estimate is None:
        return
    lo, hi = knee.ci95
    if lo is not None and hi is not None:
        axes.axvspan(lo, hi, color=GREEN, alpha=0.25, linewidth=0, zorder=0)
    at = knee.holds or knee.estimate
    axes.axvline(at, color=GREEN, linewidth=1.4, zorder=1)
    label = f"holds {at:,.0f}" if knee.holds else f"estimate {at:,.0f}"
    # left of the interval, or right of it where the axis is near
    x = min(at, lo or at)
    aside = -4
    end_at_x = "right"
    to_share = axes.transData + axes.transAxes.inverted()
    x_share, _ = to_share.transform((x, axes.get_ylim()[0]))
    if x_share < LABEL_SHARE:
        x = max(at, hi or at)
        aside = 4
        end_at_x = "left"
    axes.annotate(
        label,
        (x, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(aside, -2),
        textcoords="offset points",
        ha=end_at_x,
        va="top",
        color=GREEN,
        fontsize=11,
        fontweight="bold",
    )


def _slo_lines(axes: Axes, facts: ReportData, metric: str) -> None:
    for slo in facts.slos:
        if slo.metric != metric:
            continue
        at = slo.limit_ns / MS
        _, top = axes.get_ylim()
        label = f"SLO {slo.statistic} {slo_limit(slo)}"
        if at > top:
            label = f"{label}: far above"
            at = top
        else:
            axes.axhline(at, **LIMIT_LINE)
        axes.annotate(
            label,
            (0.01, at),
            va="top" if at == top else "bottom",
            xytext=(0, -4 if at == top else 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=11,
            zorder=4,
        )
