"""The sentences under the headline: what stops it, the figures there, the capacity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from harness.report.routing import routed
from harness.report.say import Figure, as_float, count

if TYPE_CHECKING:
    from harness.report.facts import Facts


def explained(facts: Facts, *, capacity: bool = True) -> list[str]:
    """What stops it, the figures there, and how many replicas that makes."""
    lines = []
    if facts.verdict.get("sentence"):
        lines.append(f"What stops it: {str(facts.verdict['sentence']).rstrip('.')}{_sure(facts)}.")
    if knobs := facts.verdict.get("knobs"):
        lines.append(f"Turn next: {knobs[0]}.")
    lines += routed(facts)
    lines += at_knee(facts)
    if capacity:
        lines += _replicas(facts)
    return lines


def _sure(facts: Facts) -> str:
    """How sure the verdict is, where it names anything."""
    confidence = as_float(facts.verdict.get("confidence"))
    return f" (confidence {confidence:.2g})" if confidence > 0 else ""


def at_knee(facts: Facts) -> list[str]:
    """`At the knee: p95 TTFT 434 ms (397 to 459), ...`; empty when nothing was measured."""
    figures = [figure for figure in knee_figures(facts).items() if figure[1].known]
    if not figures:
        return []
    at = facts.measured_at
    where = (
        "At the knee"
        if facts.status == "found" and at == facts.users[0]
        else f"At {at:,}"
        if at
        else "Measured"
    )
    told = [f"{name} {figure}" if figure.unit == "ms" else str(figure) for name, figure in figures]
    return [f"{where}: {', '.join(told)}."]


def knee_figures(facts: Facts) -> dict[str, Figure]:
    """p95 TTFT and ITL and the throughput at the knee: the search's own, else the step's there."""
    step, found = facts.at_knee(), {}
    for key, name in (("ttft", "p95 TTFT"), ("itl", "p95 ITL")):
        figure = Figure.of(facts.knee, f"{key}_p95_ms", "ms")
        found[name] = figure if figure.known or step is None else step.latency(key)
    tokens = Figure.of(facts.knee, "output_tokens_per_s", "output tokens/s")
    if not tokens.known and step is not None:
        tokens = step.figure("output_tokens_per_s", tokens.unit)
    return {**found, "Throughput": tokens}


def _replicas(facts: Facts) -> list[str]:
    """Each replica holds the interval's lower end; U users need that many, rounded up."""
    at, lo, _ = facts.users
    each = at if math.isnan(lo) else lo
    if facts.status != "found" or not each >= 1:
        return []
    each = math.floor(each)
    planned = facts.config.get("plan_users")
    if not planned:
        return [f"Each replica holds {each:,}, so U users need R = ceil(U / {each:,}) replicas."]
    need = -(-int(planned) // each)
    users = count(int(planned), "user")
    division = f"R = ceil({int(planned):,} / {each:,}) = {count(need, 'replica')}"
    return [f"Each replica holds {each:,}, so {users} need {division}."]
