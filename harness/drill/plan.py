"""The plan of a drill: phases of load, events in them, and what is expected.

Times are offsets in ns from the start of the load, loads are users or, in an open loop, requests
per second. drill/drill_file.py reads it from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.load import LoadUnit  # noqa: TC001 - as above
from harness.drill.events import Event  # noqa: TC001 - as above
from harness.metrics.slo import Slo  # noqa: TC001 - as above


@dataclass(frozen=True, slots=True)
class Phase:
    """A load that is held for a time."""

    name: str
    load: float  # in the unit of the drill
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """What has to be true of the requests that begin in a span, or of the server in it."""

    name: str
    kind: str  # its key in the file
    begin_ns: int
    end_ns: int
    since_ns: int  # what happened then; `begin_ns` unless it may take a time to come true
    slo: Slo | None = None
    limit: float = 0.0  # share of errors, waiting requests, or ns of a refusal


@dataclass(frozen=True, slots=True)
class Drill:
    """The whole plan."""

    title: str
    phases: tuple[Phase, ...]
    events: tuple[Event, ...]
    expectations: tuple[Expectation, ...]
    unit: LoadUnit
    retries: int = 0  # times that a client sends a failed request again, in an open loop
    servers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of `vllm-harness run`

    @property
    def length_ns(self) -> int:
        return self.phases[-1].end_ns

    def load_at(self, at_ns: int) -> float:
        """The load at that instant, bursts included; 0 after the last phase."""
        load = 0.0
        for phase in self.phases:
            if phase.begin_ns <= at_ns < phase.end_ns:
                load = phase.load
        for event in self.events:
            if event.at_ns <= at_ns < event.end_ns:
                load = event.changed_load(load)
        return load

    @property
    def slos(self) -> tuple[Slo, ...]:
        """All that are expected."""
        slos = [expected.slo for expected in self.expectations if expected.slo is not None]
        return tuple(dict.fromkeys(slos))

    @property
    def most(self) -> float:
        """The highest load that is ever asked for."""
        begins_ns = [phase.begin_ns for phase in self.phases]
        begins_ns += [event.at_ns for event in self.events]
        return max(self.load_at(at_ns) for at_ns in begins_ns)
