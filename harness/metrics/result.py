"""result.json: the result of a run, the same for `knee`, `run` and `sweep`.

`make docs` makes docs/result.md and docs/result.schema.json from the docstrings here, from the
comments at the ends of the fields' lines and, for latencies, from the rows of METRICS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, nan, prod
from pathlib import Path
from typing import Any, Final, cast

from harness.core.load import (
    CONCURRENT,
    REQUESTS_PER_S,
    LoadUnit,
    Number,
    recorded_load,
    unit_named,
)
from harness.core.run_kinds import RunKind, kind_of
from harness.core.states import WORST_FIRST, Decision, Purpose, Status, Verdict
from harness.core.typed_json import Item, Spread, from_json, spread
from harness.errors import RunFolderError
from harness.metrics.delivery import Delivery
from harness.metrics.level_figures import (
    ArrivalFigures,
    Audit,
    ClientFigures,
    Difference,
    GapFigures,
    GpuFigures,
    LateSplit,
    Little,
    MaxNumSeqs,
    PlateauKnee,
    PowerKnee,
    PrefixHits,
    ServerFigures,
    TtftSplit,
)
from harness.metrics.metrics import (
    FIRST_TOKENS,
    HEADLINES,
    LATENCIES,
    SCHEDULED,
    SLO_METRICS,
    LatencyMetric,
)
from harness.metrics.slo import Slo
from harness.metrics.token_positions import PositionFigures
from harness.records import names
from harness.records.json_files import read_json
from harness.units import SECOND

Json = dict[str, Any]
Interval = tuple[float, float]
SCHEMA_VERSION = 2
MAX_AT_ONCE = 0.5  # of the answers: if more came all at once, no first token is told


def _without_nulls(block: Json) -> Json:
    return {key: value for key, value in block.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency. A quantile is an observed value, of rank ceil(q (n - 1)) counted from 0.

    Those of the gaps between tokens are within 0.1% of it.

    Failed requests are infinite, "inf". Intervals are [lower end, upper end]; with too few values
    above a quantile its upper end is null: it is at least the lower end.
    """

    n: int = 0  # observations, failed ones included
    n_failed: int = 0  # of them infinite
    effective_n: float = 0  # independent observations with the same information about the p95
    mean: float = nan  # of the finite ones, ms
    max: float = nan  # of the finite ones, ms
    p50: float = nan  # median, ms
    p50_ci95: Interval = (nan, nan)  # its 95% confidence interval, ms
    p50_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, ms
    p90: float = nan  # 90th percentile, ms
    p90_ci95: Interval = (nan, nan)  # its 95% confidence interval, ms
    p90_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, ms
    p95: float = nan  # 95th percentile, ms
    p95_ci95: Interval = (nan, nan)  # its 95% confidence interval, ms
    p95_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, ms
    p99: float = nan  # 99th percentile, ms
    p99_ci95: Interval = (nan, nan)  # its 95% confidence interval, ms
    p99_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, ms
    p999: float = nan  # 99.9th percentile, ms
    p999_ci95: Interval = (nan, nan)  # its 95% confidence interval, ms
    p999_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, ms

    @classmethod
    def of(cls, block: Json) -> Latency:
        return from_json(cls, _without_nulls(block))

    def at(self, name: str) -> tuple[float, float, float]:
        """(value, lo, hi) of `p95` or another statistic; NaN for what is not known."""
        lo, hi = getattr(self, f"{name}_ci95", (nan, nan))
        return float(getattr(self, name, nan)), lo, hi


