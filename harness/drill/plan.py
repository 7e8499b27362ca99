"""The plan of a drill: phases of load, events in them, and what is expected.

Times are offsets in ns from the start of the load, loads are users or, in an open loop, requests
per second. drill/drill_file.py reads it from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.metrics.slo import Slo  # noqa: TC001 - as above
from harness.units import exact_ns


@dataclass(frozen=True, slots=True)
class Phase:
    """A load that is held for a time."""

    name: str
    load: float  # users, or requests per second
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens to a server, on the way to it, or to the load."""

    name: str
    do: str  # of drill/drill_file.py
    at_ns: int
    end_ns: int  # when it is undone; `at_ns`: nothing is to be undone
    replica: int = -1  # its number from 0; -1: none
    factor: float = 1.0  # burst: times the load; slow: times as slow
    by_ns: int = 0  # delay of each piece of data; disconnect: from sending to hanging up
    bytes_per_s: int = 0
    count: int = 0  # requests that are sent besides the load
    tokens: int = 0  # prompt tokens of each

    @property
    def sentence(self) -> str:
        lasts = f" for {exact_ns(self.end_ns - self.at_ns)}" if self.end_ns > self.at_ns else ""
        who = f" replica {self.replica + 1}" if self.replica >= 0 else ""
        how = {
            "slow": f", {self.factor:g} times as slow",
            "burst": f" of {self.factor:g} x the load",
            "delay": f" by {exact_ns(self.by_ns)}",
            "throttle": f" to {self.bytes_per_s:,} bytes/s",
            "prompts": f": {self.count:,} of {self.tokens:,} tokens",
            "disconnect": f": {self.count:,} clients hang up after {exact_ns(self.by_ns)}",
        }.get(self.do, "")
        return f"{self.do}{who}{how}{lasts}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What has to be true of the requests that begin in a span, or of the server in it."""

    name: str
    kind: str  # as `do`
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
    is_rate: bool
    retries: int = 0  # times that a client sends a failed request again, in an open loop
    servers: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of `vllm-harness run`

    @property
    def length_ns(self) -> int:
        return self.phases[-1].end_ns

    def load_at(self, at_ns: int) -> float:
        """The load at that instant, bursts included; 0 after the last phase."""
        load = next((p.load for p in self.phases if p.begin_ns <= at_ns < p.end_ns), 0.0)
        for event in self.events:
            if event.do == "burst" and event.at_ns <= at_ns < event.end_ns:
                load *= event.factor
        return load

    @property
    def slos(self) -> tuple[Slo, ...]:
        """All that are expected."""
        return tuple(dict.fromkeys(e.slo for e in self.expectations if e.slo is not None))

    @property
    def most(self) -> float:
        """The highest load that is ever asked for."""
        begins_ns = [phase.begin_ns for phase in self.phases]
        begins_ns += [event.at_ns for event in self.events]
        return max(self.load_at(at_ns) for at_ns in begins_ns)
