"""Where to look if p95 TTFT or p95 ITL is over its limit: one rule for alerts and reports.

    p95 TTFT   p95 ITL   inspect
    within     within    nothing
    over       within    queueing and prefill
    within     over      decode scheduling and memory pressure
    over       over      both

The two are separate because a request waits for its first token in the queue and in prefill, and
for every later token in the decoding batch. Neither hides the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from harness.metrics.slo import Slo

TRIAGE_QUANTILE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Symptom:
    """One of the two latencies, and what a high value points to."""

    metric: str  # of METRICS
    title: str
    inspect: str
    look: str  # where to look first, in vLLM's names


SYMPTOMS: Final = (
    Symptom(
        metric="ttft",
        title="p95 TTFT",
        inspect="queueing and prefill",
        look="waiting requests, vllm:request_queue_time_seconds, "
        "vllm:request_prefill_time_seconds, --max-num-seqs, --max-num-batched-tokens, "
        "prefix cache hits",
    ),
    Symptom(
        metric="itl",
        title="p95 ITL",
        inspect="decode scheduling and memory pressure",
        look="running requests, vllm:kv_cache_usage_perc, preemptions, --max-num-seqs, "
        "--max-num-batched-tokens, --gpu-memory-utilization",
    ),
)


def p95_limits_ns(slos: Iterable[Slo]) -> tuple[float, float]:
    """The p95 limits of (TTFT, ITL) in ns: the stricter of two; NaN without an SLO."""
    limits_ns = {symptom.metric: nan for symptom in SYMPTOMS}
    for slo in slos:
        if slo.metric not in limits_ns or slo.q != TRIAGE_QUANTILE:
            continue
        if not limits_ns[slo.metric] < slo.limit_ns:
            limits_ns[slo.metric] = float(slo.limit_ns)
    ttft_ns, itl_ns = limits_ns.values()
    return ttft_ns, itl_ns
