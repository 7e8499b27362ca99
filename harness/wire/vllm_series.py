"""SERIES: vLLM's names of the metrics that we read, the newest name first.

Sources: `vllm/v1/metrics/loggers.py` of 0.9, 0.32 and main, `vllm/engine/metrics.py` of 0.5 (V0),
docs.vllm.ai "Production Metrics" of 0.4 to 0.32, and vLLM's pull requests: `#38435` means the first
version that contains it, where the number is unknown. What X.Y deprecates is hidden in X.Y+1 and
removed in X.Y+2.

Counters carry `_total` in the text format. An exporter that re-exports vLLM's series may turn the
colon into an underscore, and Ray Serve puts its own name before them, so `vllm:x` also matches
`vllm_x`, `ray_vllm:x` and `ray_vllm_x`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]
# How the names of a kind's lines end.
ENDS: Final[dict[Kind, tuple[str, ...]]] = {
    "gauge": ("",),
    "counter": ("_total", ""),
    "histogram": ("_bucket", "_sum", "_count"),
}


@dataclass(frozen=True, slots=True)
class Spelling:
    """A name without `_total`, `_bucket`, `_sum`, `_count`; "" where no version bounds it."""

    name: str
    since: str = ""  # the first vLLM with it
    until: str = ""  # the first without it


@dataclass(frozen=True, slots=True)
class Series:
    """One field of ServerSample (or key of its `histograms`), and the series it is read from."""

    key: str
    kind: Kind
    spellings: tuple[Spelling, ...]
    over: Callable[[Iterable[float]], float] = fsum  # how values of several engines are combined
    where: tuple[str, str] = ("", "")  # only the lines with this label
    by: str = ""  # kept apart by this label instead of added up

    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return the names that lines may begin with, a tuple for each spelling."""
        return tuple(_written(self.kind, spelling.name) for spelling in self.spellings)


def _written(kind: Kind, name: str) -> tuple[str, ...]:
    return tuple(written + end for written in written_by_all(name) for end in ENDS[kind])


def written_by_all(name: str) -> tuple[str, ...]:
    """`vllm:x` as vLLM, an exporter that knows no colon, and Ray Serve write it; others as is."""
    if not name.startswith("vllm:"):
        return (name,)
    underscored = name.replace(":", "_", 1)
    return name, underscored, f"ray_{name}", f"ray_{underscored}"


def _one(name: str, since: str = "") -> tuple[Spelling, ...]:
    return (Spelling(name, since),)


def _renamed(new: str, since: str, old: str, until: str) -> tuple[Spelling, ...]:
    return Spelling(new, since), Spelling(old, until=until)


# gpu_* renamed by #18354, removed by #29330
KV_USAGE: Final = _renamed("vllm:kv_cache_usage_perc", "0.9.2", "vllm:gpu_cache_usage_perc", "0.12")
ITL: Final = _renamed(
    "vllm:inter_token_latency_seconds", "0.11", "vllm:time_per_output_token_seconds", "#32661"
)
FINISHED: Final = _one("vllm:request_success")
BY_REASON: Final = _one("vllm:num_requests_waiting_by_reason", "#38435")

