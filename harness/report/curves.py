"""Throughput, goodput and p95 latencies against users, with the knee, its interval and the SLOs.

A point whose interval is wide or has no upper end is hollow: each level has its p95, and shows how
well it is known. The levels around the knee, where a search holds most of them, get a panel of
their own in which the holds of one level stand side by side.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from harness.measure.states import Decision, Verdict
from harness.report.say import Figure
from harness.report.svg import BLUE, GREEN, INK, MUTED, PAPER, RED, drawing, to_svg
from harness.report.words import limit
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes

    from harness.measure.result import Level
    from harness.measure.slo import Slo
    from harness.report.facts import Facts

    Points = list[tuple[float, float]]

WIDTH, HEIGHT = 400, 290
# what a level's row says of it: marker, color
MARKS: Final[dict[str, tuple[str, str]]] = {
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
}
AROUND: Final = 0.3  # of the best estimate: levels that are shown apart,
CROWDED: Final = 3  # where so many holds lie there
FAR: Final = 3.0  # times the highest point: an SLO's line above that is only named
MOST_TICKS: Final = 7
MANY: Final = 3_000  # times the lower end of a log axis: above, a tick for each power of ten
APART: Final = 0.04  # of the axis: closer ticks would overlap
TIP: Final = 16  # px above a point: the arrow of an interval without upper end


def curves(facts: Facts) -> list[str]:
    """One SVG per panel; panels without a single figure are left out."""
    names = [name for name in PANELS if facts.slos or name != "goodput"]
    drawn = {name: panel(facts, name) for name in names}
    if (metric := crowded(facts)) is not None:
        after = list(drawn).index(metric) + 1
        rest = list(drawn.items())
        drawn = dict([*rest[:after], ("around", panel(facts, metric, around=True)), *rest[after:]])
    return [svg for svg in drawn.values() if svg]


def crowded(facts: Facts) -> str | None:
    """The latency that is nearest to its limit around the knee, where many levels lie there."""
    near = [step for step in facts.used if _near(facts, step)]
    p95 = [slo for slo in facts.slos if slo.name == f"{slo.metric}_p95" and slo.metric in PANELS]
    if len(near) < CROWDED or not p95:
        return None

    def ratio(slo: Slo) -> float:
        seen = [step.observed(slo) * MS / slo.limit_ns for step in near]
        return max((one for one in seen if not math.isnan(one)), default=0)

    return max(p95, key=ratio).metric


def panel(facts: Facts, name: str, *, around: bool = False) -> str:
    """One panel of PANELS; "" when no level has its figure. `around`: only near the knee."""
    title, metric = PANELS[name]

    def figure_of(step: Level) -> Figure:
        if name == "throughput":
            return Figure(step.output_tokens_per_s)
        return Figure.of(step.latency(metric)) if metric else Figure(step.goodput_per_s)

    def near(step: Level) -> bool:
        return not around or _near(facts, step)

    groups = [steps for steps in facts.levels if near(steps[0])]
    medians = _means(groups, lambda s: Figure.of(s.latency(metric), "p50")) if metric else []
    shown = [step for step in facts.steps if near(step) and figure_of(step).known]
    if not shown and not medians:
        return ""
    if around:
        title, medians = f"{title.partition(' and')[0]}, around the knee", []
    dense = not around and crowded(facts) is not None  # near the knee: in their own panel
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("concurrent requests")
        _x_axis(axes, [step.users for step in facts.steps if near(step)], linear=around)
        values = [*(figure_of(step).value for step in shown), *(y for _, y in medians)]
        if around:
            values += [end for step in shown for end in (figure_of(step).lo, figure_of(step).hi)]
        _y_axis(axes, facts, metric, values, around=around)
        axes.plot(*_columns(medians), color=MUTED, linestyle=":", marker=".", zorder=2)
        axes.plot(*_columns(_means(groups, figure_of)), color=MUTED, linewidth=1, zorder=2)
        _knee(axes, facts)
        for x, step in zip(_beside(shown, apart=around), shown, strict=True):
            _point(axes, x, step.result, figure_of(step), small=dense and _near(facts, step))
        _slo_lines(axes, facts, metric)
        return to_svg(figure, f"curve-{name}{'-around' * around}", f"{title} against users")


def _near(facts: Facts, step: Level) -> bool:
    at = facts.knee.estimate or 0
    return abs(step.users - at) <= AROUND * at


def _beside(steps: Sequence[Level], *, apart: bool) -> list[float]:
    """Where each point lies: the holds of one level side by side, if there is room."""
    users = [step.users for step in steps]
    gap = min((b - a for a, b in pairwise(sorted(set(users)))), default=1) if apart else 0
    places, seen = [], dict.fromkeys(users, 0)
    for level in users:
        n = users.count(level)
        places.append(level + gap * 0.6 * ((seen[level] + 0.5) / n - 0.5))
        seen[level] += 1
    return places


def _x_axis(axes: Axes, users: list[int], *, linear: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    low, high = max(min(users), 1), max(users)
    if linear:
        margin = max((high - low) * 0.08, 0.6)
        axes.set_xlim(low - margin, high + margin)
    else:
        axes.set_xscale("log", base=2)
        axes.set_xlim(low / 1.25, high * 1.25)
    ends = axes.transData.transform([(x, 1.0) for x in axes.get_xlim()])[:, 0]
    width = ends[1] - ends[0]
    ticks: list[float] = []
    levels = sorted(set(users))
    powers = [2**i for i in range(1 + high.bit_length()) if low / 1.25 <= 2**i <= high * 1.25]
    for tick in levels if linear or len(levels) <= MOST_TICKS else powers:
        here, last = axes.transData.transform([(tick, 1.0), (ticks[-1] if ticks else tick, 1.0)])
        if not ticks or here[0] - last[0] >= APART * (2 if tick >= 100 else 1) * width:  # noqa: PLR2004 - digits
            ticks.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _y_axis(
    axes: Axes, facts: Facts, metric: str, values: Sequence[float], *, around: bool
) -> None:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    finite = [v for v in values if math.isfinite(v)]
    most = max(finite, default=0.0) or 1.0
    lines = [slo.limit_ns / MS for slo in facts.slos if slo.metric == metric]
    lines = [line for line in lines if line <= FAR * most]
    low, top = min([*finite, *lines], default=most), max([most, *lines])
    if around:
        axes.set_ylim(low - (top - low) * 0.08, top + (top - low) * 0.15)
    elif metric in ("ttft", "e2e"):
        axes.set_ylim(low / 1.6, top * 1.9)
        log_ticks(axes.yaxis)
        return
    else:
        axes.set_ylim(0, top * 1.2)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def log_ticks(axis: object) -> None:
    """A log axis with ticks at 1, 2 and 5, of many decades at 1. Takes a matplotlib axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    axis._set_axes_scale("log")  # type: ignore[attr-defined]  # noqa: SLF001
    low, high = axis.get_view_interval()  # type: ignore[attr-defined]
    subs = (1, 2, 5) if high < MANY * low else (1,)
    axis.set_major_locator(LogLocator(10, subs=subs))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]


