"""The answer in plain words: one headline, then what stops it, the figures there, the capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from harness.report.compat import as_text, beside
from harness.report.explain import at_knee, explained
from harness.report.facts import HELD, INTERRUPTED
from harness.report.routing import routed
from harness.report.say import Figure, count
from harness.report.words import promise, sentence
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.slo import Slo
    from harness.report.facts import Facts

REQUESTS: Final = "concurrent request"


@dataclass(frozen=True, slots=True)
class Answer:
    """`tone`: good, bad or unsure; colours and badges follow it, never replace the words."""

    badge: str
    tone: str
    headline: str
    sentences: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # lines, for a terminal only

    @property
    def text(self) -> str:
        """All of it, for a terminal."""
        return "\n".join([self.headline, *self.sentences, *self.tables])


def answer(facts: Facts) -> Answer:
    """What the run found, whatever its status."""
    told = STATUSES.get(facts.status, _undecided)(facts)
    return replace(told, tables=as_text(beside(facts)))


def _interval(facts: Facts) -> str:
    _, lo, hi = facts.users
    return "" if math.isnan(lo) else f" (95 % interval {lo:,.0f} to {hi:,.0f})"


def _found(facts: Facts) -> Answer:
    at = facts.users[0]
    if facts.slos:
        headline = f"{promise(facts.slos)} up to {count(at, REQUESTS)}{_interval(facts)}."
    else:
        headline = (
            f"Throughput per waiting time peaks at {count(at, REQUESTS)}{_interval(facts)}: "
            "beyond, each one more costs more latency than it brings throughput."
        )
    return Answer("knee found", "good", headline, explained(facts))


def _slo_failed_at_min(facts: Facts) -> Answer:
    least = min((step.users for step in facts.used), default=1)
    headline = (
        f"No level tried keeps the SLO: already at {count(least, REQUESTS)} it is not true that "
        f"{promise(facts.slos)}."
        if facts.slos
        else f"Already {count(least, REQUESTS)} is too much."
    )
    return Answer("SLO missed at the lowest level", "bad", headline, explained(facts))


def _not_reached(facts: Facts) -> Answer:
    most = max((step.users for step in facts.used), default=0)
    headline = (
        f"{promise(facts.slos)} up to {count(most, REQUESTS)}, the most that was tried: the knee "
        "lies higher."
        if facts.slos
        else f"Throughput still grows at {count(most, REQUESTS)}, the most that was tried."
    )
    next_step = "Raise --max-users to find the knee."
    return Answer("knee not reached", "good", headline, [*explained(facts), next_step])


def _undecided(facts: Facts) -> Answer:
    next_step = "Give it more time (--budget), or an SLO further from where the server stands."
    headline = f"Undecided: the measurements do not settle the knee{_bracket(facts)}."
    return Answer("undecided", "unsure", headline, [*explained(facts), next_step])


def _invalid(facts: Facts) -> Answer:
    reasons = {str(s.data.get("reason") or "") for s in facts.steps if s.decision == "invalid"}
    given = (facts.run.knee or {}).get("invalid_reason")
    why = [str(given)] if given else sorted(reasons - {""})
    headline = "These figures must not be believed."
    return Answer("invalid", "bad", headline, [sentence(text) for text in why])


def _interrupted(facts: Facts) -> Answer:
    if not facts.steps and not len(facts.run.table):
        return Answer("interrupted", "unsure", "Interrupted before anything was measured.")
    seen = count(len(facts.run.table), "request")
    headline = (
        f"Interrupted: {seen} and {count(len(facts.steps), 'step')} were measured{_bracket(facts)}."
    )
    return Answer("interrupted", "unsure", headline, explained(facts, capacity=False))


def _held(facts: Facts) -> Answer:
    """A level or several, without a search: figures, and the SLOs judged by the point figure."""
    if len(facts.levels) > 1:
        return Answer("levels held", "good", _sweep(facts), [*at_knee(facts), *routed(facts)])
    users = f"{count(facts.steps[0].users, REQUESTS)}: " if facts.steps else ""
    shown = [
        f"{name} {Figure.of(facts.summary.get(f'{key}_ms'), 'p95', 'ms')}"
        for key, name in (("ttft", "p95 TTFT"), ("itl", "p95 ITL"))
    ]
    tokens = Figure.of(facts.summary, "output_tokens_per_s", "output tokens/s")
    missed = [slo for slo in facts.slos if _over(facts.summary, slo)]
    badge = "SLO missed" if missed else "SLO met" if facts.slos else "level held"
    tone = "bad" if missed else "good"
    return Answer(badge, tone, f"{users}{', '.join(shown)}, {tokens}.", routed(facts))


def _sweep(facts: Facts) -> str:
    levels = [steps[0].users for steps in facts.levels]
    kept = [
        steps[0].users
        for steps in facts.levels
        if not any(_over(step.data, slo) for step in steps for slo in facts.slos)
    ]
    held = f"{len(levels)} levels held, {levels[0]:,} to {levels[-1]:,} {REQUESTS}s"
    if not facts.slos:
        return held + "."
    top = f"up to {kept[-1]:,} of them" if kept else "at none of them"
    return f"{held}: {promise(facts.slos)} {top}."


def _over(data: Any, slo: Slo) -> bool:
    shown = Figure.of(data.get(f"{slo.metric}_ms"), slo.name.partition("_")[2])
    return shown.value > slo.limit_ns / MS


def _bracket(facts: Facts) -> str:
    """`; good up to 48, bad from 56`, as far as steps were decided."""
    good = max((s.users for s in facts.used if s.decision == "good"), default=0)
    bad = min((s.users for s in facts.used if s.decision == "bad"), default=0)
    told = [f"good up to {good:,}"] * bool(good) + [f"bad from {bad:,}"] * bool(bad)
    return f"; {', '.join(told)}" if told else ""


STATUSES: Final[dict[str, Callable[[Facts], Answer]]] = {
    "found": _found,
    "slo_failed_at_min": _slo_failed_at_min,
    "not_reached": _not_reached,
    "undecided": _undecided,
    "invalid": _invalid,
    INTERRUPTED: _interrupted,
    HELD: _held,
}
