"""STATES: the states of a run on the live page, each with a sentence about what comes next.

The caller fills `{}`. `tone` is the color of the badge: good, bad, unsure or calm.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from harness.measure.states import Status


class State(NamedTuple):
    """One row of STATES."""

    badge: str
    tone: str
    sentence: str


STATES: Final[dict[str, State]] = {
    "idle": State("idle", "calm", "Nothing is being sent. {}"),
    "starting": State("starting", "calm", "Probing {}. No load is sent yet."),
    "running": State("running", "calm", "Load is being sent to {}."),
    "stopping": State(
        "stopping", "calm", "Canceling requests in flight; then the results so far are computed."
    ),
    "computing": State(
        "computing", "calm", "The load is over and every record has arrived. Computing the results."
    ),
    "refused": State("refused", "bad", "Refused before any load was sent: {}"),
    "failed": State("failed", "bad", "{}"),
    # the final states, named as result.json's status; the answer itself comes from the report
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
FINAL_STATES: Final = tuple(STATES)[list(STATES).index("refused") :]  # the final states


def state_facts(state: str, more: str = "") -> dict[str, Any]:
    """Return the facts for LiveState that describe a state."""
    row = STATES[state]
    return {
        "state": state,
        "badge": row.badge,
        "tone": row.tone,
        "over": state in FINAL_STATES or state == "idle",
        "sentence": row.sentence.format(more).strip(),
    }
