"""The numbers of a report as words: the cards at its top, the lines of its level table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.states import Status
from harness.report.explain import knee_figures
from harness.report.say import Figure, count, say

if TYPE_CHECKING:
    from harness.measure.result import Level
    from harness.report.facts import Facts


def cards(facts: Facts) -> list[dict[str, str]]:
    """The few numbers that people look for first."""
    out = []
    knee = facts.knee
    if knee.holds:
        fails = f"fails by {knee.fails_by:,}" if knee.fails_by else "the most that was tried"
        out.append({"name": "Holds", "value": count(knee.holds, "user"), "note": fails})
    if knee.estimate is not None:
        lo, hi = knee.ci95
        note = f"95%: {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
        out.append({"name": "Best estimate", "value": count(knee.estimate, "user"), "note": note})
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            note = (
                f"95%: {figure.interval}"
                if figure.interval
                else f"at {count(facts.measured_at, 'user')}"
            )
            out.append({"name": name, "value": value, "note": note})
    if facts.status == Status.not_reached:
        return out  # neither a peak nor a plateau was shown
    result = facts.result
    for name, found in (("Power knee", result.power), ("Throughput plateau", result.plateau)):
        if found:
            low, high = found.ci95
            note = f"between {low:,} and {high:,}"
            out.append({"name": name, "value": count(found.users, "user"), "note": note})
    return out


def table_row(facts: Facts, step: Level) -> dict[str, str]:
    """One line of the level table."""
    return {
        "#": str(step.index + 1),
        "Users": f"{step.users:,}",
        "Result": step.result,
        **{
            f"p95 {name}, ms": Figure.of(step.latency(key), "p95", facts.limit_ms(key)).cell
            for key, name in (("ttft", "TTFT"), ("itl", "ITL"))
        },
        "Tokens/s": say(step.output_tokens_per_s),
        "Good req/s": say(step.goodput_per_s),
        "n": f"{step.ttft_ms.n:,}",
        "Failed": f"{step.n_failed:,}",
        "Running": say(step.server.running_mean),
        "Waiting": say(step.server.waiting_mean),
        "Seconds": f"{step.seconds:.0f}",
        "Purpose": step.purpose,
        "Why": step.reason,
    }
