"""SERIES: vLLM's names of the metrics that we read, the newest name first.

Sources: `vllm/v1/metrics/loggers.py` of 0.9, 0.32 and main, `vllm/engine/metrics.py` of 0.5 (V0),
docs.vllm.ai "Production Metrics" of 0.4 to 0.32, and vLLM's pull requests: `#38435` means the first
version that contains it, where the number is unknown. What X.Y deprecates is hidden in X.Y+1 and
removed in X.Y+2.

Gauges and counters are fields of ServerSample (records/samples.py), which say their series.
Histograms are here.
"""

from __future__ import annotations

from typing import Final

from harness.records.samples import ServerSample
from harness.records.series import Series, renamed, same_name, series_of, written_by_all

ITL: Final = renamed(
    "vllm:inter_token_latency_seconds", "0.11", "vllm:time_per_output_token_seconds", "#32661"
)

HISTOGRAMS: Final = (
    Series("ttft", "histogram", same_name("vllm:time_to_first_token_seconds")),
    Series("itl", "histogram", ITL),
    Series("e2e", "histogram", same_name("vllm:e2e_request_latency_seconds")),
    Series(
        "queue",
        "histogram",
        renamed(  # deprecated in 0.8
            "vllm:request_queue_time_seconds", "", "vllm:time_in_queue_requests", "0.10"
        ),
    ),
    Series("prefill", "histogram", same_name("vllm:request_prefill_time_seconds")),
    Series("decode", "histogram", same_name("vllm:request_decode_time_seconds")),
    Series("inference", "histogram", same_name("vllm:request_inference_time_seconds")),
    # what the servers that decode wait for, where others prefill
    Series("transfer", "histogram", same_name("vllm:nixl_xfer_time_seconds", "0.12")),
    Series("step_tokens", "histogram", same_name("vllm:iteration_tokens_total")),
    Series("preemptions", "histogram", same_name("vllm:request_num_preemptions", "0.32")),
    Series(
        "computed_tokens", "histogram", same_name("vllm:request_prefill_kv_computed_tokens", "0.15")
    ),
)
SERIES: Final = (*(row for row in series_of(ServerSample) if row.spellings), *HISTOGRAMS)
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
