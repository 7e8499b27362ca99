"""The sentences under the headline: the bottleneck, the figures there, the capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.measure.states import Status
from harness.report.routing import routed
from harness.report.say import Figure, count

if TYPE_CHECKING:
    from harness.report.facts import Facts


def explained(facts: Facts, *, capacity: bool = True) -> list[str]:
    """The bottleneck, the figures there, and how many replicas that makes."""
    lines = []
    if (found := facts.result.bottleneck) is not None and found.sentence:
        sure = f" (confidence {found.confidence:.2g})" if found.confidence > 0 else ""
        lines.append(f"Bottleneck: {found.sentence.rstrip('.')}{sure}.")
        if found.try_next:
            lines.append(f"Try next: {found.try_next[0]}.")
    lines += routed(facts)
    lines += at_knee(facts)
    if capacity:
        lines += _replicas(facts)
    return lines


def at_knee(facts: Facts) -> list[str]:
    """`At 34: p95 TTFT 434 ms (397 to 459), ...`; empty when nothing was measured."""
    figures = [figure for figure in knee_figures(facts).items() if figure[1].known]
    if not figures:
        return []
    told = [f"{name} {figure}" if figure.unit == "ms" else str(figure) for name, figure in figures]
    return [f"At {facts.measured_at:,}: {', '.join(told)}."]


def knee_figures(facts: Facts) -> dict[str, Figure]:
    """p95 TTFT and ITL and the throughput of the level that stands for the knee."""
    knee = facts.knee
    return {
        "p95 TTFT": Figure(knee.ttft_p95_ms, *knee.ttft_p95_ms_ci95, "ms", facts.limit_ms("ttft")),
        "p95 ITL": Figure(knee.itl_p95_ms, *knee.itl_p95_ms_ci95, "ms", facts.limit_ms("itl")),
        "Throughput": Figure(knee.output_tokens_per_s, unit="output tokens/s"),
    }


def _replicas(facts: Facts) -> list[str]:
    """Each replica holds the interval's lower end; U users need that many, rounded up."""
    promised = facts.status in (Status.found, Status.not_reached)
    each = facts.knee.holds or facts.knee.ci95[0] or 0
    if not promised or each < 1:
        return []
    planned = facts.config.get("plan_users")
    if not planned:
        if facts.status != Status.found:
            return []
        return [f"Each replica holds {each:,}, so U users need R = ceil(U / {each:,}) replicas."]
    need = -(-int(planned) // each)
    users = count(int(planned), "user")
    division = f"R = ceil({int(planned):,} / {each:,}) = {count(need, 'replica')}"
    if facts.status != Status.found:  # a bound: the knee lies higher
        return [f"Each replica holds at least {each:,}, so {users} need at most {division}."]
    return [f"Each replica holds {each:,}, so {users} need {division}."]
