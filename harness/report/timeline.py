"""The run over time: users, running and waiting requests, KV cache and GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.report.svg import BLUE, INK, MUTED, RED, RULE, drawing, to_svg
from harness.units import SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.measure.records.samples import GpuSample
    from harness.report.report_data import ReportData

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
    below = {"KV cache in use, %": (kv, 105.0)} | _gpus(facts)
    below = {title: panel for title, panel in below.items() if any(y == y for _, y in panel[0])}  # noqa: PLR0124 - NaN
    ratios = (5, *[2] * len(below))
    height = HEIGHT + LOWER_PANEL_HEIGHT * max(len(below) - 1, 0)
    with drawing(WIDTH, height, ratios) as (figure, axes):
        top = axes[0]
        top.set_title("Requests in flight")
        _windows(axes, facts, zero)
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


def _gpus(facts: ReportData) -> dict[str, tuple[list[tuple[int, float]], float | None]]:
    """Mean utilization and total power of the GPUs, reading by reading."""
    by_time: dict[int, list[GpuSample]] = {}
    for sample in facts.run.gpu:
        by_time.setdefault(sample.at_ns, []).append(sample)
    busy = [(at, sum(s.util_pct for s in read) / len(read)) for at, read in by_time.items()]
    watts = [(at, sum(s.power_w for s in read)) for at, read in by_time.items()]
    return {"GPU utilization, %": (busy, 105.0), "GPU power, W": (watts, None)}


def _windows(axes: list[Axes], facts: ReportData, zero: int) -> None:
    for level in facts.levels:
        settled, end = ((at - zero) / SECOND for at in (level.settled_ns, level.end_ns))
        for each in axes:
            each.axvspan(settled, end, color=RULE, alpha=0.45, linewidth=0, zorder=0)


def _users(axes: Axes, facts: ReportData, zero: int) -> None:
    """The users of the levels, and the requests in flight from the records."""
    if facts.levels:
        edges = [*(level.chosen_ns for level in facts.levels), facts.levels[-1].end_ns]
        users = [level.load for level in facts.levels]
        axes.plot(
            [(at - zero) / SECOND for at in edges],
            [*users, users[-1]],
            color=MUTED,
            linewidth=3,
            alpha=0.5,
            drawstyle="steps-post",
            label=f"{'requests/' if facts.is_rate else facts.who}s (target)",
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
