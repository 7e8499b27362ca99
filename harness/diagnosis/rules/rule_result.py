"""What rules share: their result, the wording of evidence, and conditions of more than one.

Unknown figures are left out. Thresholds carry the runs that they were chosen on: where none is
named, simulated engines of seeds below 4000, confidences those of seeds 0 to 239; "H200 ..." is a
run of docs/verdict.md. A share without another reason stands for "most of it" or "hardly any".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isnan
from typing import TYPE_CHECKING, Final

from harness.diagnosis.slots import KV_FULL_SHARE

if TYPE_CHECKING:
    from harness.diagnosis.rules.inputs import VerdictInputs

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


def late_evidence(f: VerdictInputs) -> list[str]:
    """Where requests over their limit wait for a first token."""
    if not f.first or isnan(f.queue_share + f.outside_share):
        return []
    inside = max(1 - f.queue_share - f.outside_share, 0.0)
    rest = f"{inside:.0%} for their prompt, {f.outside_share:.0%} outside the engine"
    return [f"of the wait of late requests {f.queue_share:.0%} is in the queue, {rest}"]


MIN_WAITING: Final = 0.3  # mean waiting requests; below it, a request has only just arrived
SLOTS_TAKEN: Final = 0.9  # mean running requests over the known slots: all are taken
# If the number of slots is unknown: share of the readings with waiting requests in which about the
# maximum number runs. Less proof is enough if the steps have room for prompts, as then requests can
# only be waiting for slots.
MIN_FLAT_SHARE: Final = 0.8
MIN_FLAT_SHARE_WITH_ROOM: Final = 0.65
MAJOR_SHARE: Final = 0.5  # of the mean TTFT, of the engine's time, of a gap
SLOT_CONFIDENCE: Final = 0.6  # confidence at which other rules accept that requests wait for a slot
SLOT_PROBABLE: Final = 0.7  # confidence if prompts take much of the GPU's time
GPU_IDLE_UTIL: Final = 0.6  # GPU utilization below which it is not the limit
# Of the engine's time goes to prompts: the rest does not wait for it.
MIN_PROMPT_SHARE: Final = 0.15
# Gaps are longer for prompts when these add more to the p95 than steps vary by themselves, and half
# of the longest gaps had a prompt beside them; or when they add a little and nearly all of the
# longest gaps had one, clearly more often than any gap.
MIN_PROMPT_COST: Final = 0.07  # of the p95 gap
MIN_LONGEST_SHARE: Final = 0.5  # of the longest gaps
MIN_SMALL_PROMPT_COST: Final = 0.03
NEARLY_ALL_LONGEST: Final = 0.9
LONGEST_OVER_ALL: Final = 1.3  # times as often as any gap


def waiting_for_capacity(f: VerdictInputs) -> float:
    """Requests waiting for a slot or a KV block, if the server reports these separately."""
    return f.waiting if isnan(f.capacity) else f.capacity


def slot_confidence(f: VerdictInputs) -> tuple[float, str]:
    """(confidence that requests wait for a slot, the reason against it if that is 0)."""
    line = waiting_for_capacity(f)
    if f.broken and not f.first:
        return 0.0, "first tokens are in time; more slots would lengthen the gaps"
    if not line >= MIN_WAITING:
        return 0.0, or_missing(f.waiting, "no request waits for a slot", "waiting requests are")
    if f.kv_max >= KV_FULL_SHARE or f.preemptions > 0:
        return 0.0, "the KV cache is full before the slots are"
    known = not isnan(f.slots)
    min_flat = (
        MIN_FLAT_SHARE
        if f.prompts_fill_steps or isnan(f.beside_share)
        else MIN_FLAT_SHARE_WITH_ROOM
    )
    if not (f.running >= SLOTS_TAKEN * f.slots if known else f.running_flat >= min_flat):
        free = "what runs changes while requests wait, so slots are free"
        if isnan(f.running_flat):
            free = "requests wait at one reading of the server at most"
        return 0.0, f"{fmt(f.running)} of {fmt(f.slots, '.0f')} slots are taken" if known else free
    confidence = 0.9 if f.memory_bound else SLOT_PROBABLE
    if f.queue_share < MAJOR_SHARE:
        confidence = SLOT_CONFIDENCE  # late requests wait for something else, too
    if f.prompts_fill_steps:  # prompts fill the steps: `running` is flat for that reason
        confidence = SLOT_CONFIDENCE if known and f.slots_source != "inferred" else 0.3
    return confidence, ""


def not_waiting_for_prompts(f: VerdictInputs) -> str:
    """Why first tokens do not wait for prompts; "" if they do."""
    # If slots and blocks are free and requests still wait, only the token budget is left.
    unseen = isnan(f.beside_share) and f.waiting >= MIN_WAITING
    fills = unseen or f.prompts_fill_steps or f.compute_bound or f.prompt_part >= MIN_PROMPT_SHARE
    reasons = {
        "first tokens are in time": not f.first,
        "requests wait for KV blocks": f.kv_max >= KV_FULL_SHARE or f.preemptions > 0,
        f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time only": f.gpu_util < GPU_IDLE_UTIL,
        "requests wait for a slot": slot_confidence(f)[0] >= SLOT_CONFIDENCE,
        f"prompts take {fmt(f.prompt_part, '.0%')} of the engine's time": not fills,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def gaps_not_longer_for_prompts(f: VerdictInputs) -> str:
    """Why it is not prompts that lengthen gaps; "" if it is."""
    longer = f.prompt_cost_ms >= MIN_PROMPT_COST * f.gap_p95_ms
    mostly = f.longest_beside_share >= MIN_LONGEST_SHARE
    nearly_all = max(NEARLY_ALL_LONGEST, LONGEST_OVER_ALL * f.beside_share)
    a_little = f.prompt_cost_ms >= MIN_SMALL_PROMPT_COST * f.gap_p95_ms
    by_prompts = (longer and mostly) or (a_little and f.longest_beside_share >= nearly_all)
    unseen = isnan(f.longest_beside_share) or isnan(f.no_prompt_ms)
    reasons = {
        "no SLO is broken": not f.broken,
        "too few gaps to compare those with and without prompts": unseen,
        f"gaps with a prompt beside them are hardly longer: {fmt_ms(f.gap_p95_ms)} at p95, "
        f"{fmt_ms(f.no_prompt_ms)} without": not by_prompts,
        # TPOT is a mean over gaps: the longest of them count little
        f"prompts take {fmt(f.prompt_part, '.0%')} of the engine's time": f.broken == "tpot"
        and f.prompt_part < MIN_PROMPT_SHARE,
        "the API server sends late what the engine generated on time": f.sent_late,
        f"the engine's process takes {fmt_ms(f.engine_wait_ms)} of a gap, prompts "
        f"{fmt_ms(f.prompt_cost_ms)}": f.engine_wait_ms / 2 > f.prompt_cost_ms,
    }
    return next((why for why, holds in reasons.items() if holds), "")
