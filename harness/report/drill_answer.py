"""What a drill showed, in words: its expectations, and how a recovery went."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING, Final

from harness.core.states import WORST_FIRST, Verdict
from harness.drill.recovery import Overload, Sliding, recovery
from harness.errors import ConfigError
from harness.export.live_state import DRILLED
from harness.metrics.metrics import GAPS
from harness.metrics.numbers import count_of, slo_name
from harness.records import names
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.report.report_data import ReportData

TRUE: Final = {Verdict.met: "true", Verdict.missed: "false", Verdict.inconclusive: "inconclusive"}


def drill_sentences(facts: ReportData) -> tuple[str, str, list[str]]:
    """(badge, tone, the headline and all that follows).

    First what may not be used, then what decides the exit code.
    """
    gates = sorted(facts.result.gates, key=lambda one: WORST_FIRST.index(one.verdict))
    n = sum(one.verdict == Verdict.met for one in gates)
    told = invalid_phases(facts)
    told.append(f"{n} of {count_of(len(gates), 'expectation')} came true.")
    for one in gates:
        at = "" if isnan(one.at_s) else f" at {one.at_s:.1f} s"
        told.append(f"{TRUE[one.verdict].capitalize()}{at}: {one.name} ({one.sentence}).")
    return *DRILLED[gates[0].verdict], told + recovery_sentences(facts)


def invalid_phases(facts: ReportData) -> list[str]:
    """Which phases may not be used, and why: it comes before any verdict."""
    told = []
    for number, (level, name) in enumerate(zip(facts.levels, phase_names(facts), strict=False), 1):
        if not level.usable:
            which = f"Phase {number} of {len(facts.levels)}, {name!r}, is invalid"
            told.append(
                f"{which}: {level.reason.rstrip('.')}. What is expected of it is not judged."
            )
    return told


def phase_names(facts: ReportData) -> list[str]:
    """The names of a drill's phases, from the file that it was judged by."""
    plan = tomllib.loads((facts.run.path / names.DRILL).read_text(errors="replace"))
    return [str(phase.get("name", "")) for phase in plan["phase"]]


def recovery_sentences(facts: ReportData) -> list[str]:
    """How long each SLO took to be as before an overload, where a baseline is long enough."""
    lines = []
    for before, over, after in zip(facts.levels, facts.levels[1:], facts.levels[2:], strict=False):
        spans = Overload(before.settled_ns, over.settled_ns, over.end_ns, after.end_ns)
        watched_ns = spans.until_ns - spans.end_ns
        longest_s = (watched_ns - Sliding.over(watched_ns).needs_ns) / SECOND
        slos = facts.slos if over.load > before.load == after.load else ()
        for slo in (slo for slo in slos if slo.metric not in GAPS):
            with suppress(ConfigError):  # the baseline says too little
                seen = recovery(facts.run.table, slo, spans)
                back = f"was back where it had been {seen.seconds:.1f} s after the overload"
                if not seen.came_back:
                    back = f"took longer than {longest_s:.1f} s to be back where it had been"
                lines.append(
                    f"{slo_name(slo)} {back} ({seen.former_ms[0]:.3g} to {seen.former_ms[1]:.3g} "
                    f"ms before it); {max(seen.good_lost, 0):,.0f} requests that would have met "
                    f"{slo} did not."
                )
    return lines
