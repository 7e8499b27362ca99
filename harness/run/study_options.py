"""The options of a study: frozen plain data with parsed units.

The command line or a test creates them; a study reads no other configuration.
Durations are integer nanoseconds, shares lie in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.core.load import CONCURRENT, REQUESTS_PER_S, Users, unit_of_users
from harness.core.timeouts import Timeouts
from harness.errors import ConfigError
from harness.load.request_fields import DEFAULT_FIELDS
from harness.units import NS_PER, SECOND, duration_ns

if TYPE_CHECKING:
    from harness.core.load import Load, LoadUnit
    from harness.core.run_kinds import RunKind
    from harness.engine.config import EngineConfig
    from harness.export.upload_url import UploadUrl
    from harness.load.own_data import DataSource
    from harness.load.workloads import Workload
    from harness.metrics.slo import Slo
    from harness.search.next_level import Hold, SearchPlan

MAX_BUDGET_NS: Final = 24 * NS_PER["h"]
MIN_BUDGET_NS: Final = 10 * SECOND


def budget_ns(text: str, what: str = "the budget") -> int:
    """The time budget of a search. Raises ConfigError if it is too short or too long."""
    value = duration_ns(text, what, "90s")
    if not MIN_BUDGET_NS <= value <= MAX_BUDGET_NS:
        raise ConfigError(f"{what} is {text!r}: expected a time from 10s to 24h; try '10m'.")
    return value


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Which server, and how to talk to it. `url` None: start `engine` and measure that."""

    url: str | None = None
    model: str | None = None  # None: the only one that the server lists
    api_key: str = field(default="", repr=False)
    key_source: str = ""  # the environment variable that the key came from
    ca_file: Path | None = None
    insecure: bool = False  # do not verify the server's certificate
    timeouts: Timeouts = field(default_factory=Timeouts)
    headers: tuple[tuple[str, str], ...] = ()  # the user's, as they were given
    engine: EngineConfig | None = None  # set exactly when `url` is None
    # as the server was started
    server_flags: Mapping[str, int | float | str] = field(default_factory=dict)
    metrics_urls: tuple[str, ...] = ()  # of the replicas behind `url`; (): as it resolves
    prefill_urls: tuple[str, ...] = ()  # of servers that only prefill; the others then decode
    gpu_metrics: str | None = None  # local, none or an exporter's URL; None: as fits the server


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is sent, by how many processes."""

    workload: Workload
    seed: int = 1
    processes: int = 1
    processes_note: str = ""  # why so many; "": one is enough, or the user has said
    body: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT_FIELDS))  # further fields
    batch: int = 0  # requests that users share and drain, level by level; 0: no limit
    data: DataSource | None = None  # whose rows are sent
    salt: str = ""  # fixes the prompts of the workload; "": the run's own
    arrivals: str = ""  # of load.arrivals: levels are rates; "": levels are users
    max_in_flight: int = 0  # of an open loop
    retries: int = 0  # of a request that failed, in an open loop

    @property
    def unit(self) -> LoadUnit:
        """What levels count."""
        if self.arrivals:
            return REQUESTS_PER_S
        work = self.workload
        return unit_of_users(talk=bool(work.conversation), pause=bool(work.think_ms))


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """Where results go. `json_to` is "-" for standard output; the live view then uses stderr."""

    out_dir: Path
    json_to: str | None = None
    junit_to: str | None = None
    upload: UploadUrl | None = None
    otlp: str = ""  # the collector's URL, or env; "": none
    ui_port: int | None = None  # Locust's web UI; None: off
    live: bool = True  # the terminal view
    compat: tuple[str, ...] = ()  # other tools to compare figures with
    metrics_port: int | None = None  # of live metrics for Prometheus; 0: any, None: off
    metrics_host: str = "127.0.0.1"
    scenario: Mapping[str, Any] = field(default_factory=dict)  # option -> text, to repeat the run


@dataclass(frozen=True)
class Wanted:
    """What one experiment is asked to do."""

    kind: type[RunKind]
    target: TargetOptions
    load: LoadOptions
    output: OutputOptions
    # The plan, and the levels that are given, in the order of the run. Called when first needed:
    # it imports numpy, and a refused target must not wait for that.
    planned: Callable[[], tuple[SearchPlan, tuple[Hold, ...]]] = field(compare=False)
    most_users: int  # at once
    repeats: int = 1  # times that given levels are gone through
    plan_users: int | None = None  # total users, to compute the number of replicas
    at_least: int | None = None  # users that the knee must hold
    strict: bool = False  # the knee must be known as precisely as the plan says
    baseline: str = ""  # a run folder: this run must not be worse
    confirm_ns: int = 0  # how long the promised level is held afterwards
    tolerance: float = 0.0  # share by which it may be worse
    dry_run: bool = False
    drill: Mapping[str, Any] = field(default_factory=dict)  # the file's text and name, the knee

    @cached_property
    def plan(self) -> SearchPlan:
        return self.planned()[0]

    @property
    def never_pauses(self) -> bool:
        """Whether it searches among users who send one independent request after another."""
        return self.kind.searches and self.plan.unit == CONCURRENT

    @cached_property
    def holds(self) -> tuple[Hold, ...]:
        return self.planned()[1]


SLACK_NS: Final = 3600 * SECOND  # a held level ends by its own time, not by a budget


def wanted_levels(
    kind: type[RunKind],
    target: TargetOptions,
    load: LoadOptions,
    output: OutputOptions,
    counts: tuple[int, ...],
    *,
    duration_ns: int = 0,
    requests: int = 0,
    repeats: int = 1,
    slos: tuple[Slo, ...] = (),
    max_errors: float = 0.01,
    dry_run: bool = False,
) -> Wanted:
    """The experiment that holds each level in turn: for a time, for `requests`, or for a batch.

    `counts`: the levels, in `load.unit`. Repeats take turns, so that a drift meets all alike.
    """
    levels = tuple(map(load.unit.of_count, counts))

    def planned() -> tuple[SearchPlan, tuple[Hold, ...]]:
        from harness.search.next_level import SearchPlan  # noqa: PLC0415 - see `Wanted`

        holds = _holds(levels, duration_ns, requests, load.batch) * repeats
        plan = SearchPlan(
            slos=slos,
            min_users=min(counts),
            max_users=max(counts),
            budget_ns=sum(hold.max_ns for hold in holds) + SLACK_NS,
            max_errors=max_errors,
            seed=load.seed,
            unit=load.unit,
        )
        return plan, holds

    most = load.max_in_flight if load.unit.by_schedule else max(counts)
    return Wanted(kind, target, load, output, planned, most, repeats, dry_run=dry_run)


def _holds(
    levels: tuple[Load, ...], duration_ns: int, requests: int, batch: int
) -> tuple[Hold, ...]:
    """Each level once. Before those of batches, one user sends a batch alone, to compare with."""
    from harness.core.states import Purpose, StopRule  # noqa: PLC0415 - see `Wanted`
    from harness.search.next_level import Hold  # noqa: PLC0415 - as above

    if duration_ns:
        stop = StopRule.time
    elif batch:
        stop = StopRule.batch
    else:
        stop = StopRule.requests
    alone = Hold(Users(1), Purpose.sequential, stop, duration_ns, batch or requests)
    purpose = Purpose.batch if batch else Purpose.hold
    holds = [replace(alone, load=load, purpose=purpose) for load in levels]
    if batch:
        holds.insert(0, alone)
    return tuple(holds)
