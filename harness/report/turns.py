"""TTFT by turn of a session: prompts grow with the history, which a prefix cache may hide."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.latency_figures import in_window
from harness.measure.metrics import LATENCIES
from harness.report.numbers import format_number
from harness.report.svg import BLUE, MUTED, drawing, to_svg
from harness.units import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.report.report_data import ReportData

# The first turns of a row; later turns are few in each level.
FIRST_TURNS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 65, 1 << 62)
WIDTH, HEIGHT = 400, 290


Figures = tuple[int, int, int, float, float, float, float]


def turn_figures(facts: ReportData) -> list[Figures]:
    """(first and last turn, requests, mean prompt and cached tokens, p50, p95 of TTFT in ms).

    At the level that stands for the run, turns counted from 1; [] without sessions.
    """
    level, table = facts.result.at_knee, facts.run.table
    if level is None or not (table.turn >= 0).any():
        return []
    ttft = LATENCIES["ttft"].observe(table)
    ttft = in_window(ttft, table, "ttft", level.settled_ns, level.end_ns)
    turns, found = table.turn[ttft.row] + 1, []
    for first, after in pairwise(FIRST_TURNS):
        here = (turns >= first) & (turns < after)
        row, ms = ttft.row[here], ttft.ns[here] / MS
        if len(row):
            prompt, cached = (_mean(c[row]) for c in (table.prompt_tokens, table.cached_tokens))
            p50, p95 = np.quantile(ms, [0.5, 0.95], method="higher").tolist()
            found.append((first, int(turns[here].max()), len(ms), prompt, cached, p50, p95))
    return found


def _mean(counts: NDArray[np.int64]) -> float:
    return float(counts[counts >= 0].mean()) if (counts >= 0).any() else nan


def turn_rows(facts: ReportData) -> list[dict[str, str]]:
    """The same in words."""
    heads = "Prompt tokens", "Of them cached", "TTFT p50, ms", "p95"
    return [
        {"Turn": f"{first}" + f" to {last}" * (last > first), "n": f"{n:,}"}
        | dict(zip(heads, map(format_number, figures), strict=True))
        for first, last, n, *figures in turn_figures(facts)
    ]


def turn_chart(facts: ReportData) -> str:
    """p95 and median by turn; "" for fewer than two points."""
    found, title = turn_figures(facts), "TTFT by turn, ms: p95 and median"
    if len(found) < 2:  # noqa: PLR2004 - a line
        return ""
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415 - half a second

    turn, *_, p50, p95 = zip(*found, strict=True)
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("turn of the session")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.plot(turn, p95, color=BLUE, marker="o")
        axes.plot(turn, p50, color=MUTED, linestyle=":", marker=".")
        axes.set_ylim(bottom=0)
        return to_svg(figure, "turns", title)