@dataclass(frozen=True, slots=True)
class Speed:
    """Output speed of requests, tokens/s: the inverse of TPOT, so its slow tail is the lower one.

    A failed request, and one that ended without a token, has 0. A quantile is an observed value, of
    rank floor(q (n - 1)) counted from 0. An interval without a lower end begins at 0.
    """

    n: int = 0  # observations, failed ones included
    n_failed: int = 0  # of them 0
    effective_n: float = 0  # independent observations with the same information about the p5
    mean: float = nan  # of those above 0, tokens/s
    p50: float = nan  # median, tokens/s
    p50_ci95: Interval = (nan, nan)  # its 95% confidence interval, tokens/s
    p50_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, tokens/s
    p10: float = nan  # 10th percentile, tokens/s
    p10_ci95: Interval = (nan, nan)  # its 95% confidence interval, tokens/s
    p10_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, tokens/s
    p5: float = nan  # 5th percentile, tokens/s
    p5_ci95: Interval = (nan, nan)  # its 95% confidence interval, tokens/s
    p5_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, tokens/s
    p1: float = nan  # 1st percentile, tokens/s
    p1_ci95: Interval = (nan, nan)  # its 95% confidence interval, tokens/s
    p1_instrument: Interval = (nan, nan)  # bounds that the time stamps leave, tokens/s

    @classmethod
    def of(cls, block: Json) -> Speed:
        return from_json(cls, _without_nulls(block))

    def at(self, name: str) -> tuple[float, float, float]:
        """As `Latency.at`."""
        lo, hi = getattr(self, f"{name}_ci95", (nan, nan))
        return float(getattr(self, name, nan)), lo, hi


@dataclass(frozen=True, slots=True)
class SloResult:
    """The verdict on one SLO, of a level or of the run."""

    slo: str  # as asked for: ttft_p95=500ms; max_errors=1%
    verdict: Verdict  # whether it was met
    observed: float = nan  # the quantile that the SLO limits, ms or tokens/s
    users: int | None = None  # the level
    rate_per_s: float = 0.0  # the level of an open loop
    n: int = 0  # observations; 0 in a search
    n_over: float = 0  # observations over the limit; failed requests count as over
    allowed: float = nan  # share that may be over
    needs_more: int | None = None  # about how many more requests would decide it; null: unknown

    @property
    def load(self) -> Number:
        """In the unit of the run; 0: the whole run."""
        return recorded_load(self.users or 0, self.rate_per_s).number


@dataclass(frozen=True, slots=True)
class Everything:
    """Every request sent in a level, its warm-up and its drain included."""

    ttft_ms: Latency = field(default_factory=Latency)  # time to first token
    itl_ms: Latency = field(default_factory=Latency)  # inter-token latency


def _level_item(metric: LatencyMetric) -> Item:
    if metric.scheduled:
        return Item(Latency | None, metric.level_text, None)
    kind = Speed if metric.speed else Latency
    return Item(kind, metric.level_text, kind())


LEVEL_LATENCIES: Final = {m.field: _level_item(m) for m in SLO_METRICS.values()}
SCHEDULED_LATENCIES: Final = {m.field: _level_item(m) for m in SCHEDULED.values()}


