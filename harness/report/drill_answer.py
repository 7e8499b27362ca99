"""What a drill showed, in words: its expectations, and how a recovery went."""

from __future__ import annotations

from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING

from harness.core.states import WORST_FIRST, Verdict
from harness.drill.recovery import Overload, Sliding, recovery
from harness.errors import ConfigError
from harness.export.live_state import DRILLED
from harness.metrics.metrics import GAPS
from harness.metrics.numbers import count_of, slo_name
from harness.report.report_data import TRUE, phase_names
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.metrics.result import Gate
    from harness.metrics.slo import Slo
    from harness.report.report_data import ReportData


def drill_sentences(facts: ReportData) -> tuple[str, str, list[str]]:
    """(badge, tone, the headline and all that follows).

    First what may not be used, then what decides the exit code.
    """
    gates = sorted(facts.result.gates, key=lambda gate: WORST_FIRST.index(gate.verdict))
    came_true = sum(gate.verdict == Verdict.met for gate in gates)
    sentences = invalid_phases(facts)
    sentences.append(f"{came_true} of {count_of(len(gates), 'expectation')} came true.")
    sentences += expectation_sentences(gates)
    sentences += recovery_sentences(facts)
    badge, tone = DRILLED[gates[0].verdict]
    return badge, tone, sentences


def expectation_sentences(gates: Sequence[Gate]) -> list[str]:
    """Each expectation with what came of it."""
    sentences = []
    for gate in gates:
        when = "" if isnan(gate.at_s) else f" at {gate.at_s:.1f} s"
        verdict = TRUE[gate.verdict].capitalize()
        sentences.append(f"{verdict}{when}: {gate.name} ({gate.sentence}).")
    return sentences


def invalid_phases(facts: ReportData) -> list[str]:
    """Which phases may not be used, and why: it comes before any verdict."""
    sentences = []
    phases = zip(facts.levels, phase_names(facts), strict=False)
    for number, (level, name) in enumerate(phases, 1):
        if not level.usable:
            which = f"Phase {number} of {len(facts.levels)}, {name!r}, is invalid"
            reason = level.reason.rstrip(".")
            sentences.append(f"{which}: {reason}. Its expectations are not judged.")
    return sentences


def recovery_sentences(facts: ReportData) -> list[str]:
    """How long each SLO took to be as before an overload, where a baseline is long enough."""
    sentences = []
    slos = [slo for slo in facts.slos if slo.metric not in GAPS]
    phases = facts.levels
    for before, over, after in zip(phases, phases[1:], phases[2:], strict=False):
        if over.load > before.load == after.load:
            spans = Overload(before.settled_ns, over.settled_ns, over.end_ns, after.end_ns)
            for slo in slos:
                with suppress(ConfigError):  # the baseline says too little
                    sentences.append(_recovery_sentence(facts, slo, spans))
    return sentences


def _recovery_sentence(facts: ReportData, slo: Slo, spans: Overload) -> str:
    recovered = recovery(facts.run.table, slo, spans)
    if recovered.came_back:
        how = f"was back where it had been {recovered.seconds:.1f} s after the overload"
    else:
        watched_ns = spans.until_ns - spans.end_ns
        longest_s = (watched_ns - Sliding.over(watched_ns).needs_ns) / SECOND
        how = f"took longer than {longest_s:.1f} s to be back where it had been"
    low_ms, high_ms = recovered.former_ms
    lost = max(recovered.good_lost, 0)
    return (
        f"{slo_name(slo)} {how} ({low_ms:.3g} to {high_ms:.3g} ms before it); {lost:,.0f} requests "
        f"that would have met {slo} did not."
    )
