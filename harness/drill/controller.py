"""The controller of a drill: the load by the clock, each phase as a level."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.core.states import Purpose, Status, StopRule
from harness.drill.phases import late_phases
from harness.drill.verdicts import judge_drill
from harness.load.arrivals import LoadTarget
from harness.metrics.evidence import Window
from harness.search.controller import LAG_NS, MAX_LAG_NS, KneeController
from harness.search.level_state import CurrentLevel
from harness.search.next_level import Done, Hold, SearchPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.core.load import Load
    from harness.drill.stage import Stage
    from harness.metrics.result import Gate
    from harness.records.samples import ServerSample


class DrillController(KneeController):
    """Asks for the load that the plan has at each instant; each phase is a level."""

    def __init__(self, stage: Stage, plan: SearchPlan, *rest: Any, **more: Any) -> None:
        super().__init__(plan, *rest, **more)
        self.stage = stage
        self._load = -1.0  # that was asked for last
        self._loads = 0  # changes of it so far: each is a schedule of its own
        self.verdicts: list[Gate] = []  # inconclusive as long as the span is not over
        self._judged_ns = -1

    def judge(self, samples: Sequence[ServerSample]) -> None:
        """Judge what is over and was not yet decided, by the records so far."""
        drill = self.stage.drill
        judged_ns = self._judged_ns
        known_ns = self.horizon_ns - self.began_ns
        self._judged_ns = known_ns
        # The first look gives each a verdict, inconclusive as it may be; each later one judges
        # only spans that ended since, as a test of a span may be made once.
        due = list(drill.expectations)
        if self.verdicts:
            due = [expected for expected in due if judged_ns < expected.end_ns <= known_ns]
        if not due or self.began_ns < 0:
            return
        recorded = self.records.table(self.began_ns, self.horizon_ns)
        fresh = judge_drill(
            replace(drill, expectations=tuple(due)),
            self.began_ns,
            recorded,
            samples,
            missing=0,
            until_ns=self.horizon_ns,
            invalid=late_phases(drill, self.began_ns, recorded.table),
        )
        by_name = {gate.name: gate for gate in (*self.verdicts, *fresh)}
        self.verdicts = [by_name[expected.name] for expected in drill.expectations]

    def tick(
        self,
        now_ns: int,
        running_users: int,  # noqa: ARG002 - KneeController's signature
        server: ServerSample | None = None,
        known_ns: int | None = None,
    ) -> LoadTarget:
        """The load of this instant, from the first call on."""
        self.server = server
        drill = self.stage.drill
        if self.began_ns < 0:
            self.began_ns = now_ns
            self.stage.begin(now_ns)
        if known_ns is None:
            known_ns = now_ns - LAG_NS
        # It never moves back, and records that are far too late do not hold it up.
        self.horizon_ns = max(known_ns, self.horizon_ns, now_ns - MAX_LAG_NS)
        at_ns = now_ns - self.began_ns
        self._turn(at_ns, now_ns)
        if self.result is not None:
            return LoadTarget(0, 1.0, done=True)
        load = drill.load_at(at_ns)
        if load != self._load:
            self._load = load
            self._loads += 1
        if drill.unit.by_schedule:
            return LoadTarget(1, 1.0, pace=(self._loads, load))
        return LoadTarget(round(load), max(load, 1.0))

    def _turn(self, at_ns: int, now_ns: int) -> None:
        """Keep the phases that are over, begin the one that is on."""
        phases = self.stage.drill.phases
        n_over = sum(phase.end_ns <= at_ns for phase in phases)
        # More than one may be over: the process may have stood still.
        while len(self.levels) < n_over:
            self._end_phase(now_ns)
        if len(self.levels) == len(phases):
            self.result = self.result or Done(Status.measured, None)
        elif self.now is None:
            load, begin_ns, end_ns = self._span()
            hold = Hold(load, Purpose.hold, StopRule.time, end_ns - begin_ns)
            self.now = CurrentLevel(hold, begin_ns, begin_ns, None, begin_ns, begin_ns)

    def _span(self) -> tuple[Load, int, int]:
        """Load, begin and end of the phase that is on."""
        drill = self.stage.drill
        phase = drill.phases[len(self.levels)]
        load = drill.unit.load.of_number(phase.load)
        begin_ns = self.began_ns + phase.begin_ns
        end_ns = self.began_ns + phase.end_ns
        return load, begin_ns, end_ns

    def _end_phase(self, now_ns: int) -> None:
        load, begin_ns, end_ns = self._span()
        window = Window(
            index=len(self.levels),
            load=load,
            purpose=Purpose.hold,
            chosen_ns=begin_ns,
            start_ns=begin_ns,
            settled_ns=begin_ns,
            end_ns=min(end_ns, now_ns),
            judged_ns=now_ns,
        )
        self._put_off(window)

    def close(self, now_ns: int, *, data_ended: bool = False) -> None:  # noqa: ARG002 - it has none
        """Keep the phase that was interrupted."""
        if self.now is not None and self.result is None and now_ns > self.now.began_ns:
            self._end_phase(now_ns)
