"""The words for a level: why it is held, what came of it, and what a search does next.

The terminal, the live page and the reports all take them from here: one word for one thing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.core.states import Decision, Purpose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.load import Load, LoadUnit, Number
    from harness.metrics.result import Level
    from harness.metrics.slo import Slo
    from harness.search.level_state import HeldLevel
    from harness.search.next_level import SearchPlan

PURPOSES: Final = {
    Purpose.up: "ramping up",
    Purpose.bisect: "bisecting",
    Purpose.repeat: "repeating a level",
    Purpose.down: "stepping down",
    Purpose.cause: "looking for the cause",
    Purpose.hold: "given",
    Purpose.sequential: "one at a time",
    Purpose.batch: "a batch",
}
AFTERWARDS: Final = {
    Purpose.cause: "a level just above the knee shows what limits it",
    Purpose.hold: "the level that it promises is held once more",
}
SEARCHED: Final = "the search is over"
NEAR_THE_KNEE: Final = "near the knee"
CONFIRMING: Final = "confirming"
PASSING_SO_FAR: Final = "passing so far"


def purpose_text(
    purpose: Purpose, load: Load, before: Sequence[Load], *, searches: bool = True
) -> str:
    """Why a level is held, after levels of the loads `before`."""
    # A search holds given levels only to confirm what it has found.
    if searches and purpose == Purpose.hold:
        return CONFIRMING
    # The ends of the bracket may come up before they were ever held.
    if purpose == Purpose.repeat and load not in before:
        return NEAR_THE_KNEE
    return PURPOSES[purpose]


def phase_text(name: str, running_users: int, users: int) -> str:
    """The phase in words, with the number of users that have started."""
    if name not in ("ramping", "settling"):
        return name
    started = f", {running_users:,} of them started" if running_users < users else ""
    return f"warming up{started}"


def result_text(level: HeldLevel) -> str:
    """What came of a level during the run."""
    if level.invalid:
        return Decision.invalid
    judgement = level.judgement
    return _decision_text(level.window.purpose, judgement.decision, leans=judgement.leans_to_fail)


def reported_result_text(level: Level, slos: Sequence[Slo]) -> str:
    """What came of a level, in the words that it had during the run."""
    if level.decision == Decision.held:
        return level.result
    # NaN, of an SLO that the level shows nothing of, is not; older folders have no shares at all.
    seems_to_pass = all(level.over_share.get(slo.name, 0) <= slo.allowed for slo in slos)
    return _decision_text(level.purpose, level.decision, leans=not seems_to_pass)


def _decision_text(purpose: Purpose, decision: Decision, *, leans: bool) -> str:
    # On the way up the search moves on without a decision, so it must not say "inconclusive".
    if purpose == Purpose.up and decision == Decision.inconclusive and not leans:
        return PASSING_SO_FAR
    return decision


def bracket_text(
    holds: Number | None, fails_at: Number | None, purpose: Purpose | None = None
) -> str:
    """What a search has shown so far: `holds 112, fails at 163, narrowing`.

    `purpose`: of the level that is held now.
    """
    if holds and fails_at:
        now = SEARCHED if purpose in AFTERWARDS else "narrowing"
        return f"holds {holds:,}, fails at {fails_at:,}, {now}"
    if holds:
        return f"holds {holds:,}, no level failed yet"
    return f"fails at {fails_at:,}, no level passed yet" if fails_at else ""


def headline_so_far(unit: LoadUnit, holds: Number | None, fails_at: Number | None) -> str:
    """The answer of a search that still runs: `Between 37 and 40 concurrent requests so far.`."""
    if holds and fails_at:
        return f"Between {holds:,} and {unit.text(fails_at)} so far."
    if holds:
        return f"Holds at least {unit.text(holds)} so far."
    if fails_at:
        return f"Fewer than {unit.text(fails_at)} so far."
    return "No level is decided yet."


def outlook(
    plan: SearchPlan, purpose: Purpose, load: Load, holds: Number | None, fails_at: Number | None
) -> str:
    """What a search does after the level that it holds now."""
    if not plan.slos:
        return "Next: other levels, to see where throughput divided by latency peaks."
    if purpose in AFTERWARDS:
        return f"The search is over: {AFTERWARDS[purpose]}."
    if purpose == Purpose.up:
        return _outlook_of_climb(plan, load, holds)
    if holds and fails_at:
        wanted = f"until they are {plan.precision:.0%} apart or the budget is spent"
        return f"Next: levels between {holds:,} and {fails_at:,}, {wanted}."
    if fails_at:
        return f"Next: levels below {fails_at:,}, until one passes."
    return "Next: levels nearby, until one passes and one fails."


def _outlook_of_climb(plan: SearchPlan, load: Load, holds: Number | None) -> str:
    lower = f"a level between {holds:,} and {load.number:,}" if holds else "a lower level"
    if load.count >= plan.max_users:
        return f"This is the highest level. If it fails, next: {lower}."
    return f"Next: a higher level unless this one fails, then {lower}."
