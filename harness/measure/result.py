"""result.json: what a run found, the same for `knee`, `run` and `sweep`, typed from end to end.

Every figure of a level is of its measured window; `all` is over every request that was sent in it,
warm-up and drain included. Nothing is pooled over levels. The rule of quantiles is one everywhere:
the order statistic at or above q (n - 1), failed requests being infinitely slow. null: undefined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import Any

from harness.measure.audit import Audit, Little
from harness.measure.gpuside import GpuFigures
from harness.measure.interference import ArrivalFigures, GapFigures
from harness.measure.power import PlateauKnee, PowerKnee
from harness.measure.seats import MaxNumSeqs
from harness.measure.selfcheck import ClientFigures
from harness.measure.serverside import ServerFigures
from harness.measure.slo import Slo, quantile_name
from harness.measure.states import Decision, Purpose, Status, Verdict
from harness.measure.traces import TracedSplit
from harness.measure.ttft_split import TtftSplit
from harness.measure.typed import from_json
from harness.units import SECOND

Json = dict[str, Any]
Interval = tuple[float, float]
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency of a level, ms. `_ci95`: sampling; its upper end is null where none is known."""

    n: int = 0  # observations, failed ones included
    n_failed: int = 0  # infinite ones
    effective_n: float = 0  # independent observations that would know the p95 as well
    mean: float = nan  # of the finite ones
    max: float = nan  # of the finite ones
    p50: float = nan  # median
    p50_ci95: Interval = (nan, nan)  # 95% confidence interval
    p50_instrument: Interval = (nan, nan)  # bounds that the time stamps leave
    p90: float = nan  # 90th percentile
    p90_ci95: Interval = (nan, nan)  # 95% confidence interval
    p90_instrument: Interval = (nan, nan)  # bounds that the time stamps leave
    p95: float = nan  # 95th percentile
    p95_ci95: Interval = (nan, nan)  # 95% confidence interval
    p95_instrument: Interval = (nan, nan)  # bounds that the time stamps leave
    p99: float = nan  # 99th percentile
    p99_ci95: Interval = (nan, nan)  # 95% confidence interval
    p99_instrument: Interval = (nan, nan)  # bounds that the time stamps leave
    p999: float = nan  # 99.9th percentile
    p999_ci95: Interval = (nan, nan)  # 95% confidence interval
    p999_instrument: Interval = (nan, nan)  # bounds that the time stamps leave

    @classmethod
    def of(cls, block: Json) -> Latency:
        """Of the figures as `figures.block` has them."""
        return from_json(cls, {key: value for key, value in block.items() if value is not None})

    def at(self, name: str) -> tuple[float, float, float]:
        """(value, lo, hi) of `p95` or another statistic; NaN for what is not known."""
        lo, hi = getattr(self, f"{name}_ci95", (nan, nan))
        return float(getattr(self, name, nan)), lo, hi


@dataclass(frozen=True, slots=True)
class SloResult:
    """What a level, or the run, says of one SLO."""

    slo: str  # as asked for: ttft_p95=500ms
    verdict: Verdict  # met, missed, inconclusive
    observed: float = nan  # the quantile that the SLO is on, ms
    users: int | None = None  # the level that this is of
    n: int = 0  # observations
    n_over: float = 0  # of them over the limit; failed requests count as over
    allowed: float = nan  # share that may be over
    needs_more: int | None = None  # more requests that would decide it, about; null: not known


@dataclass(frozen=True, slots=True)
class Everything:
    """Latencies of every request sent in a level, its warm-up and its drain included."""

    ttft_ms: Latency = field(default_factory=Latency)  # time to first token
    itl_ms: Latency = field(default_factory=Latency)  # inter-token latency


@dataclass(frozen=True, slots=True)
class Level:
    """One number of users, held once."""

    index: int  # its place in the run, from 0
    users: int  # concurrent requests
    purpose: Purpose = Purpose.hold  # why it was held
    decision: Decision = Decision.inconclusive  # of the search's test, of all its holds so far
    reason: str = ""  # of the decision
    slos: tuple[SloResult, ...] = ()  # of this level, where it was given (run, sweep)
    chosen_ns: int = 0  # the level was asked for
    start_ns: int = 0  # its users were all there and busy
    settled_ns: int = 0  # the measured window begins: the warm-up is over
    end_ns: int = 0  # the measured window ends
    judged_ns: int = 0  # and when that was decided
    n_open: int = 0  # requests under way at the window's end
    n_failed: int = 0  # requests sent in the window that failed
    outcomes: dict[str, int] = field(default_factory=dict)  # requests sent in the window
    ttft_ms: Latency = field(default_factory=Latency)  # time to first token
    ttfot_ms: Latency = field(default_factory=Latency)  # time to the first token of the answer
    itl_ms: Latency = field(default_factory=Latency)  # inter-token latency, per event
    tpot_ms: Latency = field(default_factory=Latency)  # time per output token
    e2e_ms: Latency = field(default_factory=Latency)  # end-to-end latency
    output_tokens_per_s: float = nan  # that arrived in the window
    requests_per_s: float = nan  # that ended well in the window
    goodput_per_s: float = nan  # of these, requests that met every SLO
    exact_share: float = nan  # events with an exact time stamp
    over_share: dict[str, float] = field(default_factory=dict)  # by SLO: the share over the limit
    all: Everything = field(default_factory=Everything)
    little: Little | None = None  # Little's law
    audit: Audit | None = None  # the client's tokens against the server's
    ttft_split: TtftSplit = field(default_factory=TtftSplit)  # where the mean TTFT goes
    ttft_traced: TracedSplit | None = None  # the same by request, where the server sent traces
    server: ServerFigures = field(default_factory=ServerFigures)  # what the server showed
    gpu: GpuFigures = field(default_factory=GpuFigures)  # what the GPUs showed
    client: ClientFigures = field(default_factory=ClientFigures)  # the load generator on itself
    gaps: GapFigures = field(default_factory=GapFigures)  # how token gaps follow arriving prompts
    arrivals: ArrivalFigures = field(default_factory=ArrivalFigures)  # how requests arrived

    @property
    def usable(self) -> bool:
        """Whether its figures may be used."""
        return self.decision != Decision.invalid

    @property
    def seconds(self) -> float:
        """Measured, after the warm-up."""
        return (self.end_ns - self.settled_ns) / SECOND

    @property
    def result(self) -> str:
        """In a word: of a search its decision, of a level that was given its SLOs' verdict."""
        if self.decision != Decision.held:
            return self.decision
        verdicts = [one.verdict for one in self.slos]
        order = (Verdict.missed, Verdict.inconclusive, Verdict.met)
        return next((verdict for verdict in order if verdict in verdicts), "measured")

    def latency(self, key: str) -> Latency:
        """Of ttft, ttfot, itl, tpot or e2e."""
        found: Latency = getattr(self, f"{key}_ms")
        return found

    def observed(self, slo: Slo) -> float:
        """The quantile that an SLO is on, ms; NaN of one that no level keeps."""
        name = f"p{quantile_name(slo.q)}"
        return float(getattr(self.latency(slo.metric), name, nan))


