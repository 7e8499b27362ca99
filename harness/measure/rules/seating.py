"""Requests that wait to be let in: for a batch slot, or for KV blocks."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.finding import Finding, ms, n, said, waiting

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

WAITS: Final = 0.3  # requests on average: below it one has only just come
FULL: Final = 0.9  # of the KV blocks: then these bind, not the slots
TAKEN: Final = 0.9  # of the known slots run on average: all are taken
FLAT: Final = 0.8  # of the readings with waiting requests are near the most that runs
FLATTISH: Final = 0.65
MOST: Final = 0.5  # of the mean TTFT: the larger part
PROBABLE: Final = 0.7  # where prompts take much of the GPU's time
SURE: Final = 0.6  # enough to say that the wait is for a slot
SOURCES: Final = {"given": "as given", "read": "as the server says", "inferred": "inferred"}


def slots(f: Facts) -> Finding:
    """Requests wait while `running` stands still at the number of slots."""
    if f.broken and not f.first:
        return Finding.no("first tokens are in time; more slots would lengthen the gaps")
    if not _line(f) >= WAITS:
        return Finding.no(said(f.waiting, "no request waits for a slot", "waiting requests are"))
    if f.kv_max >= FULL or f.preemptions > 0:
        return Finding.no("the KV cache is full before the slots are")
    known = not isnan(f.slots)
    # with steps that have room for prompts only slots are left to wait for: less proof is enough
    least = FLAT if f.filled or isnan(f.beside_share) else FLATTISH
    flat = f.running >= TAKEN * f.slots if known else f.running_flat >= least
    if not flat:
        return Finding.no(
            f"{n(f.running)} of {n(f.slots, '.0f')} slots are taken"
            if known
            else "what runs changes while requests wait, so slots are free"
        )
    taken = f.slots if known else f.running_max
    confidence = 0.9 if f.reading else PROBABLE
    if f.queue_ms / f.ttft_ms < MOST:
        confidence = SURE  # the wait for a slot is the smaller part of what breaks
    if f.filled:  # prompts fill the steps, and what runs stands still for that
        confidence = SURE if known and f.slots_source != "inferred" else 0.3
    how = SOURCES.get(f.slots_source, "inferred: what runs stands still while requests wait")
    return Finding(
        confidence,
        f"all {n(taken, '.0f')} batch slots are taken and requests wait for one",
        [
            f"{n(f.running)} requests run on average, {n(f.running_max, '.0f')} at most",
            f"max_num_seqs {n(taken, '.0f')}, {how}",
            waiting(_line(f)),
            *_queue(f),
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
    full = f.kv_max >= FULL
    lost = f.preemptions > 0
    if not full and not lost:
        return Finding.no(
            said(f.kv_max, f"KV cache at most {n(f.kv_max, '.0%')} full", "KV usage is")
        )
    waits = _line(f) >= WAITS
    if not (lost or waits):
        return Finding.no("the KV cache is full, but no request waits for blocks or loses them")
    confidence = 0.9 if full else 0.7
    if not f.reading:
        confidence = SURE  # prompts take the GPU's time too: more blocks may not help
    if f.broken and not f.first:
        confidence = 0.7 if lost else 0.3  # a full cache keeps the batch small, and gaps short
    share = "" if isnan(f.kv_max) else f" ({n(f.kv_max, '.0%')})"
    return Finding(
        confidence,
        f"the KV cache is full{share} and requests wait for or lose their blocks",
        [*kv_evidence(f), waiting(_line(f)), *_queue(f)],
        [
            "--gpu-memory-utilization higher (more blocks, less room for peaks of activations)",
            "--kv-cache-dtype fp8 (half the bytes a token, some accuracy)",
            "--max-model-len lower, shorter history or bounded output (fewer blocks a request)",
            "--enable-prefix-caching where prompts share a beginning (shared blocks count once)",
            "another replica",
        ],
        "blocks are short, but that is not what breaks the SLO",
    )


def kv_evidence(f: Facts) -> list[str]:
    """What the server says of its KV cache, and what it does not say."""
    return [
        said(f.kv_max, f"KV cache at most {n(f.kv_max, '.0%')} full", "KV cache usage is"),
        said(f.preemptions, f"{n(f.preemptions, '.0f')} preemptions", "preemptions are"),
    ]


def _line(f: Facts) -> float:
    """Waiting for a slot or a block, where the server tells these apart."""
    return f.waiting if isnan(f.capacity) else f.capacity


def _queue(f: Facts) -> list[str]:
    if isnan(f.queue_ms) or not f.ttft_ms > 0:
        return []
    return [f"the queue is {ms(f.queue_ms)} of the server's mean TTFT of {ms(f.ttft_ms)}"]
