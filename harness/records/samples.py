"""One reading of the server, of a GPU or of the load generator, in the harness's names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, TypeVar

from harness.records.series import (
    NOT_VLLMS,
    Exported,
    counter,
    counter_by,
    gauge,
    renamed,
    same_name,
)

if TYPE_CHECKING:
    from harness.records.histogram import Histogram

NAN: Final = float("nan")

# vLLM's names, the newest first. gpu_* renamed by #18354, removed by #29330
KV_USAGE: Final = renamed("vllm:kv_cache_usage_perc", "0.9.2", "vllm:gpu_cache_usage_perc", "0.12")
PREFIX_QUERIES: Final = renamed(
    "vllm:prefix_cache_queries", "0.9.2", "vllm:gpu_prefix_cache_queries", "0.12"
)
PREFIX_HITS: Final = renamed(
    "vllm:prefix_cache_hits", "0.9.2", "vllm:gpu_prefix_cache_hits", "0.12"
)
FINISHED: Final = "vllm:request_success"
BY_REASON: Final = same_name("vllm:num_requests_waiting_by_reason", "#38435")


@dataclass(frozen=True, slots=True)
class ServerSample:
    """Counters since the server's start and gauges at `at_ns`; NaN: not reported.

    `at_ns` is on the records' clock, the middle between sending the scrape and its last byte.
    Several engines, API servers and replicas are one here: how, says the field's series, whose
    names of all versions are in `SERIES` (wire/vllm_series.py).
    """

    at_ns: int
    running: float = gauge("vllm:num_requests_running", "requests in a batch", live=True)
    waiting: float = gauge("vllm:num_requests_waiting", "requests in the queue", live=True)
    waiting_capacity: float = gauge(
        BY_REASON, "of those waiting: for a slot or KV blocks", where=("reason", "capacity")
    )
    waiting_deferred: float = gauge(
        BY_REASON,
        "of those waiting: for an adapter, a KV transfer, ...",
        where=("reason", "deferred"),
    )
    kv_fetching: float = gauge(
        "vllm:num_requests_kv_fetch_by_stage",
        "requests whose KV blocks are, or will be, fetched from elsewhere",
        since="0.33",
    )
    kv_usage: float = gauge(
        KV_USAGE, "share of KV blocks in use, 0 to 1; the mean over engines", over=fmean
    )
    kv_usage_fullest: float = gauge(
        KV_USAGE, "the same of the engine that has least left", over=max
    )
    awake: float = gauge(
        "vllm:engine_sleep_state",
        "1; 0 when an engine sleeps (its weights are offloaded)",
        since="#24176",
        over=min,
        where=("sleep_state", "awake"),
    )
    preemptions_total: float = counter("vllm:num_preemptions", "requests put back into the queue")
    prompt_tokens_total: float = counter("vllm:prompt_tokens", "tokens taken in")
    generation_tokens_total: float = counter("vllm:generation_tokens", "tokens generated")
    requests_total: float = counter(FINISHED, "finished requests, for any reason")
    finished: Mapping[str, float] = counter_by(
        "finished_reason", FINISHED, "requests_total by reason"
    )
    prefix_queries_total: float = counter(
        PREFIX_QUERIES, "prompt tokens looked up in the prefix cache"
    )
    prefix_hits_total: float = counter(PREFIX_HITS, "prompt tokens found there")
    # only with a KV connector (another instance's or host's cache), else 0
    external_queries_total: float = counter(
        "vllm:external_prefix_cache_queries",
        "prompt tokens looked up in a cache beyond this server",
        since="0.15",
    )
    external_hits_total: float = counter(
        "vllm:external_prefix_cache_hits", "prompt tokens found there", since="0.15"
    )
    computed_prompt_tokens_total: float = counter(
        "vllm:prompt_tokens_by_source",
        "prompt tokens that were computed",
        since="0.18",
        where=("source", "local_compute"),
    )
    # only with --speculative-config; names of `vllm/v1/spec_decode/metrics.py`
    spec_drafts_total: float = counter(
        "vllm:spec_decode_num_drafts", "drafts that speculative decoding proposed"
    )
    spec_draft_tokens_total: float = counter(
        "vllm:spec_decode_num_draft_tokens", "tokens in these drafts"
    )
    spec_accepted_tokens_total: float = counter(
        "vllm:spec_decode_num_accepted_tokens", "of them, those that the model accepted"
    )
    cached_prompt_tokens_total: float = counter(
        "vllm:prompt_tokens_cached", "prompt tokens that did not have to be computed", since="0.18"
    )
    admission_rejections_total: float = counter(
        "vllm:admission_rejections", "requests that a queue limit turned away", since="0.32"
    )
    # vLLM's estimates, of one GPU; without --enable-mfu-metrics they stay 0
    flops_total: float = counter(
        "vllm:estimated_flops_per_gpu",
        "floating-point operations of one GPU, by vLLM's estimate",
        over=fmean,
    )
    read_bytes_total: float = counter(
        "vllm:estimated_read_bytes_per_gpu",
        "bytes that one GPU read from its memory, by vLLM's estimate",
        over=fmean,
    )
    written_bytes_total: float = counter(
        "vllm:estimated_write_bytes_per_gpu",
        "bytes that one GPU wrote to its memory, by vLLM's estimate",
        over=fmean,
    )
    # not with several API servers
    api_cpu_s: float = counter(
        "process_cpu_seconds", "CPU time of the API server's process; the mean of several"
    )
    api_threads: float = NAN  # CPUs that it can use at once, if its threads run in parallel (Rust)
    engine_cpu_s: float = counter(
        NOT_VLLMS,
        "CPU time of the engine cores' processes, all together",
        exported=Exported(
            "engine_cpu",
            "seconds",
            "CPU time of the engine core processes, if they run on this machine.",
        ),
    )
    started_s: float = gauge(
        "process_start_time_seconds",
        "when the API server's process started, seconds since 1970",
        over=max,
    )
    took_ns: float = NAN  # from the scrape's first byte sent to its answer's last received
    # sums of the three histograms below, which older run folders have without buckets
    ttft_sum_s: float = NAN  # TTFT as the server saw it, summed
    ttft_count: float = NAN  # requests in that sum
    queue_sum_s: float = NAN  # time in the queue, summed
    queue_count: float = NAN  # requests in that sum
    prefill_sum_s: float = NAN  # time in prefill, summed
    prefill_count: float = NAN  # requests in that sum
    # ttft, itl, e2e, queue, prefill, decode, inference: seconds; step_tokens: tokens a step;
    # preemptions and computed_tokens (of the prompt): of each ended request
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    # each by its URL, and each engine of a server, without histograms; empty if there is one
    replicas: Mapping[str, ServerSample] = field(default_factory=dict)
    # of the servers that only prefill, as one; the rest is then of those that decode
    prefill: ServerSample | None = None


SUMMED_HISTOGRAMS: Final = ("ttft", "queue", "prefill")  # whose sum and count are fields too


def summed_fields(histograms: Mapping[str, Histogram]) -> dict[str, Any]:
    """The fields of ServerSample that repeat a histogram's sum and count."""
    repeated = {}
    for key in SUMMED_HISTOGRAMS:
        histogram = histograms.get(key)
        if histogram is not None:
            repeated[f"{key}_sum_s"] = histogram.sum
            repeated[f"{key}_count"] = histogram.count
    return repeated


