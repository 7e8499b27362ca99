"""What bound the knee: RULES over the server's own samples at the bracket's bad end.

Each rule sees the same `Facts` and answers with a confidence in [0, 1] and its evidence; the
highest wins, below `ENOUGH` the verdict is undecided, which is a legal answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.samples import ServerSample

ENOUGH: Final = 0.5


@dataclass(frozen=True, slots=True)
class Facts:
    """Means and deltas over one window; NaN where the server does not say. Times in ms."""

    users: int
    broken: str  # metric of the SLO that breaks first: ttft, itl, ...
    running: float = np.nan
    running_max: float = np.nan
    waiting: float = np.nan
    kv_usage_max: float = np.nan
    preemptions: float = np.nan
    queue_ms: float = np.nan
    prefill_ms: float = np.nan
    ttft_ms: float = np.nan


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to "what stops it there?"."""

    bound_by: str
    sentence: str
    confidence: float
    evidence: list[str] = field(default_factory=list)
    knobs: list[str] = field(default_factory=list)


def facts(samples: Sequence[ServerSample], users: int, broken: str) -> Facts:
    """Facts of a window from the samples that lie in it."""
    if not samples:
        return Facts(users, broken)

    def mean_ms(name: str) -> float:
        count = _delta(samples, f"{name}_count")
        return 1e3 * _delta(samples, f"{name}_sum_s") / count if count > 0 else float("nan")

    return Facts(
        users,
        broken,
        _over(samples, "running", np.mean),
        _over(samples, "running", np.max),
        _over(samples, "waiting", np.mean),
        _over(samples, "kv_usage", np.max),
        _delta(samples, "preemptions_total"),
        mean_ms("queue"),
        mean_ms("prefill"),
        mean_ms("ttft"),
    )


def _over(samples: Sequence[ServerSample], name: str, how: Callable[..., np.floating]) -> float:
    values = np.array([getattr(s, name) for s in samples])
    values = values[~np.isnan(values)]
    return float(how(values)) if len(values) else float("nan")


def _delta(samples: Sequence[ServerSample], name: str) -> float:
    return float(getattr(samples[-1], name) - getattr(samples[0], name))


def slots(f: Facts) -> Verdict:
    """Requests wait while `running` stands still below the users: every seat is taken."""
    waits, room = f.waiting >= 0.3, not f.kv_usage_max >= 0.9 and not f.preemptions > 0  # noqa: PLR2004
    flat = f.running_max - f.running <= max(0.1 * f.running_max, 1)
    return Verdict(
        "batch slots",
        f"all {f.running_max:.0f} batch slots are taken and requests wait for one",
        0.9 if waits and room and flat else 0.0,
        [
            f"running stays at {f.running:.1f} (most {f.running_max:.0f})",
            f"{f.waiting:.1f} requests wait on average",
            f"KV cache at most {f.kv_usage_max:.0%} full, {f.preemptions:.0f} preemptions",
        ],
        ["--max-num-seqs higher (more throughput, longer ITL)", "another replica"],
    )


def kv_capacity(f: Facts) -> Verdict:
    """The KV cache is full: requests wait for blocks or lose them."""
    full = f.kv_usage_max >= 0.9  # noqa: PLR2004
    hurt = f.preemptions > 0 or f.waiting >= 0.3  # noqa: PLR2004
    return Verdict(
        "KV cache capacity",
        f"the KV cache is full ({f.kv_usage_max:.0%}) and requests wait for or lose their blocks",
        0.9 if full and hurt else 0.7 if f.preemptions > 0 else 0.0,
        [f"KV cache at most {f.kv_usage_max:.0%} full", f"{f.preemptions:.0f} preemptions"],
        [
            "--gpu-memory-utilization higher",
            "--kv-cache-dtype fp8 (half the bytes a token, some accuracy)",
            "--max-model-len lower or shorter outputs",
            "another replica",
        ],
    )


def prefill(f: Facts) -> Verdict:
    """Time to first token is mostly prefill, hardly any queue for seats."""
    bad = f.broken in ("ttft", "ttfot", "e2e") and not f.waiting >= 0.3  # noqa: PLR2004
    share = f.prefill_ms / f.ttft_ms if f.ttft_ms > 0 else float("nan")
    return Verdict(
        "prefill compute",
        f"prompts take {f.prefill_ms:.0f} ms to process while hardly any request waits for a slot",
        0.8 if bad and share >= 0.5 else 0.0,  # noqa: PLR2004
        [f"prefill is {share:.0%} of the server's mean TTFT", f"{f.waiting:.1f} requests wait"],
        [
            "--max-num-batched-tokens (higher: sooner first token, longer gaps)",
            "--enable-prefix-caching where prompts share a beginning",
            "shorter prompts",
            "another replica",
        ],
    )


def decode(f: Facts) -> Verdict:
    """The gaps between tokens break the SLO: each engine step takes too long for this batch."""
    bad = f.broken in ("itl", "tpot") and not f.preemptions > 0
    return Verdict(
        "decode speed",
        f"each engine step takes too long with {f.running:.0f} requests in the batch",
        0.7 if bad else 0.0,
        [f"{f.running:.1f} requests run together", f"{f.waiting:.1f} wait"],
        [
            "--max-num-seqs lower (shorter ITL, earlier queueing)",
            "--max-num-batched-tokens lower (prompts interrupt decoding less)",
            "another replica",
        ],
    )


RULES: Final = {rule.__name__: rule for rule in (slots, kv_capacity, prefill, decode)}


def conclude(f: Facts) -> Verdict:
    """The rule with most confidence, or undecided with what is missing."""
    best = max((rule(f) for rule in RULES.values()), key=lambda verdict: verdict.confidence)
    if best.confidence >= ENOUGH:
        return best
    silent = np.isnan(f.running)
    why = "the server shows no metrics" if silent else "no rule fits the server's figures"
    return Verdict("undecided", f"not decided: {why}", 0.0)