@dataclass(frozen=True, slots=True)
class Level(Spread):
    """One number of users, held once."""

    index: int  # its place in the run, from 0: `level` of the frames
    users: int  # concurrent requests; 0: an open loop, at the rate below
    purpose: Purpose = Purpose.hold  # why it was held
    decision: Decision = Decision.inconclusive  # of the search's test, over all its holds
    reason: str = ""  # of the decision
    slos: tuple[SloResult, ...] = ()  # of this level, if it was given (run, sweep)
    chosen_ns: int = 0  # when the level was asked for, ns since 1970
    start_ns: int = 0  # when its users were all there and busy, ns since 1970
    settled_ns: int = 0  # when the warm-up ended and the measured window began, ns since 1970
    end_ns: int = 0  # when the measured window ended, ns since 1970
    judged_ns: int = 0  # when that was decided, ns since 1970
    n_open: int = 0  # requests under way at the window's end
    n_failed: int = 0  # requests sent in the window that failed
    outcomes: dict[str, int] = field(default_factory=dict)  # requests of the window, by outcome
    # ttft_ms, tps and so on, by their names in JSON
    latencies: dict[str, Latency | Speed] = field(
        default_factory=dict, metadata=spread(LEVEL_LATENCIES)
    )
    rate_per_s: float = 0.0  # open loop: requests per second that were due; 0: closed loop
    in_flight: float = nan  # requests in flight, mean over the window
    backlog_per_s: float = nan  # open loop: by how much these grew each second
    drift: str = ""  # which latency rises or falls over its blocks of time, if that is shown
    alike: float = nan  # rank correlation of neighboring blocks of time, where that is shown
    unstable: str = ""  # how, if growth is shown: then latencies grow for as long as it is held
    # schedule_lag_ms and so on; None in a closed loop
    of_schedule: dict[str, Latency | None] = field(
        default_factory=dict, metadata=spread(SCHEDULED_LATENCIES)
    )
    output_tokens_per_s: float = nan  # tokens that arrived in the window, per second
    prompt_tokens_per_s: float = nan  # as the server counted them, of the requests below; null: no
    requests_per_s: float = nan  # per second of the window: succeeded; open loop: sent
    goodput_per_s: float = nan  # of these, requests that met every SLO, per second
    tokens_per_event: float = nan  # mean number of tokens that an event carried
    came_at_once: float = nan  # share of the answers whose tokens all came in one event or read
    exact_share: float = nan  # share of the events with an exact time stamp
    over_share: dict[str, float] = field(default_factory=dict)  # by SLO: share over the limit
    all: Everything = field(default_factory=Everything)  # with its warm-up and its drain
    mix: dict[str, dict[str, Latency]] = field(default_factory=dict)  # row: ttft_ms, itl_ms, e2e_ms
    by_name: dict[str, dict[str, Latency]] = field(default_factory=dict)  # name of requests: as mix
    little: Little | None = None  # Little's law
    delivery: Delivery = field(default_factory=Delivery)  # what was asked for against what came
    audit: Audit | None = None  # the client's tokens against the server's
    prefix: PrefixHits | None = None  # of sessions: hits by the plan against the server's
    ttft_split: TtftSplit = field(default_factory=TtftSplit)  # the parts of the mean TTFT
    server: ServerFigures = field(default_factory=ServerFigures)  # the server's figures
    replicas: dict[str, ServerFigures] = field(default_factory=dict)  # each of several, by URL
    prefill: ServerFigures | None = None  # of the servers that only prefill; null: none do
    skew: str = ""  # how unevenly they are loaded; empty: evenly, or there is one
    gpu: GpuFigures = field(default_factory=GpuFigures)  # the GPUs' figures
    client: ClientFigures = field(default_factory=ClientFigures)  # the load generator's figures
    gaps: GapFigures = field(default_factory=GapFigures)  # how token gaps follow arriving prompts
    arrivals: ArrivalFigures = field(default_factory=ArrivalFigures)  # how requests arrived
    late: LateSplit = field(default_factory=LateSplit)  # where requests over a limit wait
    positions: PositionFigures = field(default_factory=PositionFigures)  # ITL by token position

    @property
    def ttft_ms(self) -> Latency:
        return cast("Latency", self.latencies["ttft_ms"])

    @property
    def itl_ms(self) -> Latency:
        return cast("Latency", self.latencies["itl_ms"])

    @property
    def e2e_ms(self) -> Latency:
        return cast("Latency", self.latencies["e2e_ms"])

    @property
    def usable(self) -> bool:
        return self.decision != Decision.invalid

    @property
    def load(self) -> Number:
        """In the unit of the run."""
        return recorded_load(self.users, self.rate_per_s).number

    @property
    def concurrency(self) -> float:
        """Requests in flight: the users of a closed loop."""
        return self.users or self.in_flight

    @property
    def seconds(self) -> float:
        """Measured, after the warm-up."""
        return (self.end_ns - self.settled_ns) / SECOND

    @property
    def result(self) -> str:
        """In a word: the decision in a search, else the worst verdict of its SLOs."""
        if self.decision != Decision.held:
            return self.decision
        verdicts = [slo.verdict for slo in self.slos]
        return next((verdict for verdict in WORST_FIRST if verdict in verdicts), "measured")

    @property
    def tells_ttft(self) -> bool:
        """Whether most answers came as a stream: else TTFT is e2e by another name."""
        return not self.came_at_once > MAX_AT_ONCE

    def latency(self, key: str) -> Latency:
        """Of one of LATENCIES; an unknown one where it cannot be told."""
        if key in FIRST_TOKENS and not self.tells_ttft:
            return Latency()
        return cast("Latency", self.latencies[LATENCIES[key].field])

    def observed(self, slo: Slo) -> float:
        """The quantile that an SLO limits, in its unit; NaN if levels do not have it."""
        latency = self.latencies[SLO_METRICS[slo.metric].field]
        return float(getattr(latency, slo.statistic, nan))


