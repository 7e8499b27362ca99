"""Where the mean TTFT goes at each level: the server's queue, its prefill, and everything else.

Queue and prefill are the server's own means over the step's window, observed as requests end; the
client's mean TTFT is of the requests sent in it. In a window of many request lifetimes the two are
the same requests. What is left over is tokenizing, IPC, HTTP and the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.report.curves import HEIGHT, WIDTH
from harness.report.svg import BLUE, GOLD, MUTED, drawing, to_svg

if TYPE_CHECKING:
    from harness.measure.samples import ServerSample
    from harness.report.facts import Facts
    from harness.report.steprow import StepRow

MOST_LABELS: Final = 12
COLORS: Final = {"queue": GOLD, "prefill": BLUE, "everything else": MUTED}


@dataclass(frozen=True, slots=True)
class Part:
    """Mean TTFT of one level in ms, in the order in which it is spent."""

    users: int
    queue: float
    prefill: float
    rest: float


def parts(facts: Facts) -> list[Part]:
    """One per level whose server and client both say enough."""
    found = (part_of(steps, facts.run.server) for steps in facts.levels)
    return [part for part in found if part is not None]


def part_of(steps: list[StepRow], samples: list[ServerSample]) -> Part | None:
    """All steps of a level together."""
    queue, prefill = (server_mean_ms(steps, samples, name) for name in ("queue", "prefill"))
    sent = [(step.latency("ttft", "n").value, step.latency("ttft", "mean").value) for step in steps]
    n = sum(count for count, mean in sent if not math.isnan(mean))
    if math.isnan(queue + prefill) or not n > 0:
        return None
    client = sum(count * mean for count, mean in sent if not math.isnan(mean)) / n
    return Part(steps[0].users, queue, prefill, max(client - queue - prefill, 0.0))


def server_mean_ms(steps: list[StepRow], samples: list[ServerSample], name: str) -> float:
    """Mean of a server's histogram over the steps' windows; NaN when it counted nothing."""
    total = count = 0.0
    for step in steps:
        _, settled, end = step.window
        inside = [sample for sample in samples if settled <= sample.at_ns <= end]
        if inside:
            first, last = inside[0], inside[-1]
            total += getattr(last, f"{name}_sum_s") - getattr(first, f"{name}_sum_s")
            count += getattr(last, f"{name}_count") - getattr(first, f"{name}_count")
    return 1e3 * total / count if count > 0 else math.nan


def breakdown(facts: Facts) -> str:
    """Stacked bars, one per level; "" without two levels to compare."""
    found = parts(facts)
    if len(found) < 2:  # noqa: PLR2004 - one bar compares nothing
        return ""
    places = range(len(found))
    every = -(-len(found) // MOST_LABELS)
    with drawing(WIDTH, HEIGHT) as (figure, (axes,)):
        axes.set_title("Mean TTFT by where it is spent, ms")
        axes.set_xlabel("concurrent requests")
        floor = [0.0] * len(found)
        for (name, color), key in zip(COLORS.items(), ("queue", "prefill", "rest"), strict=True):
            heights = [getattr(part, key) for part in found]
            axes.bar(places, heights, 0.72, bottom=floor, color=color, label=name)
            floor = [low + high for low, high in zip(floor, heights, strict=True)]
        axes.set_xticks(places[::every], [f"{part.users:,}" for part in found[::every]])
        axes.set_ylim(0, max(*floor, 1e-3) * 1.25)
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper left", ncols=3, handlelength=1, columnspacing=1.2)
        return to_svg(figure, "breakdown", "Mean TTFT at each level, split by where it is spent")
