"""The run over time: users, requests, KV cache, GPUs; and where each level's mean TTFT is spent."""

from __future__ import annotations

from math import isfinite, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.metrics import SLO_METRICS
from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, MUTED, RED, RULE, TOP, drawing, to_svg
from harness.report.tables import mean_part
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.core.arrays import Floats
    from harness.metrics.result import Level
    from harness.records.samples import GpuSample
    from harness.report.report_data import ReportData

    Panels = dict[str, tuple[list[tuple[int, float]], float | None]]  # of points, and a ceiling

WIDTH, HEIGHT = 1160, 340
LOWER_PANEL_HEIGHT: Final = 85  # of each panel below, but for the first
GRID_POINTS: Final = 400  # at which the client's own count is taken


def timeline_chart(facts: ReportData) -> str:
    """One SVG; "" when there are neither levels nor records nor samples."""
    table, samples, levels = facts.run.table, facts.run.server, facts.levels
    begins = [level.start_ns for level in levels[:1]] + [s.at_ns for s in samples[:1]]
    if len(table):
        begins.append(int(table.sent_ns.min()))
    if not begins:
        return ""
    zero = min(begins)
    kv = [(sample.at_ns, 100 * sample.kv_usage) for sample in samples]
    below = _p95_ttft(facts) if facts.kind.has_phases else {}
    below |= {"KV cache in use, %": (kv, 105.0)} | _gpus(facts)
    below = {title: panel for title, panel in below.items() if any(y == y for _, y in panel[0])}  # noqa: PLR0124 - NaN
    ratios = (5, *[2] * len(below))
    height = HEIGHT + LOWER_PANEL_HEIGHT * max(len(below) - 1, 0)
    with drawing(WIDTH, height, ratios) as (figure, axes):
        top = axes[0]
        top.set_title("Requests in flight")
        for level in facts.levels:
            settled, end = ((at - zero) / SECOND for at in (level.settled_ns, level.end_ns))
            for each in axes:
                each.axvspan(settled, end, color=RULE, alpha=0.45, linewidth=0, zorder=0)
        for row in facts.run.events:
            for each in axes:
                each.axvline((row["at_ns"] - zero) / SECOND, color=RED, linewidth=1, alpha=0.7)
            top.text(
                (row["at_ns"] - zero) / SECOND,
                0.02,
                f" {row['name']} {row['what']}",
                transform=top.get_xaxis_transform(),
                rotation=90,
                fontsize=7,
                color=RED,
                va="bottom",
                ha="right",
            )
        _users(top, facts, zero)
        at = [(sample.at_ns - zero) / SECOND for sample in samples]
        if samples:
            top.plot(at, [s.running for s in samples], color=BLUE, label="running (server)")
            waits = [s.waiting for s in samples]
            top.plot(at, waits, color=RED, linestyle="--", label="waiting (server)")
        top.legend(loc="upper left", ncols=4, handlelength=2, columnspacing=1.4)
        top.set_ylim(0, top.get_ylim()[1] * 1.22)  # room for the legend
        for each, (title, (points, ceiling)) in zip(axes[1:], below.items(), strict=True):
            each.set_title(title)
            each.plot([(t - zero) / SECOND for t, _ in points], [y for _, y in points], color=BLUE)
            each.margins(y=0.2)
            each.set_ylim(0, ceiling)
        axes[-1].set_xlabel("seconds since the start (shaded: measured; white: ramp and warm-up)")
        return to_svg(figure, "timeline", "Users, running and waiting requests against time")


def _p95_ttft(facts: ReportData) -> Panels:
    """The p95 of the requests that began in each two seconds; a gap where it never came."""
    table = facts.run.table
    seen = SLO_METRICS["ttft"].observe(table)
    begun = table.begun_ns[seen.row]
    points = []
    if len(begun):
        for at in range(int(begun.min()), int(begun.max()), 2 * SECOND):
            inside = (begun >= at) & (begun < at + 2 * SECOND)
            points.append((at + SECOND, _p95_ms(seen.ns[inside])))
    return {"p95 TTFT of the requests of two seconds, ms": (points, None)}


def _p95_ms(ns: Floats) -> float:
    """NaN, a gap in the line, without a value or where too many are infinite."""
    if not len(ns):
        return nan
    p95_ns = float(np.quantile(ns, 0.95, method="higher"))
    return p95_ns / MS if isfinite(p95_ns) else nan


