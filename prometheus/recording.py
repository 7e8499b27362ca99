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

from harness.export.exported import EXPORTED, finite_mean
from harness.export.rules import REPLICA
from harness.wire.vllm_series import SERIES

OVER: Final = "1m"
RUN_BY: Final = "job, instance"
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
OURS: Final = {row.key: row.name for rows in EXPORTED.values() for row in rows}
THEIRS: Final = {row.key: row for row in SERIES}


@dataclass(frozen=True, slots=True)
class Recording:
    """One recording rule."""

    name: str
    expr: str
    what: str

    def lines(self) -> list[str]:
        """As it stands under `rules:`."""
        return [f"      - record: {self.name}", f"        expr: {json.dumps(self.expr)}"]


def rate(series: str, by: str) -> str:
    """Per second, added up over what `by` leaves out."""
    return f"sum by ({by}) (rate({series}[{OVER}]))"


def quantile(histogram: str, q: float, by: str) -> str:
    """Of a histogram."""
    return f"histogram_quantile({q}, {rate(f'{histogram}_bucket', f'le, {by}')})"


def spelled(key: str, tail: str, by: str) -> str:
    """A rate of vLLM's, by its newest name or else by those that it replaced."""
    names = [spelling.name for spelling in THEIRS[key].spellings]
    return " or ".join(rate(f"{name}{tail}", by) for name in names)


def server_mean(key: str) -> str:
    """Sum over count of a histogram of vLLM's."""
    total, count = (spelled(key, tail, REPLICA) for tail in ("_sum", "_count"))
    return f"({total}) / ({count})"


def run_mean(key: str) -> str:
    """Of what did not fail."""

    def part(name: str, labels: str) -> str:
        chosen = labels and f"{{{labels}}}"
        return rate(f"{OURS[key]}{name}{chosen}", RUN_BY)

    return finite_mean(key, part)


def _run_latencies() -> list[Recording]:
    rows = []
    for key in ("ttft", "itl", "tpot", "e2e", "schedule_lag"):
        name = f"harness:{key}_seconds"
        rows += [
            Recording(f"{name}:{p}", quantile(OURS[key], q, RUN_BY), f"{p} of {OURS[key]}")
            for p, q in QUANTILES.items()
        ]
        rows.append(Recording(f"{name}:mean", run_mean(key), "mean of those that did not fail"))
    return rows


def _run_rates() -> list[Recording]:
    misses, looked = (rate(OURS[f"slo_{x}"], f"{RUN_BY}, slo") for x in ("misses", "observations"))
    failed = rate(OURS["requests"] + '{outcome!="ok"}', RUN_BY)
    ended = rate(OURS["requests"], RUN_BY)
    lag = f"max by ({RUN_BY}) ({OURS['loop_lag']})"
    return [
        Recording("harness:output_tokens:rate", rate(OURS["output_tokens"], RUN_BY),
                  "output tokens per second"),
        Recording("harness:prompt_tokens:rate", rate(OURS["prompt_tokens"], RUN_BY),
                  "prompt tokens of ended requests per second"),
        Recording("harness:requests:rate", ended, "requests that ended per second"),
        Recording("harness:goodput:rate", rate(OURS["good_requests"], RUN_BY),
                  "requests within every SLO per second"),
        Recording("harness:failures:ratio", f"{failed} / {ended}", "share that failed"),
        Recording("harness:slo_misses:ratio", f"{misses} / {looked}",
                  "share over the limit, by `slo`: exact, no bucket is involved"),
        Recording("harness:loop_lag_seconds:max", lag, "the latest load process"),
    ]  # fmt: skip


def _server_latencies() -> list[Recording]:
    rows = []
    for key in ("ttft", "itl", "e2e"):
        names = [spelling.name for spelling in THEIRS[key].spellings]
        for p, q in QUANTILES.items():
            expr = " or ".join(quantile(name, q, REPLICA) for name in names)
            what = f"{p} of {names[0]}"
            rows.append(Recording(f"harness:server_{key}_seconds:{p}", expr, what))
    for key in ("ttft", "queue", "prefill", "decode", "e2e"):
        what = f"mean of {THEIRS[key].spellings[0].name}"
        rows.append(Recording(f"harness:server_{key}_seconds:mean", server_mean(key), what))
    parts = " - ".join(f"harness:server_{key}_seconds:mean" for key in ("ttft", "queue", "prefill"))
    what = "of the mean TTFT, what is neither queue nor prefill: tokenizing, front end, IPC"
    return [*rows, Recording("harness:server_ttft_rest_seconds:mean", parts, what)]


def _server_load() -> list[Recording]:
    def gauge(how: str, key: str) -> str:
        names = [spelling.name for spelling in THEIRS[key].spellings]
        return " or ".join(f"{how} by ({REPLICA}) ({name})" for name in names)

    def counter(key: str) -> str:
        return spelled(key, "_total", REPLICA)

    hits, queries = counter("prefix_hits_total"), counter("prefix_queries_total")
    step = server_mean("step_tokens")
    return [
        Recording("harness:server_running:sum", gauge("sum", "running"), "requests in the batch"),
        Recording("harness:server_waiting:sum", gauge("sum", "waiting"), "requests that wait"),
        Recording("harness:server_kv_usage:max", gauge("max", "kv_usage"),
                  "share of the KV cache in use, of the fullest engine"),
        Recording("harness:server_output_tokens:rate", counter("generation_tokens_total"),
                  "output tokens per second"),
        Recording("harness:server_prompt_tokens:rate", counter("prompt_tokens_total"),
                  "prompt tokens per second"),
        Recording("harness:server_requests:rate", counter("requests_total"),
                  "requests that ended per second"),
        Recording("harness:server_preemptions:rate", counter("preemptions_total"),
                  "preemptions per second"),
        Recording("harness:server_prefix_hits:ratio", f"({hits}) / ({queries})",
                  "share of the prompt tokens that the prefix cache had"),
        Recording("harness:server_step_tokens:mean", step, "tokens in an engine's step"),
    ]  # fmt: skip


RECORDED: Final = {
    "harness_recorded_run": (*_run_latencies(), *_run_rates()),
    "harness_recorded_server": (*_server_latencies(), *_server_load()),
}
