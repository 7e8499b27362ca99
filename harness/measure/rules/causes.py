"""What several rules ask of a step, so that none of them has to ask another rule.

Thresholds were set on simulated engines whose bottleneck is known (docs/verdict.md has the table of
what is named how often) and on the few real runs in decisions/; a share without another reason is
"most of it" or "hardly any of it".
"""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.finding import ms, n, said

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

WAITING_LEAST: Final = 0.3  # requests on average: below it one has only just come
KV_FULL: Final = 0.9  # of the KV blocks: then these bind, not the slots
SLOTS_TAKEN: Final = 0.9  # of the known slots run on average: all are taken
# Where nobody says how many slots there are: share of the readings with waiting requests at which
# about as many run as ever. Less proof is enough where steps have room for prompts, for then only
# slots are left to wait for.
FLAT_SHARE: Final = 0.8
FLAT_SHARE_WITH_ROOM: Final = 0.65
LARGER_PART: Final = 0.5  # of the mean TTFT, of the engine's time, of a gap
SLOT_SURE: Final = 0.6  # confidence that is enough to say that the wait is for a slot
SLOT_PROBABLE: Final = 0.7  # where prompts take much of the GPU's time
GPU_IDLE: Final = 0.6  # of the time at most the GPU works: then it is not the limit
PROMPTS_LITTLE: Final = 0.15  # of the engine's time goes to prompts: the rest does not wait for it
# Gaps are longer for prompts when these add more to the p95 than steps vary by themselves, and half
# of the longest gaps had a prompt beside them; or when they add a little and nearly all of the
# longest gaps had one, clearly more often than any gap.
PROMPTS_ADD: Final = 0.07  # of the p95 gap
LONGEST_BESIDE: Final = 0.5  # of the longest gaps
PROMPTS_ADD_LITTLE: Final = 0.03
LONGEST_NEARLY_ALL: Final = 0.9
LONGEST_OFTENER: Final = 1.3  # times as often as any gap


def waiting_for_capacity(f: Facts) -> float:
    """Requests that wait for a slot or a block, where the server tells these apart."""
    return f.waiting if isnan(f.capacity) else f.capacity


def slot_confidence(f: Facts) -> tuple[float, str]:
    """(how sure it is that requests wait for a slot, why not when that is 0)."""
    line = waiting_for_capacity(f)
    if f.broken and not f.first:
        return 0.0, "first tokens are in time; more slots would lengthen the gaps"
    if not line >= WAITING_LEAST:
        return 0.0, said(f.waiting, "no request waits for a slot", "waiting requests are")
    if f.kv_max >= KV_FULL or f.preemptions > 0:
        return 0.0, "the KV cache is full before the slots are"
    known = not isnan(f.slots)
    least = FLAT_SHARE if f.filled or isnan(f.beside_share) else FLAT_SHARE_WITH_ROOM
    if not (f.running >= SLOTS_TAKEN * f.slots if known else f.running_flat >= least):
        free = "what runs changes while requests wait, so slots are free"
        return 0.0, f"{n(f.running)} of {n(f.slots, '.0f')} slots are taken" if known else free
    confidence = 0.9 if f.reading else SLOT_PROBABLE
    if f.queue_ms / f.ttft_ms < LARGER_PART:
        confidence = SLOT_SURE  # the wait for a slot is the smaller part of what breaks
    if f.filled:  # prompts fill the steps, and what runs stands still for that
        confidence = SLOT_SURE if known and f.slots_source != "inferred" else 0.3
    return confidence, ""


def not_waiting_for_prompts(f: Facts) -> str:
    """Why it is not the prompts that first tokens wait for; "" when it is."""
    inside, whole = f.queue_ms + f.prefill_ms, max(f.ttft_ms, f.client_ttft_ms)
    # where slots and blocks are free and still requests wait, only the token budget is left
    unseen = isnan(f.beside_share) and f.waiting >= WAITING_LEAST
    fills = unseen or f.filled or f.computing or f.prompt_part >= PROMPTS_LITTLE
    reasons = {
        "first tokens are in time": not f.first,
        "requests wait for KV blocks": f.kv_max >= KV_FULL or f.preemptions > 0,
        f"the GPU is busy {n(f.gpu_util, '.0%')} of the time only": f.gpu_util < GPU_IDLE,
        "requests wait for a slot": slot_confidence(f)[0] >= SLOT_SURE,
        f"queue and prefill are {ms(inside)} of {ms(whole)} to first token": not (
            inside >= LARGER_PART * whole
        ),
        f"prompts take {n(f.prompt_part, '.0%')} of the engine's time": not fills,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def gaps_not_longer_for_prompts(f: Facts) -> str:
    """Why it is not prompts that make gaps long; "" when it is."""
    if not f.broken:
        return "no SLO is broken"
    if isnan(f.longest_beside_share) or isnan(f.alone_ms):
        return "too few gaps to compare those with and without prompts"
    longer = f.prompts_ms >= PROMPTS_ADD * f.gap_p95_ms
    mostly = f.longest_beside_share >= LONGEST_BESIDE
    nearly_all = max(LONGEST_NEARLY_ALL, LONGEST_OFTENER * f.beside_share)
    a_little = f.prompts_ms >= PROMPTS_ADD_LITTLE * f.gap_p95_ms
    if not ((longer and mostly) or (a_little and f.longest_beside_share >= nearly_all)):
        return (
            f"gaps with a prompt beside them are hardly longer: {ms(f.gap_p95_ms)} at p95, "
            f"{ms(f.alone_ms)} without"
        )
    if f.sent_late:
        return "the API server sends late what the engine made on time"
    if f.own_ms / 2 > f.prompts_ms:
        return f"the engine's process takes {ms(f.own_ms)} of a gap, prompts {ms(f.prompts_ms)}"
    return ""