@dataclass(frozen=True, slots=True)
class KneeCurve:
    """The knee of one SLO alone against its limit; of several SLOs the lowest knee counts."""

    slo: str  # ttft_p95
    limit: float  # the one that was asked for, ms or tokens/s; null: none was
    points: tuple[tuple[float, Number, Number, Number], ...]  # limit, knee, its 95% interval


def _knee_items(key: str) -> dict[str, Item]:
    p95 = f"p95 {LATENCIES[key].title_inside}, of all its holds together"
    return {
        f"{key}_p95_ms": Item(float, p95, nan),
        f"{key}_p95_ms_ci95": Item(Interval, "its 95% confidence interval", (nan, nan)),
    }


KNEE_HEADLINES: Final = {name: item for key in HEADLINES for name, item in _knee_items(key).items()}


@dataclass(frozen=True, slots=True)
class Knee(Spread):
    """The largest number of concurrent requests, or rate, at which every SLO is met."""

    holds: Number | None = None  # the highest level that passed, our promise; null: none
    estimate: Number | None = None  # best estimate; null: none
    fails_by: Number | None = None  # lowest level above the estimate that failed; null: none
    ci95: tuple[Number | None, Number | None] = (None, None)  # 95% interval of the estimate
    precision: float = nan  # that was asked for, of `width`
    width: float = nan  # (fails_by - holds) / holds, the precision reached; null: an end not shown
    criterion: str = ""  # the SLOs; power: it was searched without one
    measured_at_users: int | None = None  # of the figures below: `holds`, or nearest to `estimate`
    # ttft_p95_ms, ttft_p95_ms_ci95 and so on, of each of HEADLINES
    p95s_ms: dict[str, float | Interval] = field(
        default_factory=dict, metadata=spread(KNEE_HEADLINES)
    )
    output_tokens_per_s: float = nan  # tokens per second, mean over these holds
    requests_per_s: float = nan  # requests per second, mean over these holds
    goodput_per_s: float = nan  # requests that met every SLO per second, mean over these holds
    unit: str = "users"  # of the levels here: also sessions; open loop: requests/s
    measured_at_per_s: Number | None = None  # as measured_at_users, of an open loop
    in_flight: float = nan  # requests in flight, mean over these holds
    steepness: str = ""  # cliff: 5% more load, or one user, costs 1/4 of the limit; else slope
    rise_of: str = ""  # the quantile that rises most from holds to fails_by: ttft_p95
    rise_ms: float = nan  # per added user, session or request/s, about
    curves: tuple[KneeCurve, ...] = ()  # the knee at other limits, of TTFT and of ITL at least

    @property
    def is_precise(self) -> bool:
        """Whether both ends are shown, and no further apart than was asked for."""
        if not self.holds or self.fails_by is None:
            return False
        finest = unit_named(self.unit).load.finest
        # One step below `fails_by` is the highest load that may still hold. Rates are multiples of
        # a hundredth only up to rounding.
        between = round(self.fails_by - finest - self.holds, 6)
        return between <= max(finest, self.precision * self.holds)

    @property
    def measured_at(self) -> Number | None:
        """The level of its figures, in its unit."""
        return self.measured_at_per_s or self.measured_at_users

    def p95_ms(self, key: str) -> tuple[float, float, float]:
        """(value, lo, hi) of one of HEADLINES."""
        value = cast("float", self.p95s_ms[f"{key}_p95_ms"])
        lo, hi = cast("Interval", self.p95s_ms[f"{key}_p95_ms_ci95"])
        return value, lo, hi


@dataclass(frozen=True, slots=True)
class KneeInterval:
    """95% interval of the knee's best estimate."""

    low: Number
    high: Number | None  # None: open, as no level failed

    @property
    def ends(self) -> str:
        """`40 to 52`, or `at least 26`."""
        return f"at least {self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"

    @property
    def words(self) -> str:
        """`95% interval 40 to 52`, or `95%: at least 26`."""
        name = "95%:" if self.high is None else "95% interval"
        return f"{name} {self.ends}"


