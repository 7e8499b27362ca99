"""Where the mean TTFT goes, step by step: queue, prefill, rest, and the client's residual.

A drawing of stacked bars, a table with the same figures and their bounds, and the buckets that hold
the quantiles. All from each step's `ttft_split`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from harness.report.say import UNKNOWN, bounds, places, rounded
from harness.report.svg import BLUE, GOLD, GREEN, INK, LINE, RED, TOP, drawing, to_svg
from harness.report.words import in_markdown, ruled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from harness.measure.result import Level
    from harness.report.facts import Facts

WIDTH: Final = 400
ROW, FRAME = 22, 92  # height in px of a bar with its gap, and of what is around them
MOST_BARS: Final = 40
PARTS: Final = {"queue": GOLD, "prefill": BLUE, "rest": GREEN, "residual": RED}
WHISKERS: Final = {"queue": -0.24, "prefill": 0.0, "ttft": 0.24}  # where in the bar's height
COLUMNS: Final = {
    "queue": "Queue", "prefill": "Prefill", "rest": "Rest", "ttft": "Server",
    "residual": "Residual", "client": "Client",
}  # fmt: skip
OBSERVED: Final = {"ttft": "TTFT", "queue": "Queue", "prefill": "Prefill"}


def split_steps(facts: Facts) -> list[Level]:
    """The steps whose split is known."""
    return [step for step in facts.used if not math.isnan(_mean(step, "rest")[0])]


def _mean(step: Level, key: str) -> tuple[float, float, float]:
    """The mean of one part in ms, and the bounds that it lies in."""
    split = step.ttft_split
    return (getattr(split, f"{key}_ms"), *bounds(getattr(split, f"{key}_ms_bound")))


def waterfall(facts: Facts) -> str:
    """One bar per step, in the order of the run; "" where no split is known."""
    steps = split_steps(facts)[-MOST_BARS:]
    if not steps:
        return ""
    with drawing(WIDTH, FRAME + ROW * max(len(steps), 3)) as (figure, (axes,)):
        axes.set_title("Mean TTFT by where it is spent, ms", pad=22)
        places = list(range(len(steps)))
        spent = [[_mean(step, key)[0] for step in steps] for key in PARTS]
        lefts = _lefts(spent)
        for (name, color), widths, left in zip(PARTS.items(), spent, lefts, strict=True):
            axes.barh(places, widths, 0.78, left=left, color=color, label=name)
        for place, step in enumerate(steps):
            _whiskers(axes, place, step)
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(places, [f"#{step.index + 1}: {step.users:,}" for step in steps])
        axes.set_ylim(len(steps) - 0.4, -0.6)
        axes.set_xlim(min(0.0, *(min(left) for left in lefts)), None)
        axes.set_xmargin(0.02)
        axes.grid(visible=False, axis="y")
        axes.set_ylabel("level: concurrent requests")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.99), ncols=4, borderpad=0,
                    handlelength=0.9, columnspacing=1.0, handletextpad=0.4)  # fmt: skip
        label = "Mean TTFT of each level, split by where it is spent"
        return to_svg(figure, "waterfall", label, top=TOP + LINE)


def _lefts(spent: list[list[float]]) -> list[list[float]]:
    """Where each part's bars begin: side by side, what is below 0 to the left of 0."""
    lefts: list[list[float]] = []
    right, wrong = [0.0] * len(spent[0]), [0.0] * len(spent[0])
    for widths in spent:
        lefts.append([a if w >= 0 else b for w, a, b in zip(widths, right, wrong, strict=True)])
        right = [a + max(w, 0.0) for a, w in zip(right, widths, strict=True)]
        wrong = [b + min(w, 0.0) for b, w in zip(wrong, widths, strict=True)]
    return lefts


def _whiskers(axes: Axes, place: int, step: Level) -> None:
    """Where queue, prefill and the server's TTFT may end instead; what is exact has none."""
    begins = {"prefill": _mean(step, "queue")[0]}
    for key, height in WHISKERS.items():
        _, lo, hi = _mean(step, key)
        begin = begins.get(key, 0.0)
        if hi > lo:
            axes.plot([begin + lo, begin + hi], [place + height] * 2, color=INK, linewidth=1)


def table_rows(facts: Facts) -> list[dict[str, str]]:
    """The figures of the bars, ms; where one is not exact its bounds are in parentheses."""
    rows = []
    for step in split_steps(facts):
        split = step.ttft_split
        decimals = max(places(_mean(step, "client")[0]), 0)  # one for all: they add up
        row = {
            "#": str(step.index + 1),
            "Users": f"{step.users:,}",
            "n": f"{split.n:,}",
        }
        for key, name in COLUMNS.items():
            mean, lo, hi = (rounded(x, decimals) for x in _mean(step, key))
            row[name] = mean if lo == hi else f"{mean} ({lo} to {hi})"
        rows.append(row | {"Exact": "yes" if split.exact else "no"})
    return rows


def bucket_rows(facts: Facts) -> list[dict[str, str]]:
    """Quantiles beside each other, each as the bucket in ms that holds it."""
    rows = []
    for step in split_steps(facts):
        split = step.ttft_split
        held = {
            f"{name} {q}": _bucket(getattr(split, f"{key}_{q}_ms_bucket"))
            for q in ("p50", "p95")
            for key, name in OBSERVED.items()
        }
        if any(value != UNKNOWN for value in held.values()):
            rows.append({"#": str(step.index + 1), "Users": f"{step.users:,}"} | held)
    return rows


def _bucket(pair: Any) -> str:
    lo, hi = bounds(pair)
    if math.isnan(lo):
        return UNKNOWN
    return f"over {lo:,.10g}" if math.isinf(hi) else f"{lo:,.10g} to {hi:,.10g}"


def in_words(facts: Facts) -> str:
    """How the table is to be read."""
    exact = [step for step in split_steps(facts) if step.ttft_split.exact]
    told = (
        "Server and client: the mean TTFT as each of them sees it. Means add up over the same "
        "requests: those sent between two scrapes of the server. Queue "
        "and prefill are the server's own, rest is what its TTFT has beyond them (tokenizing, to "
        "the engine and back), the residual what ours has beyond its (network, HTTP, reading the "
        "request)."
    )
    if len(exact) < len(split_steps(facts)):
        told += (
            " Where requests were in flight at a scrape the server counts others than we do: the "
            "true mean lies within the bounds (whiskers); a level that began and ended empty has "
            "none."
        )
    return told


def as_markdown(facts: Facts) -> list[str]:
    """The table, and the sentence below it; [] where no split is known."""
    rows = table_rows(facts)
    if not rows:
        return []
    names = list(rows[0])
    lines = ["", "<details><summary>Mean TTFT by where it is spent, ms</summary>", ""]
    lines += [f"| {' | '.join(names)} |", ruled(names, "Exact")]
    lines += [f"| {' | '.join(map(in_markdown, row.values()))} |" for row in rows]
    return [*lines, "", in_words(facts), "", "</details>"]
