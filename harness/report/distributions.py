"""How TTFT and ITL are spread below, at and above the knee: shares of requests or gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.figures import in_window
from harness.measure.metrics import lost_gaps, ttft
from harness.measure.spread import Spread, bin_edges, bin_of
from harness.measure.states import Decision
from harness.measure.walk import inside, walk
from harness.report.curves import HEIGHT, WIDTH, log_ticks
from harness.report.say import count
from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, MUTED, PAPER, RED, drawing, to_svg
from harness.report.words import limit, metric_name
from harness.units import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.measure.result import Level
    from harness.measure.walk import Piece
    from harness.report.facts import Facts

POINTS: Final = 240  # of a curve; more would not be seen
BELOW: Final = 20  # a drawing begins at this part of the lowest median
STYLES: Final = {"below": (BLUE, "-"), "knee": (GREEN, "--"), "above": (RED, ":")}


def distributions(facts: Facts) -> list[str]:
    """One SVG each for TTFT and ITL; none where nothing was measured."""
    return [svg for metric in ("ttft", "itl") if (svg := distribution(facts, metric))]


def chosen_levels(facts: Facts) -> dict[str, list[Level]]:
    """Steps of the level at the knee, of the next bad one above, of one at about half of it."""
    at = facts.result.at_knee
    levels = facts.levels
    if at is None:
        return {"knee": levels[-1]} if levels else {}
    chosen = {"knee": next(steps for steps in levels if steps[0].users == at.users)}
    below = [steps for steps in levels if steps[0].users < at.users]
    if below:
        chosen["below"] = min(below, key=lambda steps: abs(steps[0].users - at.users / 2))
    above = [
        s for s in levels if s[0].users > at.users and any(x.decision == Decision.failed for x in s)
    ]
    above = above or [steps for steps in levels if steps[0].users > at.users]
    if above:
        chosen["above"] = above[0]
    return {name: chosen[name] for name in STYLES if name in chosen}


Curve = tuple["NDArray[np.float64]", "NDArray[np.float64]"]  # x in ms, share at most x


def ttft_curve(facts: Facts, steps: list[Level]) -> Curve:
    """Of all requests sent in the steps' windows; failures are never reached."""
    table = facts.run.table
    seen = ttft(table)
    windows = [(step.settled_ns, step.end_ns) for step in steps]
    parts = [in_window(seen, table, "ttft", start, end).ns for start, end in windows]
    values = np.sort(np.concatenate(parts)) / MS
    n = len(values)
    rank = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
    rank = rank[np.isfinite(values[rank])]
    return values[rank], (rank + 1) / max(n, 1)


class GapCurve:
    """Of all gaps that ended in the steps' windows, within a thousandth: a Walker."""

    def __init__(self, facts: Facts, steps: list[Level]) -> None:
        """Nothing counted yet."""
        self.windows = [(step.settled_ns, step.end_ns) for step in steps]
        self.start_ns = min(start for start, _ in self.windows)
        self.end_ns = max(end for _, end in self.windows)
        self.spread = Spread()
        rows, owed = lost_gaps(facts.run.table)
        at = facts.run.table.done_ns[rows]
        inside_any = [(at >= start) & (at <= end) for start, end in self.windows]
        self.lost = sum(int(owed[here].sum()) for here in inside_any)

    def see(self, piece: Piece) -> None:
        """Count a piece's gaps."""
        for window in self.windows:
            self.spread.count(bin_of(piece.gap_ns[inside(piece.end_ns, *window)]))

    @property
    def curve(self) -> Curve:
        """What was counted; gaps that never ended are never reached."""
        bins, upto = self.spread.bins
        if not len(bins):
            return np.zeros(0), np.zeros(0)
        n = int(upto[-1])
        rank = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
        low, above = bin_edges(bins[np.searchsorted(upto, rank, "right")])
        return (low + above) / 2 / MS, (rank + 1) / (n + self.lost)


def curves(facts: Facts, metric: str) -> dict[str, tuple[int, Curve]]:
    """(users, curve) of each chosen level that has observations."""
    levels = chosen_levels(facts)
    if metric == "ttft":
        found = {name: ttft_curve(facts, steps) for name, steps in levels.items()}
    else:
        walkers = {name: GapCurve(facts, steps) for name, steps in levels.items()}
        walk(facts.run, list(walkers.values()))
        found = {name: walker.curve for name, walker in walkers.items()}
    return {name: (levels[name][0].users, c) for name, c in found.items() if len(c[0])}


def distribution(facts: Facts, metric: str) -> str:
    """The empirical distribution of one latency; "" when there are no observations."""
    samples = curves(facts, metric)
    if not samples:
        return ""
    failed = {step.users for step in facts.used if step.decision == Decision.failed}
    what = "requests" if metric == "ttft" else "gaps"
    title = f"{metric_name(metric)}: share of {what} up to x ms"
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("ms")
        axes.set_ylim(0, 1.02)
        axes.axhline(0.95, color=MUTED, linewidth=1)
        axes.annotate("p95", (1.01, 0.95), xycoords=("axes fraction", "data"), ha="left",
                      va="center", fontsize=11, color=MUTED)  # fmt: skip
        for name, (users, (x, y)) in samples.items():
            color, dash = STYLES[name]
            if name == "above" and users not in failed:
                color = GOLD
            label = f"{count(users, 'user')}" + (" (holds)" if users == facts.knee.holds else "")
            axes.plot(x, y, color=color, linestyle=dash, linewidth=2, label=label)
        for slo in facts.slos:
            if slo.metric == metric:
                axes.axvline(slo.limit_ns / MS, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
                axes.annotate(f"SLO {limit(slo)}", (slo.limit_ns / MS, 0.02), rotation=90,
                              va="bottom", ha="center", fontsize=11,
                              bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
        # not down to the gaps of nearly nothing between tokens that came in one read
        middles = [float(x[np.argmax(y >= 0.5)]) for _, (x, y) in samples.values()]  # noqa: PLR2004
        lows = [float(x[0]) for _, (x, _) in samples.values()]
        axes.set_xlim(left=max(min(middles) / BELOW, 0.8 * min(lows)))
        log_ticks(axes.xaxis)
        axes.legend(loc="best", handlelength=2.4)
        return to_svg(figure, f"spread-{metric}", title, right=2 * LINE)