def _means(groups: Sequence[Sequence[Level]], figure_of: Callable[[Level], Figure]) -> Points:
    """(users, mean over the level's holds) of each level with a finite figure."""
    means: Points = []
    for steps in groups:
        values = [figure_of(step).value for step in steps]
        finite = [v for v in values if math.isfinite(v)]
        if finite:
            means.append((steps[0].users, sum(finite) / len(finite)))
    return means


def _columns(points: Points) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _point(axes: Axes, x: float, result: str, seen: Figure, *, small: bool) -> None:
    marker, color = MARKS.get(result, ("o", MUTED))
    if math.isinf(seen.value):  # requests failed: no height would be true
        place = axes.get_xaxis_transform()
        axes.plot([x], [0.97], marker="^", color=RED, transform=place, clip_on=False)
        return
    if not math.isnan(seen.lo) and not small:
        bounded = math.isfinite(seen.hi)
        low = axes.transData.transform((x, seen.value))
        tip = axes.transData.inverted().transform((low[0], low[1] + TIP))[1]
        high = seen.hi if bounded else tip
        style: dict[str, Any] = {"color": color, "linewidth": 1, "alpha": 0.7}
        axes.plot([x] * 2, [seen.lo, high], markevery=[1], markersize=4,
                  marker="" if bounded else "^", **style)  # fmt: skip
    face, size = PAPER if seen.weak else color, 3 if small else 7
    axes.plot([x], [seen.value], marker=marker, color=color, markerfacecolor=face, markersize=size,
              zorder=3)  # fmt: skip


def _knee(axes: Axes, facts: Facts) -> None:
    knee, (lo, hi) = facts.knee, facts.knee.ci95
    if knee.estimate is None:
        return
    if lo is not None and hi is not None:
        axes.axvspan(lo, hi, color=GREEN, alpha=0.25, linewidth=0, zorder=0)
    at = knee.holds or knee.estimate
    axes.axvline(at, color=GREEN, linewidth=1.4, zorder=1)
    label = f"holds {at:,.0f}" if knee.holds else f"estimate {at:,.0f}"
    axes.annotate(label, (min(at, lo or at), 1.0), xycoords=("data", "axes fraction"),
                  xytext=(-4, -2), textcoords="offset points", ha="right", va="top",
                  color=GREEN, fontsize=11, fontweight="bold")  # fmt: skip


def _slo_lines(axes: Axes, facts: Facts, metric: str) -> None:
    for slo in facts.slos:
        if slo.metric != metric:
            continue
        at, (_, top) = slo.limit_ns / MS, axes.get_ylim()
        told = f"SLO {slo.name.partition('_')[2]} {limit(slo)}"
        if at > top:
            told, at = f"{told}: far above", top
        else:
            axes.axhline(at, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(told, (0.01, at), va="top" if at == top else "bottom",
                      xytext=(0, -4 if at == top else 2),
                      xycoords=("axes fraction", "data"), textcoords="offset points",
                      fontsize=11, zorder=4)  # fmt: skip
