"""The engine's metrics under vLLM's names and with its buckets: the text of GET /metrics.

It has all series that `SERIES` in wire/vllm_series.py reads (a test compares them), not all of
vLLM's.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Final

from harness.records import histogram as measured

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Scheduler, Sequence

# vllm/v1/metrics/loggers.py, 0.26
TTFT_S: Final = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
    2560.0,
)
GAP_S: Final = (
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
REQUEST_S: Final = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
    960.0,
    1920.0,
    7680.0,
)
STEP_TOKENS: Final = (1.0, 8.0, *(float(1 << k) for k in range(4, 15)))
REASONS: Final = ("stop", "length", "abort", "error", "repetition")  # only two of them happen here


class BucketHistogram:
    """Buckets and a sum; equal values can be observed many at a time."""

    def __init__(self, name: str, buckets: tuple[float, ...]) -> None:
        """`buckets`: upper bounds in the unit of the observations: seconds, tokens."""
        self.name = name
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe_ns(self, value_ns: int, times: int = 1) -> None:
        self.observe(value_ns / 1e9, times)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    def observed(self) -> measured.Histogram:
        return measured.Histogram(
            (*self.buckets, inf), tuple(accumulate(map(float, self.counts))), self.sum
        )

    def lines(self, labels: str) -> list[str]:
        out, total = [f"# TYPE {self.name} histogram"], 0
        for bound, count in zip((*self.buckets, None), self.counts, strict=True):
            total += count
            le = "+Inf" if bound is None else f"{bound}"
            out.append(f'{self.name}_bucket{{{labels},le="{le}"}} {total}.0')
        return [
            *out,
            f"{self.name}_count{{{labels}}} {total}.0",
            f"{self.name}_sum{{{labels}}} {self.sum}",
        ]


class EngineMetrics:
    """What vLLM observes, when vLLM does: TTFT at the first token, the rest at the end."""

    def __init__(self, config: EngineConfig, model: str) -> None:
        self.config = config
        self.labels = f'engine="0",model_name="{model}"'
        self.finished = dict.fromkeys(REASONS, 0)
        self.started_s = time.time()
        # since the start, or since POST /oracle/reset
        self.late_max_ns = 0
        self.lost_ns = 0  # time by which the plan was postponed because the process was late
        self.running = 0  # paced streams, which no scheduler runs
        self.ttft = BucketHistogram("vllm:time_to_first_token_seconds", TTFT_S)
        self.gap = BucketHistogram("vllm:inter_token_latency_seconds", GAP_S)
        self.queue = BucketHistogram("vllm:request_queue_time_seconds", REQUEST_S)
        self.prefill = BucketHistogram("vllm:request_prefill_time_seconds", REQUEST_S)
        self.decode = BucketHistogram("vllm:request_decode_time_seconds", REQUEST_S)
        self.inference = BucketHistogram("vllm:request_inference_time_seconds", REQUEST_S)
        self.e2e = BucketHistogram("vllm:e2e_request_latency_seconds", REQUEST_S)
        self.step_tokens = BucketHistogram("vllm:iteration_tokens_total", STEP_TOKENS)
        self.late = BucketHistogram("harness_engine_late_seconds", GAP_S)

    def observe_lateness(self, late_ns: int) -> None:
        self.late.observe_ns(late_ns)
        self.late_max_ns = max(self.late_max_ns, late_ns)

    def finish(self, sequence: Sequence, received_ns: int) -> None:
        self.finished["length"] += 1
        end, first = sequence.finished_ns, sequence.first_token_ns
        self.queue.observe_ns(sequence.scheduled_ns - sequence.arrived_ns)
        self.prefill.observe_ns(first - sequence.scheduled_ns)
        self.decode.observe_ns(end - first)
        self.inference.observe_ns(end - sequence.scheduled_ns)
        self.e2e.observe_ns(end - received_ns)

    def text(self, engine: Scheduler) -> str:
        c, labels = self.config, self.labels
        rows = [
            ("gauge", "vllm:num_requests_running", len(engine.running) + self.running),
            ("gauge", "vllm:num_requests_waiting", len(engine.waiting)),
            ("gauge", "vllm:kv_cache_usage_perc", engine.kv_usage),
            ("counter", "vllm:num_preemptions_total", engine.preemptions_total),
            ("counter", "vllm:prompt_tokens_total", engine.prompt_tokens_total),
            ("counter", "vllm:generation_tokens_total", engine.generation_tokens_total),
            ("counter", "vllm:prefix_cache_queries_total", engine.prefix_queries_total),
            ("counter", "vllm:prefix_cache_hits_total", engine.prefix_hits_total),
            ("gauge", "harness_engine_lost_seconds", self.lost_ns / 1e9),
        ]
        out: list[str] = []
        for kind, name, value in rows:
            out += [
                f"# TYPE {name.removesuffix('_total')} {kind}",
                f"{name}{{{labels}}} {float(value)}",
            ]
        waiting = {"capacity": len(engine.waiting), "deferred": 0}
        states = {"awake": 1, "weights_offloaded": 0, "discard_all": 0}
        for name, label, values in (
            ("vllm:num_requests_waiting_by_reason", "reason", waiting),
            ("vllm:engine_sleep_state", "sleep_state", states),
            ("vllm:request_success_total", "finished_reason", self.finished),
        ):
            out += [f'{name}{{{labels},{label}="{k}"}} {float(n)}' for k, n in values.items()]
        cache = (
            f'block_size="{c.block_size}",cache_dtype="auto",engine="0",'
            f'enable_prefix_caching="{c.enable_prefix_caching}",num_gpu_blocks="{c.blocks}"'
        )
        out += [
            f"process_cpu_seconds_total {time.process_time()}",
            f"process_start_time_seconds {self.started_s}",
            f"vllm:cache_config_info{{{cache}}} 1.0",
        ]
        for histogram in vars(self).values():
            out += histogram.lines(labels) if isinstance(histogram, BucketHistogram) else []
        return "\n".join(out) + "\n"
