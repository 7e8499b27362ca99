"""Requests that wait for admission: to a batch slot, or to KV blocks."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.diagnosis.rules.conditions import (
    MIN_WAITING,
    SLOT_CONFIDENCE,
    slot_confidence,
    waiting_for_capacity,
)
from harness.measure.diagnosis.rules.rule_result import (
    RuleResult,
    fmt,
    kv_evidence,
    late_evidence,
    or_missing,
    waiting_evidence,
)
from harness.measure.diagnosis.slots import KV_FULL_SHARE

if TYPE_CHECKING:
    from harness.measure.diagnosis.rules.inputs import VerdictInputs

SOURCE_WORDS: Final = {"given": "as given", "read": "read from the server", "inferred": "inferred"}


def slots(f: VerdictInputs) -> RuleResult:
    """Requests wait while `running` stays at the number of slots."""
    confidence, against = slot_confidence(f)
    if against:
        return RuleResult.no(against)
    taken = f.running_max if isnan(f.slots) else f.slots
    how = SOURCE_WORDS.get(f.slots_source, "inferred: running stays the same while requests wait")
    return RuleResult(
        confidence,
        f"all {fmt(taken, '.0f')} batch slots are taken and requests wait for one",
        [
            f"{fmt(f.running)} requests run on average, {fmt(f.running_max, '.0f')} at most",
            f"max_num_seqs {fmt(taken, '.0f')}, {how}",
            waiting_evidence(waiting_for_capacity(f)),
            *late_evidence(f),
            *kv_evidence(f),
        ],
        [
            "--max-num-seqs higher (more requests at once, longer gaps for each)",
            "bounded output (max_tokens): a slot is free again sooner",
        ],
    )


def kv_capacity(f: VerdictInputs) -> RuleResult:
    """The KV cache is full: requests wait for blocks or lose them."""
    full = f.kv_max >= KV_FULL_SHARE
    lost = f.preemptions > 0
    if not full and not lost:
        return RuleResult.no(
            or_missing(f.kv_max, f"KV cache at most {fmt(f.kv_max, '.0%')} full", "KV usage is")
        )
    waits = waiting_for_capacity(f) >= MIN_WAITING
    if not (lost or waits):
        return RuleResult.no("the KV cache is full, but no request waits for blocks or loses them")
    confidence = 0.9 if full else 0.7
    if not f.memory_bound:
        confidence = SLOT_CONFIDENCE  # prompts take the GPU's time too: more blocks may not help
    if f.broken and not f.first:
        confidence = 0.7 if lost else 0.3  # a full cache keeps the batch small, and gaps short
    share = "" if isnan(f.kv_max) else f" ({fmt(f.kv_max, '.0%')})"
    return RuleResult(
        confidence,
        f"the KV cache is full{share} and requests wait for or lose their blocks",
        [*kv_evidence(f), waiting_evidence(waiting_for_capacity(f)), *late_evidence(f)],
        [
            "--gpu-memory-utilization higher (more blocks, less room for peaks of activations)",
            "--kv-cache-dtype fp8 (half the bytes a token, some accuracy)",
            "quantized weights (an FP8 or 4-bit model leaves more memory for blocks)",
            "--tensor-parallel-size higher (each GPU holds a part of weights and blocks)",
            "--max-model-len lower, shorter history or bounded output (fewer blocks a request)",
            "--enable-prefix-caching where prompts share a beginning (shared blocks count once)",
        ],
    )
