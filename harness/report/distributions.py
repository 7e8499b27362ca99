"""How TTFT and ITL are spread below, at and above the knee: shares of requests or gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.metrics import METRICS
from harness.measure.summary import in_window
from harness.report.curves import HEIGHT, WIDTH, log_ticks
from harness.report.svg import BLUE, GREEN, INK, MUTED, PAPER, RED, drawing, to_svg
from harness.report.words import limit, metric_name
from harness.units import MS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.report.facts import Facts
    from harness.report.steprow import StepRow

POINTS: Final = 240  # of a curve; more would not be seen
STYLES: Final = {"below": (BLUE, "-"), "knee": (GREEN, "--"), "above": (RED, ":")}


def distributions(facts: Facts) -> list[str]:
    """One SVG each for TTFT and ITL; none where nothing was measured."""
    return [svg for metric in ("ttft", "itl") if (svg := distribution(facts, metric))]


def chosen_levels(facts: Facts) -> dict[str, list[StepRow]]:
    """Steps of the level at the knee, of the next bad one above, of one at about half of it."""
    at = facts.at_knee()
    levels = facts.levels
    if at is None:
        return {"knee": levels[-1]} if levels else {}
    chosen = {"knee": next(steps for steps in levels if steps[0].users == at.users)}
    below = [steps for steps in levels if steps[0].users < at.users]
    if below:
        chosen["below"] = min(below, key=lambda steps: abs(steps[0].users - at.users / 2))
    above = [s for s in levels if s[0].users > at.users and any(x.decision == "bad" for x in s)]
    above = above or [steps for steps in levels if steps[0].users > at.users]
    if above:
        chosen["above"] = above[0]
    return {name: chosen[name] for name in STYLES if name in chosen}


def values_ms(facts: Facts, metric: str, steps: list[StepRow]) -> NDArray[np.float64]:
    """All observations of the steps' windows in ms, ascending; +inf at the end for failures."""
    table = facts.run.table
    observe = METRICS[metric].observe
    if observe is None or not len(table):
        return np.zeros(0)
    seen = observe(table)
    parts = [
        in_window(seen, table, metric, settled, end).ns / MS
        for _, settled, end in (step.window for step in steps)
    ]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0)


def distribution(facts: Facts, metric: str) -> str:
    """The empirical distribution of one latency; "" when there are no observations."""
    samples = {
        name: (steps[0].users, values)
        for name, steps in chosen_levels(facts).items()
        if np.isfinite(values := values_ms(facts, metric, steps)).any()
    }
    if not samples:
        return ""
    what = "requests" if metric == "ttft" else "gaps"
    title = f"{metric_name(metric)}: share of {what} up to x ms"
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title(title)
        axes.set_xlabel("ms")
        log_ticks(axes.xaxis)
        axes.set_ylim(0, 1.02)
        axes.axhline(0.95, color=MUTED, linewidth=1)
        axes.annotate("p95", (0.995, 0.945), xycoords=("axes fraction", "data"), ha="right",
                      va="top", fontsize=11, color=MUTED)  # fmt: skip
        for name, (users, values) in samples.items():
            color, dash = STYLES[name]
            x, y = curve(values)
            label = f"{users:,} users" + (" (knee)" if users == facts.users[0] else "")
            axes.plot(x, y, color=color, linestyle=dash, linewidth=2, label=label)
        for slo in facts.slos:
            if slo.metric == metric:
                axes.axvline(slo.limit_ns / MS, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
                axes.annotate(f"SLO {limit(slo)}", (slo.limit_ns / MS, 0.02), rotation=90,
                              va="bottom", ha="center", fontsize=11,
                              bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1})  # fmt: skip
        axes.legend(loc="best", handlelength=2.4)
        return to_svg(figure, f"spread-{metric}", title)


def curve(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(x in ms, share at most x), at most POINTS + 1 points; what is infinite is never reached."""
    n = len(values)
    rank = np.unique(np.linspace(0, n - 1, min(n, POINTS)).round().astype(int))
    rank = rank[np.isfinite(values[rank])]
    return values[rank], (rank + 1) / n
