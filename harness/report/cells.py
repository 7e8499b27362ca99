"""The numbers of a report as words: the cards at its top, the lines of its step table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.states import Decision, Status, Verdict
from harness.report.explain import knee_figures
from harness.report.say import Figure, say

if TYPE_CHECKING:
    from harness.measure.result import Level
    from harness.report.facts import Facts


def cards(facts: Facts) -> list[dict[str, str]]:
    """The few numbers that people look for first."""
    out = []
    knee = facts.knee
    if knee.holds:
        fails = f"fails by {knee.fails_by:,}" if knee.fails_by else "the most that was tried"
        out.append({"name": "Holds", "value": f"{knee.holds:,} users", "note": fails})
    if knee.estimate is not None:
        lo, hi = knee.ci95
        note = f"95%: {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
        out.append({"name": "Best estimate", "value": f"{knee.estimate:,} users", "note": note})
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            note = (
                f"95%: {figure.interval}" if figure.interval else f"at {facts.measured_at:,} users"
            )
            out.append({"name": name, "value": value, "note": note})
    if facts.status == Status.not_reached:
        return out  # neither a peak nor a plateau was shown
    result = facts.result
    for name, found in (("Power knee", result.power), ("Throughput plateau", result.plateau)):
        if found:
            low, high = found.ci95
            note = f"between {low:,} and {high:,}"
            out.append({"name": name, "value": f"{found.users:,} users", "note": note})
    return out


def table_row(step: Level) -> dict[str, str]:
    """One line of the level table."""
    return {
        "#": str(step.index + 1),
        "Users": f"{step.users:,}",
        "Result": said(step),
        "p95 TTFT, ms": _latency(step, "ttft"),
        "p95 ITL, ms": _latency(step, "itl"),
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


def said(step: Level) -> str:
    """What the level says: of a search its decision, of a level that was given its SLOs."""
    if step.decision != Decision.held:
        return step.decision
    verdicts = [one.verdict for one in step.slos]
    for verdict in (Verdict.missed, Verdict.inconclusive, Verdict.met):
        if verdict in verdicts:
            return verdict
    return "measured"


def _latency(step: Level, metric: str) -> str:
    figure = Figure.of(step.latency(metric))
    return f"{figure.digits} ({figure.interval})" if figure.interval else figure.digits