SERIES: Final = (
    Series("running", "gauge", _one("vllm:num_requests_running")),
    Series("waiting", "gauge", _one("vllm:num_requests_waiting")),
    Series("waiting_capacity", "gauge", BY_REASON, where=("reason", "capacity")),
    Series("waiting_deferred", "gauge", BY_REASON, where=("reason", "deferred")),
    Series("kv_fetching", "gauge", _one("vllm:num_requests_kv_fetch_by_stage", "0.33")),
    Series("kv_usage", "gauge", KV_USAGE, fmean),
    Series("kv_usage_fullest", "gauge", KV_USAGE, max),
    Series(
        "awake",
        "gauge",
        _one("vllm:engine_sleep_state", "#24176"),
        min,
        where=("sleep_state", "awake"),
    ),
    Series("preemptions_total", "counter", _one("vllm:num_preemptions")),
    Series("prompt_tokens_total", "counter", _one("vllm:prompt_tokens")),
    Series("generation_tokens_total", "counter", _one("vllm:generation_tokens")),
    Series("requests_total", "counter", FINISHED),
    Series("finished", "counter", FINISHED, by="finished_reason"),
    Series(
        "prefix_queries_total",
        "counter",
        _renamed("vllm:prefix_cache_queries", "0.9.2", "vllm:gpu_prefix_cache_queries", "0.12"),
    ),
    Series(
        "prefix_hits_total",
        "counter",
        _renamed("vllm:prefix_cache_hits", "0.9.2", "vllm:gpu_prefix_cache_hits", "0.12"),
    ),
    # only with a KV connector (another instance's or host's cache), else 0
    Series("external_queries_total", "counter", _one("vllm:external_prefix_cache_queries", "0.15")),
    Series("external_hits_total", "counter", _one("vllm:external_prefix_cache_hits", "0.15")),
    Series(
        "computed_prompt_tokens_total",
        "counter",
        _one("vllm:prompt_tokens_by_source", "0.18"),
        where=("source", "local_compute"),
    ),
    # only with --speculative-config; names of `vllm/v1/spec_decode/metrics.py`
    Series("spec_drafts_total", "counter", _one("vllm:spec_decode_num_drafts")),
    Series("spec_draft_tokens_total", "counter", _one("vllm:spec_decode_num_draft_tokens")),
    Series("spec_accepted_tokens_total", "counter", _one("vllm:spec_decode_num_accepted_tokens")),
    Series("cached_prompt_tokens_total", "counter", _one("vllm:prompt_tokens_cached", "0.18")),
    Series("admission_rejections_total", "counter", _one("vllm:admission_rejections", "0.32")),
    # vLLM's estimates, of one GPU; without --enable-mfu-metrics they stay 0
    Series("flops_total", "counter", _one("vllm:estimated_flops_per_gpu"), fmean),
    Series("read_bytes_total", "counter", _one("vllm:estimated_read_bytes_per_gpu"), fmean),
    Series("written_bytes_total", "counter", _one("vllm:estimated_write_bytes_per_gpu"), fmean),
    Series("api_cpu_s", "counter", _one("process_cpu_seconds")),  # not with several API servers
    Series("started_s", "gauge", _one("process_start_time_seconds"), max),
    Series("ttft", "histogram", _one("vllm:time_to_first_token_seconds")),
    Series("itl", "histogram", ITL),
    Series("e2e", "histogram", _one("vllm:e2e_request_latency_seconds")),
    Series(
        "queue",
        "histogram",
        _renamed(  # deprecated in 0.8
            "vllm:request_queue_time_seconds", "", "vllm:time_in_queue_requests", "0.10"
        ),
    ),
    Series("prefill", "histogram", _one("vllm:request_prefill_time_seconds")),
    Series("decode", "histogram", _one("vllm:request_decode_time_seconds")),
    Series("inference", "histogram", _one("vllm:request_inference_time_seconds")),
    Series("step_tokens", "histogram", _one("vllm:iteration_tokens_total")),
    Series("preemptions", "histogram", _one("vllm:request_num_preemptions", "0.32")),
    Series("computed_tokens", "histogram", _one("vllm:request_prefill_kv_computed_tokens", "0.15")),
)
# What newer versions write and nothing here uses, and why.
NOT_READ: Final = {
    "vllm:prompt_tokens_cached_by_source": "0.33: where a hit came from (device, host, disk, ...); "
    "a hit is not computed again wherever it came from, and its cost is in the time of prefill",
    "vllm:watermark_requests": "0.33: no page or source of it was at hand; who waits for KV blocks "
    "is in `waiting_capacity`",
    "vllm:kv_block_lifetime_seconds": "only of sampled blocks (--kv-cache-metrics), when they are "
    "evicted: it helps to size a cache, but no rule of the diagnosis",
    "vllm:prompt_tokens_recomputed": "0.18 only: a last token that is computed again after a hit",
    "vllm:mm_cache_queries, vllm:mm_cache_hits": "the cache of pictures: requests have text only",
}
# the labels are its content
CACHE_CONFIG: Final = written_by_all("vllm:cache_config_info")
# process_* alone may be any server's
VLLM_PREFIXES: Final = written_by_all("vllm:")
SERIES_NAMES: Final = frozenset(
    name for series in SERIES for names in series.names() for name in names
)