@dataclass(frozen=True, slots=True)
class Gate:
    """A requirement: `--baseline`, `knee --at-least`, `--confirm`; an expectation of a drill."""

    name: str  # name of its JUnit test case
    verdict: Verdict  # whether it was met
    sentence: str  # for a person
    at_s: float = nan  # of a drill: when that showed, seconds since its begin


# vLLM's flags of how many GPUs share, or repeat, a model.
PARALLEL_FLAGS: Final = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def gpus_by_flags(flags: Mapping[str, Any]) -> int:
    """The GPUs of one server, by those of its flags that are known; 0: none is."""
    known = [flags[name] for name in PARALLEL_FLAGS if isinstance(flags.get(name), int)]
    return prod(known) if known else 0


@dataclass(frozen=True, slots=True)
class Target:
    """What was measured."""

    url: str = ""  # URL of the server
    model: str = ""  # the server's name of the model
    simulated: bool = False  # the embedded engine: no real server was measured
    gpu: str = ""  # of the embedded engine: the GPU that it models
    versions: dict[str, str] = field(default_factory=dict)  # of the server and of this client
    flags: dict[str, Any] = field(default_factory=dict)  # of the server, as far as they are known
    max_num_seqs: MaxNumSeqs = field(default_factory=MaxNumSeqs)  # requests that run at once
    servers: int = 1  # that are measured as one: those behind a balancer
    gpus: int = 0  # of all of them; 0: not known

    @property
    def many_gpus(self) -> str:
        """` of 2 GPUs`, ` of 2 servers`: what one replica is here; "": a server with one GPU."""
        if self.servers > 1:
            return f" of {self.servers:,} servers"
        if self.gpus > 1:
            return f" of {self.gpus:,} GPUs"
        return ""

    @property
    def noun(self) -> str:
        """What is multiplied to hold more: `replica`, `server` of several GPUs, or `group`."""
        if self.servers > 1:
            return "group"
        return "server" if self.gpus > 1 else "replica"

    @property
    def label(self) -> str:
        """`simulated llama-3.1-8b on h100`; "" of a real server."""
        if not self.simulated:
            return ""
        where = f" on {self.gpu}" if self.gpu else ""  # `vllm-harness engine` does not tell it
        return f"simulated {self.model}{where}"


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause. Probabilities of all causes and of "unknown" add up to 1."""

    name: str  # a name of RULES, or unknown
    probability: float  # that doubling it moves the knee most


@dataclass(frozen=True, slots=True)
class SloCause:
    """What limits the knee of another SLO, which cannot be told from that of the first."""

    slo: str  # itl_p95=50ms
    bound_by: str = ""  # a name of RULES, or undecided
    sentence: str = ""  # for a person
    confidence: float = 0  # its probability
    window: str = ""  # the level that the figures are of


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits the knee, by the rules of docs/verdict.md."""

    bound_by: str = ""  # a name of RULES, or undecided
    sentence: str = ""  # for a person
    confidence: float = 0  # its probability
    window: str = ""  # the level that the figures are of
    causes: tuple[Cause, ...] = ()  # every possible one and "unknown", likeliest first
    evidence: tuple[str, ...] = ()  # figures that support it
    ruled_out: tuple[str, ...] = ()  # every other name, with the reason
    try_next: tuple[str, ...] = ()  # what to change, best first
    pool: str = ""  # the servers that bind: prefill or decode; empty: all do both
    slo: str = ""  # the SLO that breaks first
    times_knee: float = nan  # the level's load over the knee; null: it is at most 25% above it
    also: tuple[SloCause, ...] = ()  # of other SLOs whose knees cannot be told from the first one's


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether turning the knob of the named cause moves the knee most."""

    verdict: str  # confirmed, refuted or not shown
    sentence: str  # for a person
    knees: dict[str, Difference] = field(default_factory=dict)  # of each flag turned: A is without


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found. Each figure is of one level: nothing is pooled over levels."""

    command: str = "knee"  # knee, run, sweep, drill or locust
    unit: str = CONCURRENT.one  # what a level counts: also user (who thinks) or session
    status: Status = Status.inconclusive  # how it ended
    exit_code: int = 0  # of the command
    schema_version: int = SCHEMA_VERSION  # of this file
    target: Target = field(default_factory=Target)  # what was measured
    slos: tuple[SloResult, ...] = ()  # each SLO at its worst level, or at the level that holds
    errors: SloResult | None = None  # if more requests failed than --max-errors allows
    knee: Knee | None = None  # of a search
    gates: tuple[Gate, ...] = ()  # requirements on the answer: they decide the exit code
    levels: tuple[Level, ...] = ()  # in the order of the run
    bottleneck: Bottleneck | None = None  # in a search that met a limit
    proof: Proof | None = None  # of the bottleneck, with --prove
    power: PowerKnee | None = None  # level of the most throughput for the latency
    plateau: PlateauKnee | None = None  # lowest level near the highest throughput
    client: Json = field(default_factory=dict)  # the load generator's figures, whole run
    lacking: tuple[str, ...] = ()  # metrics that the server does not export
    invalid_reason: str = ""  # why the figures must not be used
    commonest_error: str = ""  # the most frequent error of the failed requests
    interrupted: bool = False  # Ctrl-C or SIGTERM
    damage: tuple[str, ...] = ()  # parts of the run folder that could not be read, lost processes
    unheld: str = ""  # of `locust`: numbers of users that were asked for and are no level
    replay_differences: tuple[str, ...] = ()  # where a replay differs from the live search
    compat: Json | None = None  # other tools' definitions on the same requests

    @property
    def kind(self) -> type[RunKind]:
        """Raises RunFolderError for one that this version does not know."""
        return kind_of(self.command)

    @property
    def used(self) -> list[Level]:
        """Levels whose figures may be used."""
        return [level for level in self.levels if level.usable]

    @property
    def highest_load(self) -> float:
        """Of the levels whose figures may be used; inf without any."""
        return max((level.load for level in self.used), default=inf)

    @property
    def knee_interval(self) -> KneeInterval | None:
        """None: there is no knee, or its interval is not known.

        It is open where no level failed and it ends above all of them: what result.json has as its
        upper end is then the most users allowed.
        """
        if self.knee is None:
            return None
        low, high = self.knee.ci95
        if low is None:
            return None
        is_open = high is None or (not self._some_level_failed and high > self.highest_load)
        return KneeInterval(low, None if is_open else high)

    @property
    def knee_band(self) -> tuple[Number | None, Number | None]:
        """The knee's interval on a chart: an open one ends at the highest level."""
        interval = self.knee_interval
        if interval is None:
            return None, None
        if interval.high is not None or not self.used:
            return interval.low, interval.high
        return interval.low, max(interval.low, self.highest_load)

    @property
    def _some_level_failed(self) -> bool:
        """A result of an earlier version may tell it of the levels alone."""
        if self.knee is not None and self.knee.fails_by is not None:
            return True
        return any(level.decision == Decision.failed for level in self.used)

    @property
    def load_unit(self) -> LoadUnit:
        """What its levels count."""
        if any(level.rate_per_s for level in self.levels):
            return REQUESTS_PER_S
        return unit_named(self.unit)

    def loads_text(self, *levels: Level) -> str:
        """`8 concurrent requests`, `1 session`, `5, 10 and 20 requests/s`: each load once."""
        return self.load_unit.list_text(level.load for level in levels)

    @property
    def at_knee(self) -> Level | None:
        """The longest hold of the level whose figures stand for the knee."""
        load = self.knee.measured_at if self.knee else None
        holds = [level for level in self.used if load in (None, level.load)]
        return max(holds, key=lambda level: level.seconds, default=None)


def read_result(path: Path) -> Result | None:
    """Read result.json; None if it is missing. Raises RunFolderError for an unknown format."""
    value = read_json(path / names.RESULT)
    if value is None:
        return None
    try:
        return from_json(Result, value)
    except ValueError as error:
        raise RunFolderError(
            f"{path / names.RESULT} cannot be read ({error}): expected what this version writes; "
            f"try `vllm-harness report {path}`, which writes it again."
        ) from None
