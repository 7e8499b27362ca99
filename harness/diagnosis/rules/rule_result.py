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
    from harness.metrics.level_figures import ServerFigures

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
    if value >= 100:  # noqa: PLR2004 - digits
        return f"{value:,.0f} ms"
    return f"{value:.3g} ms"


def or_missing(value: float, known: str, what: str) -> str:
    """`known`, which has the figure in it; if the figure is NaN, that `what` is missing."""
    return f"{what} {MISSING_WORDS}" if isnan(value) else known


def waiting_evidence(mean: float) -> str:
    """How many requests wait on average."""
    return or_missing(mean, f"{mean:.1f} requests wait on average", "waiting requests are")


def running_evidence(server: ServerFigures) -> str:
    """How many requests run, on average and at most."""
    at_most = fmt(server.running_max, ".0f")
    return f"{fmt(server.running_mean)} requests run on average, {at_most} at most"


def kv_evidence(f: VerdictInputs) -> list[str]:
    """The server's KV cache usage and preemptions, or that they are missing."""
    full = f"KV cache at most {fmt(f.kv_max, '.0%')} full"
    lost = f.server.preemptions
    return [
        or_missing(f.kv_max, full, "KV cache usage is"),
        or_missing(lost, f"{fmt(lost, '.0f')} preemptions", "preemptions are"),
    ]


def gpu_evidence(f: VerdictInputs) -> list[str]:
    """How busy the GPU is, if known."""
    if isnan(f.gpu_util):
        return []
    return [f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time"]


def late_evidence(f: VerdictInputs) -> list[str]:
    """Where requests over their limit wait for a first token."""
    if not f.first or isnan(f.queue_share + f.outside_share):
        return []
    prompt_share = max(1 - f.queue_share - f.outside_share, 0.0)
    rest = f"{prompt_share:.0%} for their prompt, {f.outside_share:.0%} outside the engine"
    return [f"{who_waits(f)} spend {f.queue_share:.0%} of their wait in the queue, {rest}"]


def who_waits(f: VerdictInputs) -> str:
    """Of whom `queue_share` and `outside_share` are."""
    return "requests" if f.prefills_only else "late requests"


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
    capacity = f.server.waiting_capacity_mean
    return f.server.waiting_mean if isnan(capacity) else capacity


def slot_confidence(f: VerdictInputs) -> tuple[float, str]:
    """(confidence that requests wait for a slot, the reason against it if that is 0)."""
    if f.broken and not f.first:
        return 0.0, "first tokens are under the limit; more slots would lengthen the gaps"
    if not waiting_for_capacity(f) >= MIN_WAITING:
        waiting = f.server.waiting_mean
        return 0.0, or_missing(waiting, "no request waits for a slot", "waiting requests are")
    if kv_is_short(f):
        return 0.0, "the KV cache is full before the slots are"
    if against := _why_slots_are_free(f):
        return 0.0, against
    confidence = 0.9 if f.memory_bound else SLOT_PROBABLE
    if f.queue_share < MAJOR_SHARE:
        confidence = SLOT_CONFIDENCE  # late requests wait for something else, too
    if f.prompts_fill_steps:  # then `running` is flat for that reason
        told_slots = not isnan(f.slots) and f.slots_source != "inferred"
        confidence = SLOT_CONFIDENCE if told_slots else 0.3
    return confidence, ""


def _why_slots_are_free(f: VerdictInputs) -> str:
    """By their number, or, where that is not known, by how `running` varies; "": all are taken."""
    if f.prefills_only and isnan(f.slots):
        return "prompts are taken in by the token budget, and the number of slots is not known"
    if not isnan(f.slots):
        if f.server.running_mean >= SLOTS_TAKEN * f.slots:
            return ""
        return f"{fmt(f.server.running_mean)} of {fmt(f.slots, '.0f')} slots are taken"
    if isnan(f.server.running_flat_share):
        return "requests wait at one reading of the server at most"
    min_flat = MIN_FLAT_SHARE_WITH_ROOM
    if f.prompts_fill_steps or isnan(f.gaps.prompt_share):
        min_flat = MIN_FLAT_SHARE
    if f.server.running_flat_share >= min_flat:
        return ""
    return "the number of running requests changes while others wait, so slots are free"


def kv_is_short(f: VerdictInputs) -> bool:
    """Whether the KV cache is full, or requests lost their blocks."""
    return f.kv_max >= KV_FULL_SHARE or f.server.preemptions > 0


def not_waiting_for_prompts(f: VerdictInputs) -> str:
    """Why first tokens do not wait for prompts; "" if they do."""
    if not f.first:
        return "first tokens are under the limit"
    if kv_is_short(f):
        return "requests wait for KV blocks"
    if f.gpu_util < GPU_IDLE_UTIL:
        return f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time only"
    if slot_confidence(f)[0] >= SLOT_CONFIDENCE:
        return "requests wait for a slot"
    # If slots and blocks are free and requests still wait, only the token budget is left.
    only_budget_left = isnan(f.gaps.prompt_share) and f.server.waiting_mean >= MIN_WAITING
    much_for_prompts = f.compute_bound or f.prompt_part >= MIN_PROMPT_SHARE
    if only_budget_left or f.prompts_fill_steps or much_for_prompts:
        return ""
    return f"prompts take {fmt(f.prompt_part, '.0%')} of the engine's time"


def gaps_not_longer_for_prompts(f: VerdictInputs) -> str:
    """Why it is not prompts that lengthen gaps; "" if it is."""
    if not f.broken:
        return "no SLO is broken"
    if isnan(f.gaps.longest_prompt_share) or isnan(f.no_prompt_ms):
        return "too few gaps to compare those with and without prompts"
    if not _longer_beside_prompts(f):
        return (
            f"gaps with a prompt beside them are hardly longer: {fmt_ms(f.gaps.p95_ms)} at p95, "
            f"{fmt_ms(f.no_prompt_ms)} without"
        )
    return _longer_for_another_reason(f)


def _longer_beside_prompts(f: VerdictInputs) -> bool:
    mostly = f.gaps.longest_prompt_share >= MIN_LONGEST_SHARE
    if mostly and f.prompt_cost_ms >= MIN_PROMPT_COST * f.gaps.p95_ms:
        return True
    nearly_all_share = max(NEARLY_ALL_LONGEST, LONGEST_OVER_ALL * f.gaps.prompt_share)
    a_little_longer = f.prompt_cost_ms >= MIN_SMALL_PROMPT_COST * f.gaps.p95_ms
    return a_little_longer and f.gaps.longest_prompt_share >= nearly_all_share


def _longer_for_another_reason(f: VerdictInputs) -> str:
    # TPOT is a mean over gaps: the longest of them count little
    if f.broken == "tpot" and f.prompt_part < MIN_PROMPT_SHARE:
        return f"prompts take {fmt(f.prompt_part, '.0%')} of the engine's time"
    if f.sent_late:
        return "the API server sends late what the engine generated on time"
    if f.engine_wait_ms / 2 > f.prompt_cost_ms:
        return (
            f"the engine's process takes {fmt_ms(f.engine_wait_ms)} of a gap, prompts "
            f"{fmt_ms(f.prompt_cost_ms)}"
        )
    return ""
