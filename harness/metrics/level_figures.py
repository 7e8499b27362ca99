"""What a result says of a level beside its latencies: the server, the GPUs, the client, the audits.

Plain figures. `diagnosis` computes those of a level, `search` those of several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import nan

from harness.metrics.server_summary import (
    AND_ONE,
    ESTIMATED_RATE,
    INCREASE,
    MAX,
    MEAN,
    MIN,
    OBSERVED,
    P95_BUCKET,
    RATE,
    SHARE,
    by,
)

Interval = tuple[float, float]
Bounds = Interval | None  # None: not known


@dataclass(frozen=True, slots=True)
class Little:
    """Little's law, N = X (R + Z): the users held, and X and R from the records."""

    n: float  # users held; open loop: the rate times R
    x: float  # requests that ended, 1/s
    r_s: float  # mean time in flight of these requests, s
    error: float  # (in flight or thinking by the records - n) / n
    z_s: float = 0.0  # mean think time planned after these requests, s


@dataclass(frozen=True, slots=True)
class Audit:
    """Output tokens of the window, as the client and the server counted them."""

    client_tokens: int  # output tokens that arrived here
    server_tokens: float  # output tokens that the server generated; null: not known
    surplus: float  # what the server counted in excess, as a share of ours; null: not known
    ok: bool  # whether the server had no other clients


@dataclass(frozen=True, slots=True)
class PrefixHits:
    """Prompt tokens in the prefix cache: by the plan of the sessions, and by the server."""

    requests: int  # sent in the window, whose hits are compared
    expected: float  # prompt tokens that the plan lets the cache have, in whole blocks
    counted: float  # prompt tokens that the server found there


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """The GPUs in one window: means over them, power and memory added up; null: not known."""

    gpus: int = 0  # GPUs that were read
    samples: int = 0  # readings, all GPUs together
    util_pct_mean: float = nan  # share of the time in which any kernel ran, %
    memory_util_pct_mean: float = nan  # share of the time in which memory was read or written, %
    memory_used_mib_max: float = nan  # memory in use at most, MiB
    power_w: float = nan  # power drawn on average, W
    j_per_output_token: float = nan  # energy for an output token, J
    sm_clock_mhz_min: float = nan  # clock of the multiprocessors, lowest, MHz
    sm_clock_mhz_mean: float = nan  # clock of the multiprocessors, MHz
    sm_clock_mhz_max: float = nan  # clock of the multiprocessors, highest, MHz
    temperature_c_max: float = nan  # temperature of the hottest chip, degrees Celsius
    pcie_rx_mb_per_s: float = nan  # PCIe traffic to the GPUs, MB/s
    pcie_tx_mb_per_s: float = nan  # PCIe traffic from the GPUs, MB/s
    throttled_share: float = nan  # share of the readings in which something slowed the clocks
    throttled: str = ""  # what held the clocks down, each with its share of the readings


@dataclass(frozen=True, slots=True)
class Turnaround:
    """The client's own delay between the end of a request and the start of its user's next one."""

    mean: float = nan  # mean, ms
    p99: float = nan  # p99, ms


@dataclass(frozen=True, slots=True)
class ClientFigures:
    """What the load generator shows of itself in one window; null: not known."""

    instrument_share: dict[str, float] = field(default_factory=dict)  # by SLO: uncertainty / limit
    turnaround_ms: Turnaround = Turnaround()  # between two requests of a user, ms
    cpu: dict[str, float] = field(default_factory=dict)  # CPU by process, cores
    loop_lag_max_ms: float = nan  # the latest that an event loop came to its work, ms
    stamp_coverage: float = nan  # share of the reads that had a kernel stamp
    clock_steps: int = 0  # jumps of the machine's clock
    throttled_share: float = nan  # of the time: a CPU limit stopped the process it stopped most