def _gpus(facts: ReportData) -> Panels:
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
    return {"GPU utilization, %": (busy, 105.0), "GPU power, W": (watts, None)}


def _users(axes: Axes, facts: ReportData, zero: int) -> None:
    """The users of the levels, and the requests in flight from the records."""
    if facts.levels:
        edges = [*(level.chosen_ns for level in facts.levels), facts.levels[-1].end_ns]
        users = [level.load for level in facts.levels]
        seconds = [(at - zero) / SECOND for at in edges]
        axes.step(
            seconds,
            [*users, users[-1]],
            where="post",
            color=MUTED,
            linewidth=3,
            alpha=0.5,
            label=f"{facts.unit.short_many} (target)",
        )
    table = facts.run.table
    if len(table):
        ends = np.sort(table.done_ns)
        begins = np.sort(table.sent_ns)
        grid = np.linspace(begins[0], ends[-1], GRID_POINTS)
        # Requests in flight at t: sent up to t, minus done up to t.
        under_way = np.searchsorted(begins, grid, "right") - np.searchsorted(ends, grid, "right")
        axes.plot(
            (grid - zero) / SECOND,
            under_way,
            color=INK,
            linewidth=1,
            alpha=0.8,
            label="in flight (client)",
        )


SPLIT_WIDTH: Final = 560
BAR_HEIGHT: Final = 22  # px, with the gap
FRAME_HEIGHT: Final = 92  # px, of what is around the bars
MAX_BARS: Final = 40
PARTS: Final = {"queue": GOLD, "prefill": BLUE, "rest": GREEN, "residual": RED}
WHISKER_OFFSETS: Final = {"queue": -0.24, "prefill": 0.0, "ttft": 0.24}  # where in the bar's height


def waterfall_chart(facts: ReportData) -> str:
    """One bar per level, in the order of the run; "" without any breakdown."""
    levels = facts.split[-MAX_BARS:]
    if not levels:
        return ""
    height = FRAME_HEIGHT + BAR_HEIGHT * max(len(levels), 3)
    with drawing(SPLIT_WIDTH, height) as (figure, (axes,)):
        axes.set_title("Mean TTFT by where it is spent, ms", pad=22)
        places = list(range(len(levels)))
        spent = [[mean_part(level, key)[0] for level in levels] for key in PARTS]
        lefts = _lefts(spent)
        for (name, color), widths, left in zip(PARTS.items(), spent, lefts, strict=True):
            axes.barh(places, widths, 0.78, left=left, color=color, label=name)
        for place, level in enumerate(levels):
            _whiskers(axes, place, level)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(places, [f"#{level.index + 1}: {level.load:,}" for level in levels])
        axes.set_ylim(len(levels) - 0.4, -0.6)
        axes.set_xlim(min(0.0, *(min(left) for left in lefts)), None)
        axes.set_xmargin(0.02)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.grid(visible=False, axis="y")
        axes.set_ylabel(f"level: {facts.unit.many}")
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.02, 0.99),
            ncols=4,
            borderpad=0,
            handlelength=0.9,
            columnspacing=1.0,
            handletextpad=0.4,
        )
        label = "Mean TTFT of each level, split by where it is spent"
        return to_svg(figure, "waterfall", label, top=TOP + LINE)


def _lefts(spent: list[list[float]]) -> list[list[float]]:
    """Where each bar begins: positive parts stack to the right of 0, negative ones to the left."""
    lefts: list[list[float]] = []
    # Where each level's bars end so far, to the right and to the left.
    right = [0.0] * len(spent[0])
    left = [0.0] * len(spent[0])
    for widths in spent:
        begins = []
        for level, width in enumerate(widths):
            begins.append(right[level] if width >= 0 else left[level])
            right[level] += max(width, 0.0)
            left[level] += min(width, 0.0)
        lefts.append(begins)
    return lefts


def _whiskers(axes: Axes, place: int, level: Level) -> None:
    """Draw the bounds of queue, prefill and the server's TTFT; exact values have none."""
    begins = {"prefill": mean_part(level, "queue")[0]}
    for key, height in WHISKER_OFFSETS.items():
        _, lo, hi = mean_part(level, key)
        begin = begins.get(key, 0.0)
        if hi > lo:
            bounds_ms = [begin + lo, begin + hi]
            axes.plot(bounds_ms, [place + height] * 2, color=INK, linewidth=1)
