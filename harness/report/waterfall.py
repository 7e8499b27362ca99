"""The breakdown of the mean TTFT of each level: queue, prefill, rest, and the client's residual.

Stacked bars; tables.py has the same figures as a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, RED, TOP, drawing, to_svg
from harness.report.tables import mean_part

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.measure.result import Level
    from harness.report.report_data import ReportData

WIDTH: Final = 560
BAR_HEIGHT, FRAME_HEIGHT = 22, 92  # height in px of a bar with its gap, and of what is around them
MAX_BARS: Final = 40
PARTS: Final = {"queue": GOLD, "prefill": BLUE, "rest": GREEN, "residual": RED}
WHISKER_OFFSETS: Final = {"queue": -0.24, "prefill": 0.0, "ttft": 0.24}  # where in the bar's height


def waterfall_chart(facts: ReportData) -> str:
    """One bar per level, in the order of the run; "" without any breakdown."""
    levels = facts.split[-MAX_BARS:]
    if not levels:
        return ""
    with drawing(WIDTH, FRAME_HEIGHT + BAR_HEIGHT * max(len(levels), 3)) as (figure, (axes,)):
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
        axes.set_ylabel(f"level: {facts.level_axis}")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=4, borderpad=0,
                    handlelength=0.9, columnspacing=1.0, handletextpad=0.4)  # fmt: skip
        label = "Mean TTFT of each level, split by where it is spent"
        return to_svg(figure, "waterfall", label, top=TOP + LINE)


def _lefts(spent: list[list[float]]) -> list[list[float]]:
    """Where each bar begins: positive parts stack to the right of 0, negative ones to the left."""
    lefts: list[list[float]] = []
    right, wrong = [0.0] * len(spent[0]), [0.0] * len(spent[0])
    for widths in spent:
        lefts.append([a if w >= 0 else b for w, a, b in zip(widths, right, wrong, strict=True)])
        right = [a + max(w, 0.0) for a, w in zip(right, widths, strict=True)]
        wrong = [b + min(w, 0.0) for b, w in zip(wrong, widths, strict=True)]
    return lefts


def _whiskers(axes: Axes, place: int, level: Level) -> None:
    """Draw the bounds of queue, prefill and the server's TTFT; exact values have none."""
    begins = {"prefill": mean_part(level, "queue")[0]}
    for key, height in WHISKER_OFFSETS.items():
        _, lo, hi = mean_part(level, key)
        begin = begins.get(key, 0.0)
        if hi > lo:
            axes.plot([begin + lo, begin + hi], [place + height] * 2, color=INK, linewidth=1)