@dataclass(frozen=True, slots=True)
class GapFigures:
    """Gaps between tokens that ended in one window, by whether a prompt was in the same step.

    null: too few gaps of the kind.
    """

    n: int = 0  # gaps looked at
    prompt_share: float = nan  # share of the gaps with a prompt in their engine step
    prompt_tokens_mean: float = nan  # mean number of prompt tokens that ended with a gap
    longest_prompt_share: float = nan  # share of the longest 5% with a prompt in their step
    late_share: float = nan  # share of the events that were generated on time and sent late
    mean_ms: float = nan  # mean of all gaps, ms
    p50_ms: float = nan  # median of all gaps, ms
    p95_ms: float = nan  # p95 of all gaps, ms
    alone_p50_ms: float = nan  # median of the gaps without a prompt, ms
    alone_p95_ms: float = nan  # p95 of the gaps without a prompt, ms
    beside_p50_ms: float = nan  # median of the gaps with a prompt, ms
    slope_ms: float = nan  # least-squares cost of 1,000 prompt tokens, ms
    base_ms: float = nan  # a gap without prompt tokens, by the same line, ms
    correlation: float = nan  # of a gap's length with its prompt tokens


@dataclass(frozen=True, slots=True)
class ArrivalFigures:
    """How evenly requests were sent in one window; null: too few requests."""

    n: int = 0  # requests sent
    bin_s: float = nan  # length of a bin in which they are counted, s
    dispersion: float = nan  # variance over mean of the number in a bin; a Poisson process has 1
    scheduled: float = nan  # share sent by a schedule, not at the end of an answer


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The server's own figures of one window, all engines and replicas; null: not reported."""

    samples: int = 0  # scrapes of /metrics in the window
    running_mean: float = by(MEAN)  # requests in the batch
    running_max: float = by(MAX)  # requests in the batch, at most
    running_flat_share: float = nan  # share of the scrapes with a queue with running near its most
    waiting_mean: float = by(MEAN)  # requests in the queue
    waiting_max: float = by(MAX)  # requests in the queue, at most
    waiting_capacity_mean: float = by(MEAN)  # requests in the queue for a slot or for KV blocks
    waiting_deferred_mean: float = by(MEAN)  # requests in the queue for something else
    kv_fetching_mean: float = by(  # requests whose KV blocks are fetched from elsewhere
        MEAN, column="Fetching KV"
    )
    kv_fetching_max: float = by(MAX)  # requests whose KV blocks are fetched from elsewhere, at most
    kv_usage_mean: float = by(MEAN)  # share of the KV cache in use, mean of the engines
    kv_usage_max: float = by(MAX)  # share of the KV cache in use, at most
    kv_usage_fullest_mean: float = by(MEAN)  # share of the KV cache in use in the fullest engine
    kv_usage_fullest_max: float = by(  # share of the KV cache in use in the fullest engine, at most
        MAX
    )
    awake_min: float = by(MIN)  # engines that do not sleep, at least
    preemptions: float = by(INCREASE, "preemptions_total")  # requests that lost their KV blocks
    prefix_hit_share: float = by(  # share of the prompt tokens found in the prefix cache
        SHARE, "prefix_hits_total", "prefix_queries_total"
    )
    external_hit_share: float = by(  # of those looked up in a cache beyond the server, those found
        SHARE, "external_hits_total", "external_queries_total", column="Found in an external cache"
    )
    spec_acceptance: float = by(  # share of the draft tokens accepted (speculative decoding)
        SHARE, "spec_accepted_tokens_total", "spec_draft_tokens_total", column="Drafts accepted"
    )
    spec_accepted_length: float = by(  # tokens for each draft: those accepted, and one more
        AND_ONE, "spec_accepted_tokens_total", "spec_drafts_total", column="Tokens per draft"
    )
    prompt_cached_share: float = by(  # share of the prompt tokens that were not computed again
        SHARE, "cached_prompt_tokens_total", "prompt_tokens_total", column="Prompt tokens cached"
    )
    computed_tokens_mean: float = by(  # prompt tokens computed for a request that ended
        OBSERVED, "computed_tokens"
    )
    preemptions_per_request: float = by(  # of the requests that ended
        OBSERVED, "preemptions", column="Preemptions per request"
    )
    admission_rejections: float = by(  # requests that a queue limit turned away
        INCREASE, "admission_rejections_total", column="Rejected at admission"
    )
    flops_per_s: float = by(  # of one GPU, by vLLM's estimate (--enable-mfu-metrics)
        ESTIMATED_RATE, "flops_total", column="TFLOP/s", column_unit=1e12
    )
    memory_bytes_per_s: float = by(  # read and written by one GPU, by vLLM's estimate
        ESTIMATED_RATE,
        "read_bytes_total",
        "written_bytes_total",
        column="Memory GB/s",
        column_unit=1e9,
    )
    prompt_tokens_per_s: float = nan  # prompt tokens per second, without those that were cached
    generation_tokens_per_s: float = by(RATE, "generation_tokens_total")  # output tokens per second
    requests_per_s: float = by(RATE, "requests_total")  # requests that ended per second
    api_server_cores: float = by(RATE, "api_cpu_s")  # CPU of the API server's process, cores
    api_server_threads: float = by(MAX, "api_threads")  # cores that it can use at once; null: one
    engine_cores: float = by(RATE, "engine_cpu_s")  # CPU of the engine's process, cores
    ttft_mean_s: float = by(OBSERVED)  # mean time to first token, s
    queue_mean_s: float = by(OBSERVED)  # mean time in the queue, s
    prefill_mean_s: float = by(  # mean time from a request's first step to its first token, s
        OBSERVED
    )
    decode_mean_s: float = by(OBSERVED)  # mean time from a request's first token to its last, s
    inference_mean_s: float = by(OBSERVED)  # mean of prefill and decode together, s
    e2e_mean_s: float = by(OBSERVED)  # mean time from a request's arrival to its end, s
    itl_mean_s: float = by(OBSERVED)  # mean time between two tokens, s
    ttft_p95_s: tuple[float, float] | None = by(P95_BUCKET)  # bucket that holds the p95 TTFT, s
    itl_p95_s: tuple[float, float] | None = by(P95_BUCKET)  # bucket that holds the p95 ITL, s
    step_tokens_mean: float = by(OBSERVED, "step_tokens")  # tokens in an engine step
    finished: dict[str, int] = field(default_factory=dict)  # requests that ended, by vLLM's reason


