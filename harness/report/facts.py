"""A run and its result as a report sees them; nothing is worded yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import TYPE_CHECKING, Any

from harness.measure.result import Knee
from harness.measure.slo import Slo
from harness.units import MS

if TYPE_CHECKING:
    from harness.measure.result import Level, Result
    from harness.measure.states import Status
    from harness.runfolder.reader import Run


@dataclass(frozen=True)
class Facts:
    """Everything that reports are made from."""

    run: Run
    result: Result

    @property
    def status(self) -> Status:
        """How the run ended."""
        return self.result.status

    @property
    def searched(self) -> bool:
        """Whether a knee was looked for."""
        return self.result.knee is not None

    @property
    def knee(self) -> Knee:
        """The knee; one without any figure where none was looked for."""
        return self.result.knee or Knee()

    @property
    def steps(self) -> tuple[Level, ...]:
        """Every hold of a level, in the order of the run."""
        return self.result.levels

    @property
    def used(self) -> list[Level]:
        """Those whose figures may be used."""
        return self.result.used

    @cached_property
    def slos(self) -> tuple[Slo, ...]:
        """As asked for."""
        return tuple(Slo.parse(one.slo) for one in self.result.slos)

    @property
    def config(self) -> dict[str, Any]:
        """The plan as it ran."""
        return mapping(self.run.info.get("config"))

    @property
    def server(self) -> dict[str, Any]:
        """What run.json says of the target."""
        return mapping(self.run.info.get("server"))

    @cached_property
    def levels(self) -> list[list[Level]]:
        """Holds whose figures may be used, grouped by users, ascending."""
        by_users: dict[int, list[Level]] = {}
        for step in self.used:
            by_users.setdefault(step.users, []).append(step)
        return [by_users[users] for users in sorted(by_users)]

    def limit_ms(self, metric: str) -> float:
        """The limit on the p95 of a latency; NaN without one."""
        limits = (s.limit_ns / MS for s in self.slos if s.name == f"{metric}_p95")
        return next(limits, nan)

    @property
    def measured_at(self) -> int:
        """The level whose figures stand for the knee; 0 when there is none."""
        step = self.result.at_knee
        return step.users if step else 0


def mapping(value: Any) -> dict[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