def without_buckets(sample: ServerSample) -> ServerSample:
    """Of its histograms only what they have counted in all: 2 kB instead of 19."""
    totals = {}
    for key, histogram in sample.histograms.items():
        last_bound = histogram.bounds[-1:]
        last_count = histogram.counts[-1:]
        totals[key] = replace(histogram, bounds=last_bound, counts=last_count)
    prefill = without_buckets(sample.prefill) if sample.prefill else None
    return replace(sample, histograms=totals, prefill=prefill)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at `at_ns`; NaN: not reported. Counters count since the driver was loaded."""

    at_ns: int
    gpu: int  # its index
    util_pct: float = NAN  # of the time in which any kernel ran
    memory_util_pct: float = NAN  # of the time in which memory was read or written
    memory_used_mib: float = NAN  # of its memory
    power_w: float = NAN  # drawn now
    energy_j: float = NAN  # used since the driver's load
    sm_clock_mhz: float = NAN  # of its processors
    memory_clock_mhz: float = NAN  # of its memory
    temperature_c: float = NAN  # of the chip
    pcie_rx_mb_per_s: float = NAN  # to the GPU
    pcie_tx_mb_per_s: float = NAN  # from the GPU
    throttled: tuple[str, ...] | None = None  # why its clocks are held down; null: not reported


@dataclass(frozen=True, slots=True)
class ClientSample:
    """What one process of the load generator reports at `at_ns`; counters count since its start.

    `process` is "worker 0", its decoder "decoder 0", or "main" (which judges and records).
    """

    at_ns: int
    process: str
    cpu_s: float
    loop_lag_ms: float = 0.0  # the worst since the sample before
    reads: int = 0
    stamped_reads: int = 0
    clock_steps: int = 0
    throttled_s: float = NAN  # time for which a CPU limit stopped it; null: it has no limit


@dataclass(frozen=True, slots=True)
class HostSample:
    """The load generator's machine at `at_ns`; NaN: it does not say. Seconds count since the boot.

    `own_cpu_s` is of this command and of all that it started, an embedded server included.
    """

    at_ns: int
    cores: float = NAN  # that this command may use: its affinity, or its container's limit
    machine_cores: float = NAN  # of the whole machine
    cpu_s: float = NAN  # CPU that all programs have used
    own_cpu_s: float = NAN  # of it our own
    waited_s: float = NAN  # time in which some program was ready and had no core
    stopped_s: float = NAN  # time for which the container's CPU limit stopped us
    load_1m: float = NAN  # programs that ran or were ready, mean of the last minute


Sample = TypeVar("Sample", ServerSample, GpuSample, ClientSample, HostSample)


def samples_within(samples: Iterable[Sample], start_ns: int, end_ns: int) -> list[Sample]:
    """The samples in [start, end]."""
    return [sample for sample in samples if start_ns <= sample.at_ns <= end_ns]
