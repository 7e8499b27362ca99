"""TTFT by turn of a session: prompts grow with the history, which a prefix cache may hide."""

from __future__ import annotations

from itertools import pairwise
from math import nan
from typing import TYPE_CHECKING, Final, NamedTuple

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
FIRST_TURNS: Final = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 17, 25, 33, 65, 1 << 62])
WIDTH, HEIGHT = 400, 290


class TurnFigures(NamedTuple):
    """Requests of some turns at the level that stands for the run."""

    first: int
    last: int
    n: int
    prompt_tokens: float  # mean, as the server counted them; NaN: it did not
    cached_tokens: float  # mean, likewise
    p50_ms: float
    p95_ms: float


def turn_figures(facts: ReportData) -> list[TurnFigures]:
    """By turn, counted from 1; [] without sessions."""
    level = facts.result.at_knee
    if level is None or not (facts.run.table.turn >= 0).any():
        return []
    table, found = facts.run.table, []
    ttft = LATENCIES["ttft"].observe(table)
    ttft = in_window(ttft, table, "ttft", level.settled_ns, level.end_ns)
    turns = table.turn[ttft.row] + 1
    for first, after in pairwise(FIRST_TURNS.tolist()):
        here = (turns >= first) & (turns < after)
        if not here.any():
            continue
        row, ms = ttft.row[here], ttft.ns[here] / MS
        prompt, cached = (_mean(c[row]) for c in (table.prompt_tokens, table.cached_tokens))
        p50, p95 = (float(x) for x in np.quantile(ms, [0.5, 0.95], method="higher"))
        last = int(turns[here].max())
        found.append(TurnFigures(first, last, len(ms), prompt, cached, p50, p95))
    return found


def _mean(counts: NDArray[np.int64]) -> float:
    return float(counts[counts >= 0].mean()) if (counts >= 0).any() else nan


def turn_rows(facts: ReportData) -> list[dict[str, str]]:
    """The same in words."""
    return [
        {
            "Turn": f"{one.first}" + f" to {one.last}" * (one.last > one.first),
            "n": f"{one.n:,}",
            "Prompt tokens": format_number(one.prompt_tokens),
            "Of them cached": format_number(one.cached_tokens),
            "TTFT p50, ms": format_number(one.p50_ms),
            "p95": format_number(one.p95_ms),
        }
        for one in turn_figures(facts)
    ]


def turn_chart(facts: ReportData) -> str:
    """p95 and median by turn; "" for fewer than two points."""
    found = turn_figures(facts)
    if len(found) < 2:  # noqa: PLR2004 - a line
        return ""
    title, x = "TTFT by turn, ms: p95 and median", [one.first for one in found]
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("turn of the session")
        axes.plot(x, [one.p95_ms for one in found], color=BLUE, marker="o")
        axes.plot(x, [one.p50_ms for one in found], color=MUTED, linestyle=":", marker=".")
        axes.set_ylim(bottom=0)
        return to_svg(figure, "turns", title)
