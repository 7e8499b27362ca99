"""VLLM_SERIES: what vLLM calls the figures that we read, newest spelling first.

Counters carry `_total` in the text format. An exporter that re-exports vLLM's series may turn the
colon into an underscore, so `vllm:x` also matches `vllm_x`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING, Final

from harness.measure.samples import ServerSample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return fsum(listed) / len(listed)


@dataclass(frozen=True, slots=True)
class Series:
    """One figure: its field in ServerSample, its names, and how several engines make one."""

    field: str
    names: tuple[str, ...]
    combine: Callable[[Iterable[float]], float] = fsum


VLLM_SERIES: Final = (
    Series("running", ("vllm:num_requests_running",)),
    Series("waiting", ("vllm:num_requests_waiting",)),
    Series("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), _mean),
    Series("preemptions_total", ("vllm:num_preemptions_total", "vllm:num_preemptions")),
    Series("prompt_tokens_total", ("vllm:prompt_tokens_total",)),
    Series("generation_tokens_total", ("vllm:generation_tokens_total",)),
    Series("requests_total", ("vllm:request_success_total", "vllm:request_success")),
    Series(
        "prefix_queries_total",
        ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    ),
    Series(
        "prefix_hits_total",
        ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    ),
    Series("ttft_sum_s", ("vllm:time_to_first_token_seconds_sum",)),
    Series("ttft_count", ("vllm:time_to_first_token_seconds_count",)),
    Series("queue_sum_s", ("vllm:request_queue_time_seconds_sum",)),
    Series("queue_count", ("vllm:request_queue_time_seconds_count",)),
    Series("prefill_sum_s", ("vllm:request_prefill_time_seconds_sum",)),
    Series("prefill_count", ("vllm:request_prefill_time_seconds_count",)),
)


def wanted_names() -> frozenset[str]:
    """Every spelling that may count: a parser can skip all other lines."""
    known = {name for series in VLLM_SERIES for name in series.names}
    return frozenset(known | {name.replace(":", "_", 1) for name in known})


def server_sample(values: Mapping[str, list[float]], at_ns: int) -> ServerSample | None:
    """The sample of one scrape: `values` has, by name, one value per label set.

    None when no series of vLLM's is among them.
    """
    found: dict[str, float] = {}
    for series in VLLM_SERIES:
        for name in series.names:
            listed = values.get(name) or values.get(name.replace(":", "_", 1))
            if listed:
                found[series.field] = series.combine(listed)
                break
    return ServerSample(at_ns, **found) if found else None