@dataclass(frozen=True, slots=True)
class Knee:
    """The largest number of concurrent requests at which every SLO is met."""

    holds: int | None = None  # what is promised: a level that passed, the interval's lower end
    estimate: int | None = None  # best estimate
    fails_by: int | None = None  # the lowest level above the estimate that failed
    ci95: tuple[int | None, int | None] = (None, None)  # 95% interval of the estimate
    criterion: str = ""  # the SLOs, or power
    measured_at_users: int | None = None  # the level that the figures below are of
    ttft_p95_ms: float = nan  # of all holds of that level together
    ttft_p95_ms_ci95: Interval = (nan, nan)  # 95% confidence interval
    itl_p95_ms: float = nan  # p95 inter-token latency
    itl_p95_ms_ci95: Interval = (nan, nan)  # 95% confidence interval
    output_tokens_per_s: float = nan  # mean over these holds
    requests_per_s: float = nan  # mean over these holds
    goodput_per_s: float = nan  # mean over these holds


@dataclass(frozen=True, slots=True)
class Gate:
    """What was asked of a knee: `--at-least`, `--baseline`."""

    name: str  # as a test case is called
    verdict: Verdict
    sentence: str


@dataclass(frozen=True, slots=True)
class Target:
    """What was measured."""

    url: str = ""  # of the server
    model: str = ""  # as the server names it
    simulated: bool = False  # the embedded engine: no real server was measured
    gpu: str = ""  # of the simulator: the GPU that it models
    versions: dict[str, str] = field(default_factory=dict)  # of the server and of this client
    flags: dict[str, Any] = field(default_factory=dict)  # of the server, as far as they are known
    max_num_seqs: MaxNumSeqs = field(default_factory=MaxNumSeqs)  # requests that run at once

    @property
    def label(self) -> str:
        """`simulated llama-3.1-8b on h100`; "" of a real server."""
        return f"simulated {self.model} on {self.gpu}" if self.simulated else ""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What stops it, by the rules."""

    bound_by: str = ""  # a name of RULES, or undecided
    sentence: str = ""  # for a person
    confidence: float = 0  # 0 to 1
    window: str = ""  # which level's figures these are
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()  # every other name, with why
    try_next: tuple[str, ...] = ()  # what to change, best first


@dataclass(frozen=True, slots=True)
class Result:
    """result.json."""

    command: str = "knee"  # knee, run, sweep or locust
    status: Status = Status.inconclusive
    exit_code: int = 0  # docs/exit-codes.md
    schema_version: int = SCHEMA_VERSION
    target: Target = field(default_factory=Target)
    slos: tuple[SloResult, ...] = ()  # of the run: the level that decides it
    errors: SloResult | None = None  # failed requests against --max-errors, of the worst level
    knee: Knee | None = None  # of a search
    gates: tuple[Gate, ...] = ()  # with one, it decides the exit code
    levels: tuple[Level, ...] = ()  # in the order of the run
    bottleneck: Bottleneck | None = None  # of a search that met a limit
    power: PowerKnee | None = None  # the level of most throughput for the waiting time
    plateau: PlateauKnee | None = None  # the lowest level near the highest throughput
    client: Json = field(default_factory=dict)  # the load generator about itself, whole run
    lacking: tuple[str, ...] = ()  # what the server does not show
    invalid_reason: str = ""  # why the figures must not be used
    interrupted: bool = False  # Ctrl-C or SIGTERM
    damage: tuple[str, ...] = ()  # what could not be read
    replay_differences: tuple[str, ...] = ()  # where the records say otherwise than the live search
    compat: Json | None = None  # other tools' definitions on the same requests

    @property
    def used(self) -> list[Level]:
        """Levels whose figures may be used."""
        return [level for level in self.levels if level.usable]

    @property
    def at_knee(self) -> Level | None:
        """The longest hold of the level whose figures stand for the knee."""
        at = self.knee.measured_at_users if self.knee else None
        there = [level for level in self.used if at in (None, level.users)]
        return max(there, key=lambda level: level.seconds, default=None)
