"""STATES: what a live page says a run is doing, each in a sentence that tells what comes next.

`{}` is filled by whoever knows more. `tone` colours the badge: good, bad, unsure or calm.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from harness.measure.states import Status


class State(NamedTuple):
    """One row."""

    badge: str
    tone: str
    sentence: str


STATES: Final[dict[str, State]] = {
    "idle": State("idle", "calm", "Nothing is being sent. {}"),
    "starting": State(
        "starting", "calm", "Asking {} what it is and what it accepts. No load is sent yet."
    ),
    "running": State("running", "calm", "Load is being sent to {}."),
    "stopping": State(
        "stopping", "calm", "Requests under way are cut off; then come the results so far."
    ),
    "computing": State(
        "computing", "calm", "The load is over and every record has arrived. Computing the results."
    ),
    "refused": State("refused", "bad", "Refused before any load was sent: {}"),
    "failed": State("failed", "bad", "{}"),
    # how a run ended, in result.json's words; the answer itself follows from the report
    Status.found: State("knee found", "good", "{}"),
    Status.not_reached: State("knee not reached", "good", "{}"),
    Status.slo_failed_at_min: State("SLO missed at the lowest level", "bad", "{}"),
    Status.met: State("SLO met", "good", "{}"),
    Status.missed: State("SLO missed", "bad", "{}"),
    Status.measured: State("measured", "calm", "{}"),
    Status.inconclusive: State("inconclusive", "unsure", "{}"),
    Status.target_failed: State("server failed", "bad", "{}"),
    Status.invalid: State("invalid", "bad", "{}"),
    Status.interrupted: State("interrupted", "unsure", "{}"),
    "ended": State("ended", "calm", "The test has ended. {}"),
}
OVER: Final = tuple(STATES)[list(STATES).index("refused") :]  # nothing is under way any more


def facts_of(state: str, more: str = "") -> dict[str, Any]:
    """The facts of LiveState that say so."""
    row = STATES[state]
    return {
        "state": state,
        "badge": row.badge,
        "tone": row.tone,
        "over": state in OVER or state == "idle",
        "sentence": row.sentence.format(more).strip(),
    }
