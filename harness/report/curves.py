"""Throughput and p95 latencies against users, with the knee, its interval and the SLO lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from harness.measure.states import Decision
from harness.report.say import Figure
from harness.report.svg import BLUE, GREEN, INK, MUTED, PAPER, RED, drawing, to_svg
from harness.report.words import limit
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes

    from harness.measure.result import Level
    from harness.report.facts import Facts

WIDTH, HEIGHT = 400, 290
# decision: marker, colour, filled
MARKS: Final = {
    Decision.passed: ("o", BLUE, True),
    Decision.failed: ("X", RED, True),
    Decision.inconclusive: ("o", MUTED, False),
    Decision.invalid: ("x", MUTED, True),
}
PANELS: Final = {
    "throughput": ("Output tokens/s", ""),
    "ttft": ("TTFT, ms: p95 and median", "ttft"),
    "itl": ("ITL, ms: p95 and median", "itl"),
}


def curves(facts: Facts) -> list[str]:
    """One SVG per panel; panels without a single figure are left out."""
    return [svg for name in PANELS if (svg := panel(facts, name))]


def panel(facts: Facts, name: str) -> str:
    """One panel of PANELS; "" when no step has its figure."""
    title, metric = PANELS[name]

    def figure_of(step: Level) -> Figure:
        if not metric:
            return Figure(step.output_tokens_per_s)
        return Figure.of(step.latency(metric))

    medians = _means(facts, lambda step: Figure.of(step.latency(metric), "p50")) if metric else []
    shown = [step for step in facts.steps if figure_of(step).known]
    if not shown and not medians:
        return ""
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("concurrent requests")
        _x_axis(axes, [step.users for step in facts.steps])
        _y_axis(
            axes,
            facts,
            metric,
            [*(figure_of(step).value for step in shown), *(y for _, y in medians)],
        )
        axes.plot(*_columns(medians), color=MUTED, linestyle=":", marker=".", zorder=2)
        axes.plot(*_columns(_means(facts, figure_of)), color=MUTED, linewidth=1, zorder=2)
        for step in shown:
            _point(axes, step, figure_of(step))
        _knee(axes, facts)
        _slo_lines(axes, facts, metric)
        return to_svg(figure, f"curve-{name}", f"{title} against concurrent requests")


def _x_axis(axes: Axes, users: list[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator  # noqa: PLC0415

    low, high = max(min(users), 1), max(*users, 2)
    axes.set_xscale("log", base=2)
    axes.set_xlim(low / 1.25, high * 1.25)
    powers = [2.0**i for i in range(12) if low / 1.25 <= 2**i <= high * 1.25]
    axes.xaxis.set_major_locator(FixedLocator(powers))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())


def _y_axis(axes: Axes, facts: Facts, metric: str, values: list[float]) -> None:
    from matplotlib.ticker import FuncFormatter  # noqa: PLC0415

    finite = [v for v in values if math.isfinite(v)]
    lines = [slo.limit_ns / MS for slo in facts.slos if slo.metric == metric]
    top = max([*finite, *lines], default=1.0)
    if metric == "ttft":
        log_ticks(axes.yaxis)
        axes.set_ylim(min([*finite, *lines], default=1.0) / 1.6, top * 1.9)
    else:
        axes.set_ylim(0, top * 1.2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))


def log_ticks(axis: object) -> None:
    """A log axis with ticks at 1, 2 and 5, in plain numbers. Takes a matplotlib axis."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator  # noqa: PLC0415

    axis._set_axes_scale("log")  # type: ignore[attr-defined]  # noqa: SLF001
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,g}"))  # type: ignore[attr-defined]
    axis.set_minor_locator(NullLocator())  # type: ignore[attr-defined]


def _means(facts: Facts, figure_of: Callable[[Level], Figure]) -> list[tuple[float, float]]:
    """(users, mean over the level's steps) of each level with a finite figure."""
    means: list[tuple[float, float]] = []
    for steps in facts.levels:
        values = [figure_of(step).value for step in steps]
        finite = [v for v in values if math.isfinite(v)]
        if finite:
            means.append((steps[0].users, sum(finite) / len(finite)))
    return means


def _columns(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _point(axes: Axes, step: Level, figure: Figure) -> None:
    marker, color, filled = MARKS.get(step.decision, MARKS[Decision.inconclusive])
    if math.isinf(figure.value):  # requests failed: no height would be true
        place = axes.get_xaxis_transform()
        axes.plot([step.users], [0.97], marker="^", color=RED, transform=place, clip_on=False)
        return
    if not math.isnan(figure.lo):
        high = figure.hi if math.isfinite(figure.hi) else axes.get_ylim()[1]
        axes.plot([step.users] * 2, [figure.lo, high], color=color, linewidth=1, alpha=0.7)
    face = color if filled else PAPER
    axes.plot([step.users], [figure.value], marker=marker, color=color, markerfacecolor=face,
              markersize=7, zorder=3)  # fmt: skip


def _knee(axes: Axes, facts: Facts) -> None:
    at, (lo, hi) = facts.knee.estimate, facts.knee.ci95
    if lo is not None and hi is not None:
        axes.axvspan(lo, hi, color=GREEN, alpha=0.25, linewidth=0, zorder=0)
    if at is not None:
        axes.axvline(at, color=GREEN, linewidth=1.4, zorder=1)
        beside = at if lo is None else min(at, lo)  # not on the band
        axes.annotate(f"knee {at:,.0f}", (beside, 1.0), xycoords=("data", "axes fraction"),
                      xytext=(-4, -2), textcoords="offset points", ha="right", va="top",
                      color=GREEN, fontsize=11, fontweight="bold")  # fmt: skip


def _slo_lines(axes: Axes, facts: Facts, metric: str) -> None:
    for slo in facts.slos:
        if slo.metric == metric:
            axes.axhline(slo.limit_ns / MS, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(f"SLO {limit(slo)}", (0.01, slo.limit_ns / MS), va="bottom",
                          xycoords=("axes fraction", "data"), xytext=(0, 2),
                          textcoords="offset points", fontsize=11)  # fmt: skip