class Source(StrEnum):
    """Where `max_num_seqs` comes from."""

    GIVEN = "given"  # with --server-flag
    READ = "read"  # the server, or we started it
    INFERRED = "inferred"  # from what ran while requests waited
    UNKNOWN = ""  # nobody


@dataclass(frozen=True, slots=True)
class MaxNumSeqs:
    """The largest number of requests that an engine runs at once: vLLM's flag."""

    value: int | None = None  # requests, of one engine; null: not known
    source: Source = Source.UNKNOWN  # who says so
    engines: int = 1  # each of which has this many
    prefill_engines: int = 0  # more of them, of servers that only prefill

    @property
    def slots(self) -> float:
        """The slots of all engines together; NaN: not known."""
        return self.value * self.engines if self.value else nan


@dataclass(frozen=True, slots=True)
class TtftSplit:
    """Where the mean TTFT of one window is spent; null: not known."""

    exact: bool = False  # whether each of the server's parts is known, not only bounded
    from_ns: int = 0  # first of the two scrapes, ns
    to_ns: int = 0  # last of the two scrapes, ns
    n: int = 0  # requests sent between the two scrapes
    under_way_before: int = 0  # requests in flight at the first scrape
    under_way_after: int = 0  # requests in flight at the last scrape
    ttft_ms: float = nan  # the server's TTFT, ms
    ttft_ms_bound: Bounds = None  # between which `ttft_ms` lies, ms
    queue_ms: float = nan  # time in the server's queue, ms
    queue_ms_bound: Bounds = None  # between which `queue_ms` lies, ms
    prefill_ms: float = nan  # time from the queue to the first token, ms
    prefill_ms_bound: Bounds = None  # between which `prefill_ms` lies, ms
    rest_ms: float = nan  # the server's TTFT without queue and prefill, ms
    rest_ms_bound: Bounds = None  # between which `rest_ms` lies, ms
    # of a deployment with prefill apart, whose figures above are of the servers that decode
    prefill_server_ms: float = nan  # time until the prefill server had the first token, ms
    prefill_server_ms_bound: Bounds = None  # between which `prefill_server_ms` lies, ms
    prefill_server_queue_ms: float = nan  # of it, time in that server's queue, ms
    prefill_server_queue_ms_bound: Bounds = None  # between which it lies, ms
    transfer_ms: float = nan  # of the queue of the servers that decode: the KV cache on its way, ms
    client_ms: float = nan  # the client's TTFT, ms
    client_ms_bound: Bounds = None  # between which `client_ms` lies, ms
    residual_ms: float = nan  # the client's TTFT less the server's, and the prefill server's, ms
    residual_ms_bound: Bounds = None  # between which `residual_ms` lies, ms
    ttft_n: int | None = None  # first tokens that the server counted between the scrapes
    ttft_p50_ms_bucket: Bounds = None  # bucket of the median TTFT, ms
    ttft_p95_ms_bucket: Bounds = None  # bucket of the p95 TTFT, ms
    queue_n: int | None = None  # queue times that the server counted between the scrapes
    queue_p50_ms_bucket: Bounds = None  # bucket of the median queue time, ms
    queue_p95_ms_bucket: Bounds = None  # bucket of the p95 queue time, ms
    prefill_n: int | None = None  # prefill times that the server counted between the scrapes
    prefill_p50_ms_bucket: Bounds = None  # bucket of the median prefill time, ms
    prefill_p95_ms_bucket: Bounds = None  # bucket of the p95 prefill time, ms


