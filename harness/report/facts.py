"""A run folder as a report sees it: tolerant of whatever is missing, nothing worded yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ConfigError, MeasurementInvalid
from harness.measure.slo import Slo
from harness.measure.summary import window_summary
from harness.report.say import as_float, bounds
from harness.report.steprow import StepRow

if TYPE_CHECKING:
    from harness.runfolder.reader import Run

INTERRUPTED: Final = "interrupted"
HELD: Final = "held"  # a `run` or `sweep`: levels, no search
_SLO_TEXT = re.compile(r"[a-z0-9]+_p\d+=\s*[\d.]+\s*(?:ns|us|ms|s|m|h)\b")


@dataclass(frozen=True)
class Facts:
    """Everything that reports are made from."""

    run: Run
    status: str  # of knee.json, or interrupted, or held
    steps: list[StepRow]  # in the order of the run
    slos: tuple[Slo, ...]

    @property
    def knee(self) -> dict[str, Any]:
        """knee.json's `knee`; {} when there is none."""
        return mapping((self.run.knee or {}).get("knee"))

    @property
    def verdict(self) -> dict[str, Any]:
        """knee.json's `verdict`."""
        return mapping((self.run.knee or {}).get("verdict"))

    @property
    def client(self) -> dict[str, Any]:
        """What the load generator says of itself."""
        found = (self.run.knee or {}).get("client") or (self.run.summary or {}).get("client")
        return mapping(found)

    @property
    def config(self) -> dict[str, Any]:
        """The plan as it ran."""
        return mapping(self.run.info.get("config"))

    @property
    def server(self) -> dict[str, Any]:
        """What is known of the target."""
        return mapping(self.run.info.get("server"))

    @property
    def users(self) -> tuple[float, float, float]:
        """The knee in users with its 95 % interval; NaN for what is not known."""
        at = self.knee.get("users")
        lo, hi = bounds(self.knee.get("ci95"))
        if isinstance(at, list):  # bounds, where no single number can be named
            lo, hi = bounds(at)
            at = None
        return as_float(at), lo, hi

    @property
    def used(self) -> list[StepRow]:
        """Steps that count."""
        return [step for step in self.steps if step.decision != "invalid"]

    @cached_property
    def levels(self) -> list[list[StepRow]]:
        """Steps that count, grouped by users, ascending."""
        by_users: dict[int, list[StepRow]] = {}
        for step in self.used:
            by_users.setdefault(step.users, []).append(step)
        return [by_users[users] for users in sorted(by_users)]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """summary.json, or the same figures made from the records when it is missing."""
        table = self.run.table
        if self.run.summary or not len(table):
            return self.run.summary or {}
        start, end = int(table.sent_ns.min()), int(table.done_ns.max())
        return window_summary(self.run, start, end, self.slos)

    @property
    def measured_at(self) -> int:
        """The level whose figures stand for the knee; 0 when there is none."""
        step = self.at_knee()
        return step.users if step else 0

    def at_knee(self) -> StepRow | None:
        """The longest step at the knee's level, else at the highest good one."""
        good = [step for step in self.used if step.decision == "good"]
        at = as_float(self.knee.get("measured_at_users", self.knee.get("users")))
        there = [step for step in self.used if step.users == at]
        if not there and good:
            top = max(step.users for step in good)
            there = [step for step in good if step.users == top]
        return max(there, key=lambda step: step.seconds, default=None)


def gather(run: Run) -> Facts:
    """The facts of a folder, finished or not."""
    knee = run.knee or {}
    rows = knee.get("steps") or run.steps
    steps = [StepRow(row) for row in rows if isinstance(row, dict)]
    return Facts(run, _status(run), steps, _slos(run))


def _status(run: Run) -> str:
    if run.knee and run.knee.get(INTERRUPTED):
        return INTERRUPTED
    if run.knee and run.knee.get("exit_code") == MeasurementInvalid.exit_code:
        return "invalid"  # a held level's too
    if run.knee and run.knee.get("status"):
        return str(run.knee["status"])
    if run.summary is not None and not run.summary.get(INTERRUPTED):
        return HELD
    return INTERRUPTED


def _slos(run: Run) -> tuple[Slo, ...]:
    """From the plan, as objects or as written; else from the knee's criterion."""
    given = mapping(run.info.get("config")).get("slos")
    criterion = str(mapping((run.knee or {}).get("knee")).get("criterion") or "")
    found = given if isinstance(given, list) and given else _SLO_TEXT.findall(criterion)
    return tuple(slo for slo in map(_slo, found) if slo is not None)


def _slo(value: Any) -> Slo | None:
    try:
        if isinstance(value, dict):
            return Slo(str(value["metric"]), float(value["q"]), int(value["limit_ns"]))
        return Slo.parse(str(value))
    except (ConfigError, KeyError, TypeError, ValueError):
        return None


def broken(facts: Facts, step: StepRow) -> list[Slo]:
    """The SLOs whose quantile a step misses, as far as its quantile is known."""
    return [
        slo
        for slo in facts.slos
        if step.latency(slo.metric, slo.name.partition("_")[2]).value > slo.limit_ns / 1e6
    ]


def mapping(value: Any) -> dict[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
