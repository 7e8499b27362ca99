"""Requests that wait to be let in: for a batch slot, or for KV blocks."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.causes import (
    KV_FULL,
    SLOT_SURE,
    WAITING_LEAST,
    slot_confidence,
    waiting_for_capacity,
)
from harness.measure.rules.finding import Finding, kv_evidence, n, queue, said, waiting

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

SOURCES: Final = {"given": "as given", "read": "as the server says", "inferred": "inferred"}


def slots(f: Facts) -> Finding:
    """Requests wait while `running` stands still at the number of slots."""
    confidence, against = slot_confidence(f)
    if against:
        return Finding.no(against)
    taken = f.running_max if isnan(f.slots) else f.slots
    how = SOURCES.get(f.slots_source, "inferred: what runs stands still while requests wait")
    return Finding(
        confidence,
        f"all {n(taken, '.0f')} batch slots are taken and requests wait for one",
        [
            f"{n(f.running)} requests run on average, {n(f.running_max, '.0f')} at most",
            f"max_num_seqs {n(taken, '.0f')}, {how}",
            waiting(waiting_for_capacity(f)),
            *queue(f),
            *kv_evidence(f),
        ],
        [
            "--max-num-seqs higher (more requests at once, longer gaps for each)",
            "bounded output (max_tokens): a slot is free again sooner",
            "another replica",
        ],
        "the wait is for something else",
    )


def kv_capacity(f: Facts) -> Finding:
    """The KV cache is full: requests wait for blocks or lose them."""
    full = f.kv_max >= KV_FULL
    lost = f.preemptions > 0
    if not full and not lost:
        return Finding.no(
            said(f.kv_max, f"KV cache at most {n(f.kv_max, '.0%')} full", "KV usage is")
        )
    waits = waiting_for_capacity(f) >= WAITING_LEAST
    if not (lost or waits):
        return Finding.no("the KV cache is full, but no request waits for blocks or loses them")
    confidence = 0.9 if full else 0.7
    if not f.reading:
        confidence = SLOT_SURE  # prompts take the GPU's time too: more blocks may not help
    if f.broken and not f.first:
        confidence = 0.7 if lost else 0.3  # a full cache keeps the batch small, and gaps short
    share = "" if isnan(f.kv_max) else f" ({n(f.kv_max, '.0%')})"
    return Finding(
        confidence,
        f"the KV cache is full{share} and requests wait for or lose their blocks",
        [*kv_evidence(f), waiting(waiting_for_capacity(f)), *queue(f)],
        [
            "--gpu-memory-utilization higher (more blocks, less room for peaks of activations)",
            "--kv-cache-dtype fp8 (half the bytes a token, some accuracy)",
            "--max-model-len lower, shorter history or bounded output (fewer blocks a request)",
            "--enable-prefix-caching where prompts share a beginning (shared blocks count once)",
            "another replica",
        ],
        "blocks are short, but that is not what breaks the SLO",
    )
