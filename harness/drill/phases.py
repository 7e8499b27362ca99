"""Which phases of a drill may be used: the audit of `run --rate`, phase by phase.

A client that stood still, or that cannot tell when tokens came, makes a phase invalid; then nothing
that is expected of that time is decided by it. Requests without a record are not looked for here:
the numbers of a schedule begin again where a burst changes the load, and `lost` counts them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.diagnosis.audit import LOWER_RATE
from harness.diagnosis.client_host import remedy
from harness.diagnosis.instrument import instrument_sentence
from harness.diagnosis.send_delay import send_delay_sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.diagnosis.client_host import HostFigures
    from harness.drill.plan import Drill, Expectation, Phase
    from harness.metrics.evidence import Window
    from harness.metrics.record_source import RecordSource
    from harness.metrics.slo import Slo
    from harness.metrics.token_gaps import WindowGapCounter
    from harness.records.record_table import RecordTable

    InvalidPhases = Mapping[Phase, str]  # with the reason of each


def reach(expected: Expectation) -> tuple[int, int]:
    """Its span, and what led to it: what happens in these ns of the drill decides it."""
    return min(expected.since_ns, expected.begin_ns), expected.end_ns


def meet(phase: Phase, expected: Expectation) -> bool:
    """Whether the expectation is decided by what happens in the phase."""
    begin_ns, end_ns = reach(expected)
    return begin_ns < phase.end_ns and end_ns > phase.begin_ns


def slos_in(drill: Drill, phase: Phase) -> list[Slo]:
    """What is expected of latencies in a phase."""
    met = [expected for expected in drill.expectations if meet(phase, expected)]
    slos = [expected.slo for expected in met if expected.slo is not None]
    return list(dict.fromkeys(slos))


def late_phases(drill: Drill, began_ns: int, table: RecordTable) -> dict[Phase, str]:
    """Phases in which requests were sent too late, with the reason, by the records so far."""
    reasons = {}
    for phase in drill.phases:
        begin_ns = began_ns + phase.begin_ns
        end_ns = began_ns + phase.end_ns
        reason = send_delay_sentence(table, begin_ns, end_ns, slos_in(drill, phase))
        if reason:
            reasons[phase] = reason
    return reasons


def phase_reason(
    drill: Drill,
    window: Window,
    known: RecordSource,
    table: RecordTable,
    *,
    gaps: Mapping[str, WindowGapCounter],
    host: HostFigures,
) -> str:
    """Why a phase is invalid, or "".

    `known`: what was recorded by its end; `table`: the requests of the whole run; `host`: the
    client's machine.
    """
    phase = drill.phases[window.index]
    slos = slos_in(drill, phase)
    late = send_delay_sentence(table, window.start_ns, window.end_ns, slos)
    if late:
        return f"{late}; {remedy(host, LOWER_RATE)}"
    # Without an SLO on a latency nothing depends on when tokens came.
    if not slos:
        return ""
    joined = _joins_pieces(drill, phase)
    return instrument_sentence(known, window, slos, gaps, verdicts_only=joined, host=host)


def _joins_pieces(drill: Drill, phase: Phase) -> bool:
    """Whether an event in the phase lets pieces of data arrive together.

    What is unknown then is the drill's own doing, and matters only if an SLO's limit lies in it.
    """
    for event in drill.events:
        inside = event.at_ns < phase.end_ns and event.end_ns > phase.begin_ns
        if inside and event.joins_pieces:
            return True
    return False
