"""The answer in plain words: one headline, then the bottleneck, the figures there, the capacity.

What is promised was shown: a knee's headline names the level that passed, not the best estimate.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.slo import Slo
from harness.measure.states import WORST_FIRST, Decision, Status, Verdict
from harness.report.compat import as_text, beside
from harness.report.explain import explained, knee_figures
from harness.report.routing import routed
from harness.report.say import Figure, count
from harness.report.words import limit, sentence, slo_name
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.result import Level, SloResult
    from harness.report.facts import Facts

REQUESTS: Final = "concurrent request"


@dataclass(frozen=True, slots=True)
class Answer:
    """`tone`: good, bad or unsure; colors and badges follow it, never replace the words."""

    badge: str
    tone: str
    headline: str
    sentences: list[str] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)  # lines, for a terminal only
    simulated: str = ""  # what was simulated; "": a real server was measured

    @property
    def text(self) -> str:
        """All of it, for a terminal."""
        first = [f"Simulated: {self.simulated}."] if self.simulated else []
        return "\n".join([*first, self.headline, *self.sentences, *self.tables])


def answer(facts: Facts) -> Answer:
    """What the run found, whatever its status."""
    told = STATUSES[facts.status](facts)
    target = facts.result.target
    simulated = f"{target.label.removeprefix('simulated ')}, no real server" if target.label else ""
    told = replace(
        told, sentences=[*(gate.sentence for gate in facts.result.gates), *told.sentences]
    )
    if simulated:
        told = replace(told, badge=f"{told.badge} (simulated)")
    return replace(told, tables=as_text(beside(facts)), simulated=simulated)


def _found(facts: Facts) -> Answer:
    knee = facts.knee
    lo, hi = knee.ci95
    interval = f"95% interval {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
    if not facts.slos:
        headline = (
            f"Throughput per waiting time peaks at {count(knee.estimate or 0, REQUESTS)} "
            f"({interval}): beyond, each one more costs more latency than it brings throughput."
        )
        return Answer("power knee found", "good", headline, explained(facts))
    headline = (
        f"Holds {count(knee.holds or 0, REQUESTS)}: {_kept(facts)}. Fails by {knee.fails_by:,}; "
        f"best estimate {knee.estimate:,} ({interval})."
    )
    return Answer("knee found", "good", headline, explained(facts))


def _kept(facts: Facts) -> str:
    """`p95 TTFT 450 ms (400 to 480) under 500 ms`, of all holds of the level that holds."""
    level, pooled = facts.result.at_knee, knee_figures(facts)
    parts = []
    for slo in facts.slos:
        name = slo_name(slo)
        parts.append(f"{name} {pooled.get(name) or _observed(level, slo)} under {limit(slo)}")
    return " and ".join(parts)


def _observed(level: Level | None, slo: Slo) -> str:
    if level is None:
        return str(Figure())
    statistic, at_most = slo.name.partition("_")[2], slo.limit_ns / MS
    return str(Figure.of(level.latency(slo.metric), statistic, at_most))


def _slo_failed_at_min(facts: Facts) -> Answer:
    first = min(facts.used, key=lambda level: level.users, default=None)
    if first is None or not facts.slos:
        return Answer("SLO missed at the lowest level", "bad", "The lowest level is too much.")
    over = [s for s in facts.slos if first.over_share.get(s.name, 0) > s.allowed] or facts.slos[:1]
    told = " and ".join(
        f"{slo_name(slo)} is {_observed(first, slo)} at {count(first.users, REQUESTS)}, over the "
        f"{limit(slo)} limit"
        for slo in over
    )
    headline = f"No level holds: {told}."
    return Answer("SLO missed at the lowest level", "bad", headline, explained(facts))


def _not_reached(facts: Facts) -> Answer:
    most = facts.knee.holds or max((step.users for step in facts.used), default=0)
    headline = (
        f"Holds at least {count(most, REQUESTS)}, the most that was tried: {_kept(facts)}."
        if facts.slos
        else f"Throughput per waiting time still grows at {count(most, REQUESTS)}, the most that "
        "was tried."
    )
    next_step = "Raise --max-users to find the knee."
    return Answer("knee not reached", "good", headline, [*explained(facts), next_step])


def _inconclusive(facts: Facts) -> Answer:
    if not facts.searched:
        return _held(facts)
    knee = facts.knee
    told = f"Inconclusive: the measurements do not settle the knee{_bracket(facts)}."
    if knee.estimate is not None and facts.slos:
        told += (
            f" Best estimate {knee.estimate:,} (95% interval {knee.ci95[0]:,} to {knee.ci95[1]:,})."
        )
    lacking = []
    if not knee.holds:
        lacking.append("a level that is shown to pass")
    elif knee.ci95[1] is not None:
        lacking.append("a level nearer to the knee that is shown to pass")
    if knee.fails_by is None:
        lacking.append("a level that is shown to fail (--max-users)")
    next_step = f"What would settle it: {' and '.join(lacking)}; try a longer --budget."
    return Answer("inconclusive", "unsure", told, [*explained(facts), next_step])


def _target_failed(facts: Facts) -> Answer:
    why = sentence(facts.result.invalid_reason)
    *before, last = [s.users for s in facts.used if s.decision == Decision.failed] or [0]
    then = f", and then at {last:,} too" if before else ""
    where = f" at {count([*before, last][-2:][0], REQUESTS)}" if last else ""
    headline = f"The server failed under load{where}{then}."
    return Answer("server failed", "bad", headline, [why, *explained(facts, capacity=False)])


def _invalid(facts: Facts) -> Answer:
    reasons = {level.reason for level in facts.steps if not level.usable}
    given = facts.result.invalid_reason
    why = [given] if given else sorted(reasons - {""})
    headline = "Result invalid: the figures must not be used."
    return Answer("invalid", "bad", headline, [sentence(text) for text in why])


def _interrupted(facts: Facts) -> Answer:
    if not facts.steps and not len(facts.run.table):
        return Answer("interrupted", "unsure", "Interrupted before anything was measured.")
    seen, levels = count(len(facts.run.table), "request"), count(len(facts.steps), "level")
    headline = f"Interrupted: {seen} and {levels} were measured{_bracket(facts)}."
    return Answer("interrupted", "unsure", headline, explained(facts, capacity=False))


def _held(facts: Facts) -> Answer:
    """Levels that were given: each SLO with its verdict, then the figures."""
    words = {Status.met: ("SLO met", "good"), Status.missed: ("SLO missed", "bad")}
    badge, tone = words.get(facts.status, ("inconclusive", "unsure"))
    if facts.status == Status.measured:
        badge, tone = "measured", "good"
    said = facts.result.commonest_error
    judged = [one for one in (facts.result.errors, *facts.result.slos) if one is not None]
    judged.sort(key=lambda one: WORST_FIRST.index(one.verdict))  # the headline is what decided
    verdicts = [verdict(one, said) for one in judged]
    figures = [_figures(facts, step) for step in facts.used]
    if not verdicts:
        return Answer(badge, tone, figures[0] if figures else "Nothing was measured.", figures[1:])
    return Answer(badge, tone, verdicts[0], [*verdicts[1:], *figures, *routed(facts)])


def _figures(facts: Facts, step: Level) -> str:
    """`4 concurrent requests: p95 TTFT 19 ms (18 to 20), p95 ITL 10 ms (10 to 11), 379 ...`."""
    shown = [
        f"{name} {Figure.of(step.latency(key), 'p95', facts.limit_ms(key))}"
        for key, name in (("ttft", "p95 TTFT"), ("itl", "p95 ITL"))
    ]
    tokens = Figure(step.output_tokens_per_s, unit="output tokens/s")
    return f"{count(step.users, REQUESTS)}: {', '.join(shown)}, {tokens}."


def verdict(one: SloResult, commonest_error: str = "") -> str:
    """`ttft_p95=20ms missed at 4 concurrent requests: 4 of 19 over ttft_p95=20ms (21.0%; ...).`.

    Of failures: `SLO missed: 8 of 12 requests failed at 4 ... (67.0%; 1.0% allowed), mostly: ...`.
    """
    at = f" at {count(one.users, REQUESTS)}" if one.users else ""
    share = float(f"{one.n_over / one.n:.2g}") if one.n else 0
    shares = f"({share:.1%}; {one.allowed:.1%} allowed)"
    told = f"nothing was observed that {one.slo} is about"
    if one.slo.startswith("max_errors"):
        mostly = f", most often with {commonest_error!r}" if commonest_error else ""
        return f"SLO missed: {one.n_over:,.0f} of {one.n:,} requests failed{at} {shares}{mostly}."
    if one.n:
        told = f"{one.n_over:,.0f} of {one.n:,} over {one.slo} {shares}"
    elif not isnan(one.observed):  # of a search: by its sequential test
        told = str(Figure(one.observed, unit="ms", limit=Slo.parse(one.slo).limit_ns / MS))
    line = f"{one.slo} {one.verdict}{at}: {told}"
    if one.verdict == Verdict.inconclusive and one.needs_more:
        line += f"; about {count(one.needs_more, 'more request')} would decide it"
    elif one.verdict == Verdict.inconclusive and not isnan(one.observed) and not one.n:
        line += "; a longer --budget would decide it"
    return line + "."


def _bracket(facts: Facts) -> str:
    """`; passed at 48, failed at 56`, as far as levels were decided."""
    passed = max((s.users for s in facts.used if s.decision == Decision.passed), default=0)
    above = [s.users for s in facts.used if s.decision == Decision.failed]
    failed = min(above, default=0)
    told = [f"passed at {passed:,}"] * bool(passed) + [f"failed at {failed:,}"] * bool(failed)
    return f": {', '.join(told)}" if told else ""


STATUSES: Final[dict[Status, Callable[[Facts], Answer]]] = {
    Status.found: _found,
    Status.slo_failed_at_min: _slo_failed_at_min,
    Status.not_reached: _not_reached,
    Status.inconclusive: _inconclusive,
    Status.target_failed: _target_failed,
    Status.invalid: _invalid,
    Status.interrupted: _interrupted,
    Status.met: _held,
    Status.missed: _held,
    Status.measured: _held,
}
