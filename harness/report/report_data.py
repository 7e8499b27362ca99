"""A run and its result as the report uses them, before any wording."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cached_property
from math import isnan, nan
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Verdict
from harness.metrics.metrics import FIRST_TOKENS, HEADLINES
from harness.metrics.numbers import Quantity
from harness.metrics.result import Knee, Level, Result
from harness.metrics.slo import Slo
from harness.records import names
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.load import LoadUnit
    from harness.core.run_kinds import RunKind
    from harness.core.states import Status
    from harness.metrics.token_gaps import WindowGaps
    from harness.records.folder_reader import Run


@dataclass(frozen=True)
class ReportData:
    """The input of all reports."""

    run: Run
    result: Result
    gaps: WindowGaps = field(default_factory=dict)  # between tokens, of the levels' windows

    @property
    def status(self) -> Status:
        return self.result.status

    @property
    def kind(self) -> type[RunKind]:
        return self.result.kind

    @property
    def searched(self) -> bool:
        return self.result.knee is not None

    @property
    def knee(self) -> Knee:
        """The knee; an empty one if none was searched."""
        return self.result.knee or Knee()

    @property
    def levels(self) -> tuple[Level, ...]:
        """Every hold of a level, in the order of the run."""
        return self.result.levels

    @property
    def used(self) -> list[Level]:
        return self.result.used

    @property
    def left_out(self) -> list[Level]:
        """Holds whose figures may not be used."""
        return [level for level in self.levels if not level.usable]

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        if self.kind.has_phases:  # judged over spans of their own, so no level's
            return tuple(map(Slo.parse, self.config.get("slos") or ()))
        return tuple(Slo.parse(result.slo) for result in self.result.slos)

    @property
    def asked_later(self) -> list[str]:
        """Which SLOs the run was made for, if these are others."""
        own = self.config.get("slos")
        if own is None or own == [str(slo) for slo in self.slos]:
            return []
        made_for = " and ".join(map(str, own or ["no SLO"]))
        return [f"The levels were held for {made_for}; only their records are judged here."]

    @property
    def config(self) -> dict[str, Any]:
        """The plan as it ran."""
        return as_mapping(self.run.info.get("config"))

    @property
    def server(self) -> dict[str, Any]:
        """The target in run.json."""
        return as_mapping(self.run.info.get("server"))

    @cached_property
    def by_users(self) -> list[list[Level]]:
        """Holds whose figures may be used, grouped by users or rate, ascending."""
        groups: dict[float, list[Level]] = {}
        for level in self.used:
            groups.setdefault(level.load, []).append(level)
        return [groups[load] for load in sorted(groups)]

    @property
    def split(self) -> list[Level]:
        """The levels whose mean TTFT has a breakdown."""
        return [level for level in self.used if not isnan(level.ttft_split.rest_ms)]

    def limit_ms(self, metric: str) -> float:
        """The limit on the p95 of a latency; NaN without one."""
        for slo in self.slos:
            if slo.name == f"{metric}_p95":
                return slo.limit_ns / MS
        return nan

    @property
    def measured_at(self) -> float:
        """The level whose figures represent the knee; 0 if there is none."""
        level = self.result.at_knee
        return level.load if level else 0

    @cached_property
    def unit(self) -> LoadUnit:
        """What its levels count."""
        return self.result.load_unit


TRUE: Final = {Verdict.met: "true", Verdict.missed: "false", Verdict.inconclusive: "inconclusive"}


def phase_names(facts: ReportData) -> list[str]:
    """The names of a drill's phases, from the file that it was judged by."""
    file = facts.run.path / names.DRILL
    plan = tomllib.loads(file.read_text(errors="replace"))
    return [str(phase.get("name", "")) for phase in plan["phase"]]


def as_mapping(value: Any) -> dict[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def knee_figures(facts: ReportData) -> dict[str, Quantity]:
    """The p95 of each of HEADLINES and the throughput of the level that represents the knee."""
    knee = facts.knee
    level = facts.result.at_knee
    tells_ttft = level is None or level.tells_ttft
    figures = {}
    for key, name in HEADLINES.items():
        p95 = Quantity()
        if tells_ttft or key not in FIRST_TOKENS:
            p95 = Quantity(*knee.p95_ms(key), "ms", facts.limit_ms(key))
        figures[f"p95 {name}"] = p95
    figures["Throughput"] = Quantity(knee.output_tokens_per_s, unit="output tokens/s")
    return figures
