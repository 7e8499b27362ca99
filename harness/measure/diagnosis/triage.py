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

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.measure.slo import Slo

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
        "ttft", "p95 TTFT", "queueing and prefill",
        "waiting requests, vllm:request_queue_time_seconds, vllm:request_prefill_time_seconds, "
        "--max-num-seqs, --max-num-batched-tokens, prefix cache hits",
    ),
    Symptom(
        "itl", "p95 ITL", "decode scheduling and memory pressure",
        "running requests, vllm:kv_cache_usage_perc, preemptions, --max-num-seqs, "
        "--max-num-batched-tokens, --gpu-memory-utilization",
    ),
)  # fmt: skip


def triage(
    ttft_p95: float, itl_p95: float, ttft_limit: float, itl_limit: float
) -> tuple[list[Symptom], str]:
    """(what is over its limit, a sentence about that and what to inspect), all in one unit.

    A value at its limit is within, +inf is over; NaN is unknown, and not called within.
    """
    pairs = zip(SYMPTOMS, (ttft_p95, itl_p95), (ttft_limit, itl_limit), strict=True)
    known = [(sign, value > limit) for sign, value, limit in pairs if not isnan(value + limit)]
    if not known:
        return [], "neither p95 TTFT nor p95 ITL is known: nothing to route"
    over = [sign for sign, above in known if above]
    several = len(over or known) > 1
    titles = " and ".join(sign.title for sign in over or [sign for sign, _ in known])
    if not over:
        verb = "are within their limits" if several else "is within its limit"
        return over, f"{titles} {verb}"
    verb = "are over their limits" if several else "is over its limit"
    return over, f"{titles} {verb}: {', and '.join(f'inspect {sign.inspect}' for sign in over)}"


def p95_limits_ns(slos: Iterable[Slo]) -> tuple[float, float]:
    """The p95 limits of (TTFT, ITL) in ns: the stricter of two; NaN without an SLO."""
    given = {sign.metric: nan for sign in SYMPTOMS}
    for slo in slos:
        if (
            slo.metric in given
            and slo.q == TRIAGE_QUANTILE
            and not given[slo.metric] < slo.limit_ns
        ):
            given[slo.metric] = float(slo.limit_ns)
    ttft, itl = (given[sign.metric] for sign in SYMPTOMS)
    return ttft, itl
