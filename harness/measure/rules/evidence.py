"""Evidence in words, for several rules; nothing is said of what is not known."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from harness.measure.rules.finding import ms, n

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts


def gpu_evidence(f: Facts) -> list[str]:
    """How busy the GPU is, where that is known."""
    return [] if isnan(f.gpu_util) else [f"the GPU is busy {n(f.gpu_util, '.0%')} of the time"]


def prompts(f: Facts) -> list[str]:
    """How many prompt tokens a step has and what they cost."""
    if isnan(f.slope_ms):
        return []
    part = (
        ""
        if isnan(f.prompt_part)
        else f"; they take {n(f.prompt_part, '.0%')} of the engine's time"
    )
    return [
        (
            f"{n(f.prompt_tokens, ',.0f')} prompt tokens in a step on average, 1,000 cost "
            f"{ms(f.slope_ms)}{part}"
        )
    ]


def beside(f: Facts) -> list[str]:
    """How often a prompt was in the same step."""
    if isnan(f.longest_beside_share):
        return []
    return [
        (
            f"{n(f.longest_beside_share, '.0%')} of the longest gaps had a prompt in their step, "
            f"{n(f.beside_share, '.0%')} of all"
        )
    ]


def first(f: Facts) -> list[str]:
    """Where the mean time to first token goes, and how long a request stays after it."""
    if not f.first or isnan(f.ttft_ms):
        return []
    return [
        (
            f"of the server's mean TTFT of {ms(f.ttft_ms)} the queue is {ms(f.queue_ms)}, prefill "
            f"{ms(f.prefill_ms)}; then a request decodes for {ms(f.decode_ms)}"
        )
    ]


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
