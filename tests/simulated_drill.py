"""The drills that ship, in simulated time: what the product judges, and what is true.

What is true of an expectation is what 20 other runs of the same drill show: for an SLO or a share
of errors, the share over all their requests together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import count, pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from simulated_fleet import Client, Fault, Phase, Simulated, SimulatedDrill, Stream, simulate

from harness.core.states import Verdict
from harness.drill.drill_file import parse_drill
from harness.drill.events import Burst, OtherClients, Prompts, Slow
from harness.drill.servers import engine_of
from harness.drill.verdicts import judge_drill
from harness.load.plan import plan_lengths
from harness.load.workloads import Workload, workload
from harness.metrics.metrics import SLO_METRICS, failed_requests
from harness.units import SECOND, duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from harness.drill.events import Event
    from harness.drill.plan import Drill, Expectation

SEEDS: Final = range(1, 21)
# Each drill as it ships, and two with so much load that they fail.
TIMES: Final = {"overload": (1.0, 4.0), "replica-death": (1.0, 4.0)}
FOLDER: Final = Path(__file__).parents[1] / "drills"
DRILLS: Final = sorted(FOLDER.glob("*.toml"))
START_S: Final = 1.0  # an embedded engine is ready so long after its start
DRAIN_S: Final = 60.0
TRUTH_SEEDS: Final = range(1_000, 1_020)


@dataclass(frozen=True)
class Planned:
    """The lengths that the product plans for a workload."""

    workload: Workload

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endless (prompt, output) pairs."""
        return (plan_lengths(self.workload, seed, "simulated", number) for number in count())


def fixed(prompt: int, output: int) -> Planned:
    """Requests that are all alike."""
    kind = workload("fixed")
    return Planned(kind.sized(prompt, output))


@cache
def drill_of(name: str, times: float = 1.0) -> Drill:
    """A drill that ships, with so many times its load."""
    path = FOLDER / f"{name}.toml"
    drill = parse_drill(path.read_text(), path.name)
    return replace(drill, phases=tuple(replace(p, load=p.load * times) for p in drill.phases))


def in_simulated_time(drill: Drill) -> SimulatedDrill:
    """The same drill for the simulated fleet: a phase for each change of the load."""
    options = drill.options
    kind = workload(options.get("workload", "chat"))
    chat = Planned(kind.sized(options.get("prompt-tokens"), options.get("output-tokens")))
    edges = {0, drill.length_ns, *(p.end_ns for p in drill.phases)}
    apart = [e for e in drill.events if isinstance(e, Burst | OtherClients)]
    edges |= {at for e in apart for at in (e.at_ns, e.end_ns)}
    phases = []
    for begin, end in pairwise(sorted(edges)):
        streams = [Stream(drill.load_at(begin), chat)]
        inside = [e for e in apart if e.at_ns <= begin < e.end_ns]
        streams += [others(e) for e in inside if isinstance(e, OtherClients)]
        phases.append(Phase(str(begin), (end - begin) / SECOND, tuple(streams)))
    seconds = {
        field: duration_ns(str(options[key])) / SECOND
        for field, key in (
            ("timeout_s", "first-token-timeout"),
            ("request_timeout_s", "request-timeout"),
        )
        if key in options
    }
    client = Client(**seconds, retry_factor=1.0, max_retries=drill.retries, backoff_s=0.0)
    faults = tuple(fault(e) for e in drill.events if e not in apart)
    engine = engine_of(dict(drill.servers.get("engine", {})))
    return SimulatedDrill(tuple(phases), faults, client, engine, int(drill.servers["engines"]))


def others(event: OtherClients) -> Stream:
    """Requests that are sent besides the load."""
    rate = event.count / ((event.end_ns - event.at_ns) / SECOND)
    if isinstance(event, Prompts):
        return Stream(rate, fixed(event.tokens, 1), "constant", recorded=False)
    return Stream(rate, fixed(8, 1024), "constant", recorded=False, hang_up_s=event.hang_up_s)


def fault(event: Event) -> Fault:
    """What happens to a replica. Raises KeyError for what is not modeled."""
    what = {"kill": "kill", "restart": "kill", "pause": "pause", "slow": "slow", "cut": "cut"}
    lasts_s = (event.end_ns - event.at_ns) / SECOND
    lasts_s = {"kill": inf, "restart": lasts_s + START_S}.get(event.kind, lasts_s)
    factor = event.factor if isinstance(event, Slow) else 1.0
    return Fault(what[event.kind], event.at_ns / SECOND, lasts_s, event.replica, factor)


def judged(name: str, times: float, seed: int) -> list[Verdict]:
    """What the product says of each expectation."""
    drill = drill_of(name, times)
    seen = simulate(in_simulated_time(drill), seed)
    until_ns = drill.length_ns + round(DRAIN_S * SECOND)
    gates = judge_drill(drill, 0, seen.table, seen.samples, missing=0, until_ns=until_ns)
    return [gate.verdict for gate in gates]


def counted(name: str, times: float, seed: int) -> list[tuple[int, int]]:
    """(observations, those that speak against it) of each expectation."""
    drill = drill_of(name, times)
    seen = simulate(in_simulated_time(drill), seed)
    return [observed(expected, seen) for expected in drill.expectations]


def loads() -> Iterator[tuple[str, float]]:
    """Each drill with the factors of its load."""
    return ((path.stem, times) for path in DRILLS for times in TIMES.get(path.stem, (1.0,)))


def cases() -> Iterator[tuple[str, float, int]]:
    """Each of them with each seed."""
    return ((*load, seed) for seed in SEEDS for load in loads())


def truth_cases() -> Iterator[tuple[str, float, int]]:
    """The same, with the seeds that say what is true."""
    return ((*load, seed) for seed in TRUTH_SEEDS for load in loads())


def observed(expected: Expectation, seen: Simulated) -> tuple[int, int]:
    """Counted without the product's judge."""
    table = seen.table
    table = table.select(
        (table.begun_ns >= expected.begin_ns) & (table.begun_ns <= expected.end_ns)
    )
    if expected.slo is not None:
        latency = SLO_METRICS[expected.slo.metric].observe(table)
        return len(latency.ns), int((latency.ns > expected.slo.limit_ns).sum())
    if expected.kind == "errors":
        return len(table), int(failed_requests(table).sum())
    if expected.kind == "waiting":
        inside = (s for s in seen.samples if expected.since_ns <= s.at_ns <= expected.begin_ns)
        return 1, int(not any(s.waiting <= expected.limit for s in inside))
    if expected.kind == "refused":
        refused = table.select(table.status == 503)
        return len(refused), int((refused.done_ns - refused.sent_ns > expected.limit).sum())
    return 1, 0  # none is ever lost here


def allowed(expected: Expectation) -> float:
    """The share that may speak against it."""
    if expected.slo is not None:
        return expected.slo.allowed
    return {"errors": expected.limit, "waiting": 0.5, "refused": 0.05}.get(expected.kind, 0.0)


def share(counts: list[tuple[int, int]]) -> float:
    """Of all runs together."""
    n, against = np.array(counts).sum(axis=0)
    return float(against / max(n, 1))


def truths(drill: Drill, each: Iterable[list[tuple[int, int]]]) -> list[Verdict]:
    """Whether each expectation is true, by the counts of each run."""
    return [
        Verdict.met if share(list(counts)) <= allowed(expected) else Verdict.missed
        for expected, counts in zip(drill.expectations, zip(*each, strict=True), strict=True)
    ]