@dataclass(frozen=True, slots=True)
class LateSplit:
    """Shares of the time in which requests over their limit wait for a first token; null: none."""

    waits: int = 0  # late requests without a token, summed over the scrapes
    queue: float = nan  # in the engine's queue
    outside: float = nan  # not in an engine: API server, network, client


class Change(StrEnum):
    """The verdict on B, compared with A."""

    worse = "worse"  # shown
    better = "better"  # shown
    no_difference_shown = "no_difference_shown"  # neither; shown not to be worse beyond a tolerance
    inconclusive = "inconclusive"  # none of these is shown


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a figure between two runs or settings, A and B."""

    metric: str  # ttft_p95, ..., or knee
    users: float  # the level; 0: the whole run, or each one's own level
    a: float  # the figure of A
    b: float  # the figure of B
    change: float  # B / A - 1; for a share B - A
    ci95: Interval  # of `change`
    verdict: Change  # worse, better, no_difference_shown or inconclusive
    beyond: bool  # shown to be worse by more than the tolerance
    needs_times: float | None  # inconclusive: factor of requests that would probably decide
    unit: str = "users"  # of the level and of a knee: also sessions or requests/s


@dataclass(frozen=True, slots=True)
class PowerKnee:
    """The level where throughput divided by latency peaks."""

    users: int  # concurrent requests
    ci95: tuple[int, int]  # 95% interval of `users`, over block resamples
    power: float  # (output tokens/s)^2 per user


@dataclass(frozen=True, slots=True)
class PlateauKnee:
    """The smallest level within 10% of the highest throughput."""

    users: int  # concurrent requests
    ci95: tuple[int, int]  # interval of `users`: from one more than the level before
    output_tokens_per_s: float  # tokens per second there
