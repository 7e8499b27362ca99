"""Where to look at the first level that is over its p95 limits."""

from __future__ import annotations

from math import inf, isnan, nan
from typing import TYPE_CHECKING

from harness.measure.routing import SIGNS, Q, Sign, limits_ns, route
from harness.measure.states import Decision, Verdict
from harness.report.say import count

if TYPE_CHECKING:
    from harness.measure.result import Level
    from harness.report.facts import Facts


def routed(facts: Facts) -> list[str]:
    """One sentence, of the lowest level (above the knee, where one was found) that is over."""
    ttft_ns, itl_ns = limits_ns(facts.slos)
    knee = facts.knee.estimate or 0
    for steps in facts.levels:
        step = max(steps, key=lambda one: one.seconds)
        if step.users <= knee or not _shown(step):
            continue
        ttft, itl = (_p95_ns(step, sign) for sign in SIGNS)
        found = route(ttft, itl, ttft_ns, itl_ns)
        if found.over:
            return [f"At {count(step.users, 'concurrent request')} {found.sentence}."]
    return []


def _shown(step: Level) -> bool:
    """Whether a limit was shown to be broken: a level that was not decided is never called over."""
    missed = any(one.verdict == Verdict.missed for one in step.slos)
    by_failures = step.n_failed > (1 - Q) * step.ttft_ms.n  # no queue and no batch is the cause
    return (missed or step.decision == Decision.failed) and not by_failures


def _p95_ns(step: Level, sign: Sign) -> float:
    """By the share over the limit: where requests failed that is what was judged."""
    over = step.over_share.get(f"{sign.metric}_p95", nan)
    return nan if isnan(over) else inf if over > 1 - Q else 0.0
