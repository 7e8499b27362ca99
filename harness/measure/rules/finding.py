"""What one rule answers, and how figures and evidence are worded: nothing of what is not known."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

MISSING: Final = "not among the server's figures"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's answer: how sure it is, why, and why not when it is not."""

    confidence: float  # 0 to 1; 0: ruled out
    sentence: str = ""
    evidence: list[str] = field(default_factory=list)
    knobs: list[str] = field(default_factory=list)  # what to turn, with the trade it makes
    against: str = ""  # why it is ruled out, or not said

    @classmethod
    def no(cls, against: str) -> Finding:
        return cls(0.0, against=against)


def n(value: float, digits: str = ".1f") -> str:
    """A figure, or that it is unknown."""
    return "unknown" if isnan(value) else format(value, digits)


def ms(value: float) -> str:
    """`12.3 ms`, `1,240 ms`."""
    if isnan(value):
        return "an unknown time"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"  # noqa: PLR2004 - digits


def said(value: float, known: str, what: str) -> str:
    """`known` with the figure in it; that `what` is missing where it is NaN."""
    return f"{what} {MISSING}" if isnan(value) else known


def waiting(mean: float) -> str:
    """How many requests wait."""
    return said(mean, f"{mean:.1f} requests wait on average", "waiting requests are")


def kv_evidence(f: Facts) -> list[str]:
    """What the server says of its KV cache, and what it does not say."""
    return [
        said(f.kv_max, f"KV cache at most {n(f.kv_max, '.0%')} full", "KV cache usage is"),
        said(f.preemptions, f"{n(f.preemptions, '.0f')} preemptions", "preemptions are"),
    ]


def gpu_evidence(f: Facts) -> list[str]:
    """How busy the GPU is, where that is known."""
    return [] if isnan(f.gpu_util) else [f"the GPU is busy {n(f.gpu_util, '.0%')} of the time"]


def prompts(f: Facts) -> list[str]:
    """How many prompt tokens a step has and what they cost."""
    if isnan(f.slope_ms):
        return []
    known = not isnan(f.prompt_part)
    part = f"; they take {n(f.prompt_part, '.0%')} of the engine's time" if known else ""
    tokens = f"{n(f.prompt_tokens, ',.0f')} prompt tokens in a step on average"
    return [f"{tokens}, 1,000 cost {ms(f.slope_ms)}{part}"]


def beside(f: Facts) -> list[str]:
    """How often a prompt was in the same step."""
    if isnan(f.longest_beside_share):
        return []
    longest, every = n(f.longest_beside_share, ".0%"), n(f.beside_share, ".0%")
    return [f"{longest} of the longest gaps had a prompt in their step, {every} of all"]


def first(f: Facts) -> list[str]:
    """Where the mean time to first token goes, and how long a request stays after it."""
    if not f.first or isnan(f.ttft_ms):
        return []
    parts = f"the queue is {ms(f.queue_ms)}, prefill {ms(f.prefill_ms)}"
    then = f"then a request decodes for {ms(f.decode_ms)}"
    return [f"of the server's mean TTFT of {ms(f.ttft_ms)} {parts}; {then}"]


def alone(f: Facts) -> list[str]:
    """Gaps with and without prompts."""
    if isnan(f.gap_p95_ms):
        return []
    free = f.alone_p95_ms
    without = "no gap was without a prompt" if isnan(free) else f"{ms(free)} without prompts"
    return [f"gaps are {ms(f.gap_p50_ms)} at p50, {ms(f.gap_p95_ms)} at p95; {without}"]


def growth(f: Facts) -> list[str]:
    """How long a gap was at the lowest level."""
    if isnan(f.low_gap_ms) or isnan(f.gap_p50_ms) or f.low_users >= f.users:
        return []
    return [f"the median gap was {ms(f.low_gap_ms)} at {n(f.low_users, '.0f')} users"]


def queue(f: Facts) -> list[str]:
    """How much of the server's mean TTFT is the queue."""
    if isnan(f.queue_ms) or not f.ttft_ms > 0:
        return []
    return [f"the queue is {ms(f.queue_ms)} of the server's mean TTFT of {ms(f.ttft_ms)}"]
