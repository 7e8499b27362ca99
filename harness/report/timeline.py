"""The run against time: users held, what the server ran and kept waiting, its KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.report.svg import BLUE, INK, MUTED, RED, RULE, drawing, to_svg
from harness.units import SECOND

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.measure.samples import GpuSample
    from harness.report.facts import Facts

WIDTH, HEIGHT = 860, 340
BELOW: Final = 85  # of each panel below, but for the first
INSTANTS: Final = 400  # at which the client's own count is taken


def timeline(facts: Facts) -> str:
    """One SVG; "" when there are neither steps nor records nor samples."""
    table, samples, steps = facts.run.table, facts.run.server, facts.steps
    begins = [step.start_ns for step in steps[:1]] + [s.at_ns for s in samples[:1]]
    if len(table):
        begins.append(int(table.sent_ns.min()))
    if not begins:
        return ""
    zero = min(begins)
    kv = [(sample.at_ns, 100 * sample.kv_usage) for sample in samples]
    below = {"KV cache in use, %": (kv, 105.0)} | _gpus(facts)
    below = {title: told for title, told in below.items() if any(y == y for _, y in told[0])}  # noqa: PLR0124 - NaN
    ratios = (5, *[2] * len(below))
    height = HEIGHT + BELOW * max(len(below) - 1, 0)
    with drawing(WIDTH, height, ratios) as (figure, axes):
        top = axes[0]
        top.set_title("Requests under way")
        _windows(axes, facts, zero)
        _users(top, facts, zero)
        at = [(sample.at_ns - zero) / SECOND for sample in samples]
        if samples:
            top.plot(at, [s.running for s in samples], color=BLUE, label="running (server)")
            waits = [s.waiting for s in samples]
            top.plot(at, waits, color=RED, linestyle="--", label="waiting (server)")
        top.legend(loc="upper left", ncols=4, handlelength=2, columnspacing=1.4)
        top.set_ylim(0, top.get_ylim()[1] * 1.22)  # room for the legend
        for each, (title, (points, most)) in zip(axes[1:], below.items(), strict=True):
            each.set_title(title)
            each.plot([(t - zero) / SECOND for t, _ in points], [y for _, y in points], color=BLUE)
            each.margins(y=0.2)
            each.set_ylim(0, most)
        axes[-1].set_xlabel("seconds from the start; grey: measured, white: ramp and warm-up")
        return to_svg(figure, "timeline", "Users, running and waiting requests against time")


def _gpus(facts: Facts) -> dict[str, tuple[list[tuple[int, float]], float | None]]:
    """Mean utilization and total power of the GPUs, reading by reading."""
    by_time: dict[int, list[GpuSample]] = {}
    for sample in facts.run.gpu:
        by_time.setdefault(sample.at_ns, []).append(sample)
    busy = [(at, sum(s.util_pct for s in read) / len(read)) for at, read in by_time.items()]
    watts = [(at, sum(s.power_w for s in read)) for at, read in by_time.items()]
    return {"GPU utilization, %": (busy, 105.0), "GPU power, W": (watts, None)}


def _windows(axes: list[Axes], facts: Facts, zero: int) -> None:
    for step in facts.steps:
        settled, end = ((at - zero) / SECOND for at in (step.settled_ns, step.end_ns))
        for each in axes:
            each.axvspan(settled, end, color=RULE, alpha=0.45, linewidth=0, zorder=0)


def _users(axes: Axes, facts: Facts, zero: int) -> None:
    """Users asked for by the steps, and requests under way by the records."""
    if facts.steps:
        edges = [*(step.chosen_ns for step in facts.steps), facts.steps[-1].end_ns]
        users = [step.users for step in facts.steps]
        axes.plot(
            [(at - zero) / SECOND for at in edges],
            [*users, users[-1]],
            color=MUTED,
            linewidth=3,
            alpha=0.5,
            drawstyle="steps-post",
            label="users wanted",
        )
    table = facts.run.table
    if len(table):
        ends = np.sort(table.done_ns)
        begins = np.sort(table.sent_ns)
        grid = np.linspace(begins[0], ends[-1], INSTANTS)
        under_way = np.searchsorted(begins, grid, "right") - np.searchsorted(ends, grid, "right")
        axes.plot(
            (grid - zero) / SECOND,
            under_way,
            color=INK,
            linewidth=1,
            alpha=0.8,
            label="under way (client)",
        )
