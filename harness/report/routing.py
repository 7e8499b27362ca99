"""Where to look at the first level that is over its p95 limits."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING

from harness.measure.routing import SIGNS, Q, Sign, limits_ns, route
from harness.report.say import as_float, count
from harness.units import MS

if TYPE_CHECKING:
    from harness.report.facts import Facts
    from harness.report.steprow import StepRow


def routed(facts: Facts) -> list[str]:
    """One sentence, of the lowest level (above the knee, where one was found) that is over."""
    ttft_ns, itl_ns = limits_ns(facts.slos)
    knee = facts.users[0]
    for steps in facts.levels:
        step = max(steps, key=lambda one: one.seconds)
        if step.users <= knee:
            continue
        ttft, itl = (_p95_ns(step, sign) for sign in SIGNS)
        found = route(ttft, itl, ttft_ns, itl_ns)
        if found.over:
            return [f"At {count(step.users, 'concurrent request')} {found.sentence}."]
    return []


def _p95_ns(step: StepRow, sign: Sign) -> float:
    """Too short for a quantile, a step may still be decided by the share that is over the limit."""
    p95 = step.latency(sign.metric)
    if p95.known:
        return p95.value * MS
    over = as_float(step.part("over_share").get(f"{sign.metric}_p95"))
    return inf if step.decision == "bad" and over > 1 - Q else nan
