"""RECORDED: what Prometheus works out ahead: quantiles, means and rates over the last minute.

    harness:ttft_seconds:p95            a run's, by job and instance
    harness:server_ttft_seconds:p95     the server's own, by job, instance and model_name

Names follow Prometheus' custom, level:metric:operation. Times are seconds, rates per second, shares
0 to 1. A quantile is what buckets tell: Prometheus interpolates in them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from harness.export.metric_definitions import (
    HARNESS_SERIES,
    REPLICA,
    finite_mean,
    newest_name,
    quantile_of,
    rate,
    series_names,
)
from harness.metrics.metrics import HISTOGRAMS

OVER: Final = "1m"
RUN_BY: Final = "job, instance"
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    name: str
    expr: str
    what: str

    def lines(self) -> list[str]:
        return [f"      - record: {self.name}", f"        expr: {json.dumps(self.expr)}"]


def run_mean(key: str) -> str:
    """Of what did not fail."""
    return finite_mean(key, lambda part: rate(f"{HARNESS_SERIES[key]}{part}", OVER, RUN_BY))


def server_rate(key: str, tail: str) -> str:
    """A rate of vLLM's, by its newest name or else by those that it replaced."""
    return " or ".join(rate(f"{name}{tail}", OVER, REPLICA) for name in series_names(key))


def server_mean(key: str) -> str:
    """Sum over count of a histogram of vLLM's."""
    return f"({server_rate(key, '_sum')}) / ({server_rate(key, '_count')})"


def _run_latencies() -> list[Recording]:
    rows = []
    for key in HISTOGRAMS:
        name = f"harness:{key}_seconds"
        rows += [
            Recording(
                f"{name}:{p}",
                quantile_of(q, HARNESS_SERIES[key], OVER, RUN_BY),
                f"{p} of {HARNESS_SERIES[key]}",
            )
            for p, q in QUANTILES.items()
        ]
        rows.append(Recording(f"{name}:mean", run_mean(key), "mean of those that did not fail"))
    return rows


def _run_rates() -> list[Recording]:
    misses, looked = (
        rate(HARNESS_SERIES[f"slo_{x}"], OVER, f"{RUN_BY}, slo") for x in ("misses", "observations")
    )
    failed = rate(HARNESS_SERIES["requests"] + '{outcome!="ok"}', OVER, RUN_BY)
    ended = rate(HARNESS_SERIES["requests"], OVER, RUN_BY)
    lag = f"max by ({RUN_BY}) ({HARNESS_SERIES['loop_lag']})"
    return [
        Recording(
            "harness:output_tokens:rate",
            rate(HARNESS_SERIES["output_tokens"], OVER, RUN_BY),
            "output tokens per second",
        ),
        Recording(
            "harness:prompt_tokens:rate",
            rate(HARNESS_SERIES["prompt_tokens"], OVER, RUN_BY),
            "prompt tokens of ended requests per second",
        ),
        Recording("harness:requests:rate", ended, "requests that ended per second"),
        Recording(
            "harness:goodput:rate",
            rate(HARNESS_SERIES["good_requests"], OVER, RUN_BY),
            "requests within every SLO per second",
        ),
        Recording("harness:failures:ratio", f"{failed} / {ended}", "share that failed"),
        Recording(
            "harness:slo_misses:ratio",
            f"{misses} / {looked}",
            "share over the limit, by `slo`: exact, no bucket is involved",
        ),
        Recording("harness:loop_lag_seconds:max", lag, "the latest load process"),
    ]


def _server_latencies() -> list[Recording]:
    rows = []
    for key in ("ttft", "itl", "e2e"):
        for p, q in QUANTILES.items():
            expr = " or ".join(quantile_of(q, name, OVER, REPLICA) for name in series_names(key))
            what = f"{p} of {newest_name(key)}"
            rows.append(Recording(f"harness:server_{key}_seconds:{p}", expr, what))
    for key in ("ttft", "queue", "prefill", "decode", "e2e"):
        what = f"mean of {newest_name(key)}"
        rows.append(Recording(f"harness:server_{key}_seconds:mean", server_mean(key), what))
    parts = " - ".join(f"harness:server_{key}_seconds:mean" for key in ("ttft", "queue", "prefill"))
    what = "of the mean TTFT, what is neither queue nor prefill: tokenizing, front end, IPC"
    return [*rows, Recording("harness:server_ttft_rest_seconds:mean", parts, what)]


def _server_load() -> list[Recording]:
    def gauge(how: str, key: str) -> str:
        return " or ".join(f"{how} by ({REPLICA}) ({name})" for name in series_names(key))

    def counter(key: str) -> str:
        return server_rate(key, "_total")

    hits, queries = counter("prefix_hits_total"), counter("prefix_queries_total")
    step = server_mean("step_tokens")
    return [
        Recording("harness:server_running:sum", gauge("sum", "running"), "requests in the batch"),
        Recording("harness:server_waiting:sum", gauge("sum", "waiting"), "requests that wait"),
        Recording(
            "harness:server_kv_usage:max",
            gauge("max", "kv_usage"),
            "share of the KV cache in use, of the fullest engine",
        ),
        Recording(
            "harness:server_output_tokens:rate",
            counter("generation_tokens_total"),
            "output tokens per second",
        ),
        Recording(
            "harness:server_prompt_tokens:rate",
            counter("prompt_tokens_total"),
            "prompt tokens per second",
        ),
        Recording(
            "harness:server_requests:rate",
            counter("requests_total"),
            "requests that ended per second",
        ),
        Recording(
            "harness:server_preemptions:rate",
            counter("preemptions_total"),
            "preemptions per second",
        ),
        Recording(
            "harness:server_prefix_hits:ratio",
            f"({hits}) / ({queries})",
            "share of the prompt tokens that the prefix cache had",
        ),
        Recording("harness:server_step_tokens:mean", step, "tokens in an engine's step"),
    ]


RECORDED: Final = {
    "harness_recorded_run": (*_run_latencies(), *_run_rates()),
    "harness_recorded_server": (*_server_latencies(), *_server_load()),
}
