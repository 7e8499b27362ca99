"""The result of a rule, and the wording of figures and evidence. Unknown figures are left out."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from harness.measure.diagnosis.rules.inputs import VerdictInputs

MISSING_WORDS: Final = "not among the server's figures"


@dataclass(frozen=True, slots=True)
class RuleResult:
    """A rule's answer: its confidence, the reasons for it, and the reason against it."""

    confidence: float  # 0 to 1; 0: ruled out
    sentence: str = ""
    evidence: list[str] = field(default_factory=list)
    try_next: list[str] = field(default_factory=list)  # what to change, with its trade-off
    against: str = ""  # why it is ruled out

    @classmethod
    def no(cls, against: str) -> RuleResult:
        return cls(0.0, against=against)


def fmt(value: float, digits: str = ".1f") -> str:
    """A formatted figure, or "unknown"."""
    return "unknown" if isnan(value) else format(value, digits)


def fmt_ms(value: float) -> str:
    """`12.3 ms`, `1,240 ms`."""
    if isnan(value):
        return "an unknown time"
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"  # noqa: PLR2004 - digits


def or_missing(value: float, known: str, what: str) -> str:
    """`known`, which has the figure in it; if the figure is NaN, that `what` is missing."""
    return f"{what} {MISSING_WORDS}" if isnan(value) else known


def waiting_evidence(mean: float) -> str:
    """How many requests wait on average."""
    return or_missing(mean, f"{mean:.1f} requests wait on average", "waiting requests are")


def kv_evidence(f: VerdictInputs) -> list[str]:
    """The server's KV cache usage and preemptions, or that they are missing."""
    return [
        or_missing(f.kv_max, f"KV cache at most {fmt(f.kv_max, '.0%')} full", "KV cache usage is"),
        or_missing(f.preemptions, f"{fmt(f.preemptions, '.0f')} preemptions", "preemptions are"),
    ]


def gpu_evidence(f: VerdictInputs) -> list[str]:
    """How busy the GPU is, if known."""
    return [] if isnan(f.gpu_util) else [f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time"]


def prompt_evidence(f: VerdictInputs) -> list[str]:
    """How many prompt tokens a step has, and what they cost."""
    if isnan(f.slope_ms):
        return []
    known = not isnan(f.prompt_part)
    part = f"; they take {fmt(f.prompt_part, '.0%')} of the engine's time" if known else ""
    tokens = f"{fmt(f.prompt_tokens, ',.0f')} prompt tokens in a step on average"
    return [f"{tokens}, 1,000 cost {fmt_ms(f.slope_ms)}{part}"]


def prompt_share_evidence(f: VerdictInputs) -> list[str]:
    """How often a prompt was in the same step."""
    if isnan(f.longest_beside_share):
        return []
    longest, every = fmt(f.longest_beside_share, ".0%"), fmt(f.beside_share, ".0%")
    return [f"{longest} of the longest gaps had a prompt in their step, {every} of all"]


def late_evidence(f: VerdictInputs) -> list[str]:
    """Where requests over their limit wait for a first token."""
    if not f.first or isnan(f.queue_share + f.outside_share):
        return []
    inside = max(1 - f.queue_share - f.outside_share, 0.0)
    rest = f"{inside:.0%} for their prompt, {f.outside_share:.0%} outside the engine"
    return [f"of the wait of late requests {f.queue_share:.0%} is in the queue, {rest}"]


def ttft_evidence(f: VerdictInputs) -> list[str]:
    """The parts of the server's mean TTFT, and how long a request decodes after it."""
    if not f.first or isnan(f.ttft_ms):
        return []
    parts = f"the queue is {fmt_ms(f.queue_ms)}, prefill {fmt_ms(f.prefill_ms)}"
    then = f"then a request decodes for {fmt_ms(f.decode_ms)}"
    return [f"of the server's mean TTFT of {fmt_ms(f.ttft_ms)} {parts}; {then}"]


def gap_evidence(f: VerdictInputs) -> list[str]:
    """Gaps with and without prompts."""
    if isnan(f.gap_p95_ms):
        return []
    free = f.alone_p95_ms
    without = "no gap was without a prompt" if isnan(free) else f"{fmt_ms(free)} without prompts"
    return [f"gaps are {fmt_ms(f.gap_p50_ms)} at p50, {fmt_ms(f.gap_p95_ms)} at p95; {without}"]


def gap_growth_evidence(f: VerdictInputs) -> list[str]:
    """How long a gap was at the lowest level."""
    if isnan(f.low_gap_ms) or isnan(f.gap_p50_ms) or f.low_users >= f.users:
        return []
    return [f"the median gap was {fmt_ms(f.low_gap_ms)} at {fmt(f.low_users, '.0f')} {f.unit}"]
