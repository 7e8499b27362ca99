"""What requests wait for besides the GPU: a batch slot, KV blocks, or the CPU of a process."""

from __future__ import annotations

from math import isnan
from typing import Final

from harness.diagnosis.rules.inputs import API_BUSY, API_FULL, VerdictInputs
from harness.diagnosis.rules.rule_result import (
    MAJOR_SHARE,
    MIN_WAITING,
    MISSING_WORDS,
    SLOT_CONFIDENCE,
    RuleResult,
    fmt,
    fmt_ms,
    gpu_evidence,
    kv_evidence,
    kv_is_short,
    late_evidence,
    or_missing,
    running_evidence,
    slot_confidence,
    waiting_evidence,
    waiting_for_capacity,
    who_waits,
)
from harness.diagnosis.slots import KV_FULL_SHARE

SOURCE_WORDS: Final = {"given": "as given", "read": "read from the server", "inferred": "inferred"}


def slots(f: VerdictInputs) -> RuleResult:
    """Requests wait while `running` stays at the number of slots."""
    confidence, against = slot_confidence(f)
    if against:
        return RuleResult.no(against)
    slots_taken = f.slots
    if isnan(slots_taken):
        slots_taken = f.server.running_max
    taken = fmt(slots_taken, ".0f")
    how = SOURCE_WORDS.get(f.slots_source, "inferred: running stays the same while requests wait")
    return RuleResult(
        confidence,
        f"all {taken} batch slots are taken and requests wait for one",
        [
            running_evidence(f.server),
            f"max_num_seqs {taken}, {how}",
            waiting_evidence(waiting_for_capacity(f)),
            *late_evidence(f),
            *kv_evidence(f),
        ],
        [
            "raise --max-num-seqs (more requests at once, longer gaps for each)",
            "bound the output with max_tokens (a slot is free again sooner)",
        ],
    )


def kv_capacity(f: VerdictInputs) -> RuleResult:
    """The KV cache is full: requests wait for blocks or lose them."""
    if not kv_is_short(f):
        usage = f"KV cache at most {fmt(f.kv_max, '.0%')} full"
        return RuleResult.no(or_missing(f.kv_max, usage, "KV usage is"))
    loses_blocks = f.server.preemptions > 0
    waiting = waiting_for_capacity(f)
    if not loses_blocks and not waiting >= MIN_WAITING:
        return RuleResult.no("the KV cache is full, but no request waits for blocks or loses them")
    confidence = 0.9 if f.kv_max >= KV_FULL_SHARE else 0.7
    if not f.memory_bound:
        confidence = SLOT_CONFIDENCE  # prompts take the GPU's time too: more blocks may not help
    if f.broken and not f.first:
        confidence = 0.7 if loses_blocks else 0.3  # a full cache keeps the batch and gaps short
    share = "" if isnan(f.kv_max) else f" ({fmt(f.kv_max, '.0%')})"
    return RuleResult(
        confidence,
        f"the KV cache is full{share} and requests wait for or lose their blocks",
        [*kv_evidence(f), waiting_evidence(waiting), *late_evidence(f)],
        [
            "raise --gpu-memory-utilization (more blocks, less room for peaks of activations)",
            "set --kv-cache-dtype fp8 (half the bytes per token, some accuracy)",
            "quantize the weights (an FP8 or 4-bit model leaves more memory for blocks)",
            "raise --tensor-parallel-size (each GPU holds a part of the weights and blocks)",
            "lower --max-model-len, or shorten history or output (fewer blocks per request)",
            "set --enable-prefix-caching if prompts share a beginning (shared blocks count once)",
        ],
    )


# Share of the time that late requests wait outside the engine at which it points to the API server;
# less is enough if its process has no CPU left. H200 with 3,000 blocks: 0.17, at 0.90 cores; one of
# docs/h200.md, whose knee doubled with four API servers: 0.70.
MIN_OUTSIDE_ENGINE: Final = 0.5
MIN_OUTSIDE_ENGINE_NO_CPU: Final = 0.3
# Confidence that late requests wait for an API server that has time, and for one that has none. In
# between it rises with the CPU used: requests come in waves, so a mean over waves hides full ones.
# H100, 7B shape, where four API servers tripled the knee: 0.80 to 0.84 cores near it.
API_HAS_TIME: Final = 0.5
API_HAS_NONE: Final = 0.9
# The process's share and the GPU's together: one waits for the other.
ALTERNATING_SHARE: Final = 0.9
GPU_IDLE: Final = 0.6  # GPU utilization below which it waits for something
GPU_MOSTLY_IDLE: Final = 0.45
OWN_OVER_PROMPTS: Final = 1.5  # half of the process's part of a gap, over what prompts add


def front_end(f: VerdictInputs) -> RuleResult:
    """The API server's process has no CPU left: first tokens, or events, wait for it."""
    at_limit = f.api_cores >= API_FULL
    cores = f"API server CPU: {_cores(f.api_cores)}"
    if f.first:
        min_share = MIN_OUTSIDE_ENGINE_NO_CPU if at_limit else MIN_OUTSIDE_ENGINE
        if not f.outside_share >= min_share:
            share = fmt(f.outside_share, ".0%")
            outside = f"{who_waits(f)} spend {share} of their wait outside the engine"
            return RuleResult.no(or_missing(f.outside_share, outside, "waiting requests are"))
    elif not (at_limit or f.sent_late):
        return RuleResult.no(cores)
    if f.api_cores < API_BUSY and not f.sent_late:
        return RuleResult.no(f"{cores}, it has time")
    more_cpu = "raise --api-server-count (one more process, with its memory, for each)"
    threads = f.server.api_server_threads
    if threads > 0:
        cores += f" of each of the Rust front end's {threads:.0f}"
    if not isnan(threads):  # vLLM refuses --api-server-count beside it
        more_cpu = "give the Rust front end more CPUs, apart from the engine's and the client's"
    return RuleResult(
        _api_confidence(f),
        "the API server cannot keep up: first tokens and events wait for its process, not for "
        "the engine",
        [
            *late_evidence(f),
            cores,
            f"{fmt(f.gaps.late_share, '.1%')} of the events were generated on time and sent late",
            *gpu_evidence(f),
        ],
        [
            more_cpu,
            "send token ids instead of text (no tokenizing)",
            "raise --stream-interval (fewer events, coarser gaps)",
        ],
    )


def _api_confidence(f: VerdictInputs) -> float:
    """That what is late waits for the API server; of gaps it was seen to send them late."""
    if not f.first:
        return API_HAS_NONE
    if isnan(f.api_cores):
        return API_HAS_TIME
    used = (f.api_cores - API_BUSY) / (API_FULL - API_BUSY)
    used = min(max(used, 0.0), 1.0)
    return API_HAS_TIME + (API_HAS_NONE - API_HAS_TIME) * used


def engine_process(f: VerdictInputs) -> RuleResult:
    """The engine core's process is at one core while the GPU has time left."""
    if isnan(f.gpu_util):
        return RuleResult.no("the GPU's utilization is not known")
    if f.gpu_util >= GPU_IDLE:
        return RuleResult.no(f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time")
    running = f.server.running_mean
    cores = f.engine_cores
    if not running >= 1:
        return RuleResult.no(
            or_missing(running, "the engine is idle in between", "running requests are")
        )
    alternating = cores + f.gpu_util >= ALTERNATING_SHARE
    if cores >= API_FULL or alternating:
        over_prompts = not f.engine_wait_ms / 2 < OWN_OVER_PROMPTS * f.prompt_cost_ms
        # Of an H100 at 0.42 with a process at 1.03 cores, twice the KV blocks held a third more.
        waits_for_blocks = kv_is_short(f) and f.queue_share >= MAJOR_SHARE
        is_clear = f.gpu_util <= GPU_MOSTLY_IDLE and over_prompts and not waits_for_blocks
        confidence = 0.9 if is_clear else 0.6
    else:
        confidence = 0.5 if isnan(cores) else 0.4
    of_each = f" of each of {f.engines}" if f.engines > 1 else ""
    its_part = f"its part of a gap is {fmt_ms(f.engine_wait_ms)}"
    return RuleResult(
        confidence,
        "the engine's own process holds up the GPU: it has no CPU left, the GPU has time",
        [
            f"engine process CPU: {_cores(cores)}{of_each}",
            *gpu_evidence(f),
            f"{fmt(running)} requests run together",
            f"{its_part}; prompts add {fmt_ms(f.prompt_cost_ms)} at p95",
        ],
        [
            "set --async-scheduling if it is off (it plans the next step during this one)",
            "raise --stream-interval, or decode speculatively (fewer outputs to handle)",
            "give the engine's process a faster core, or cores of its own",
        ],
    )


def _cores(value: float) -> str:
    return MISSING_WORDS if isnan(value) else f"{value:.2f} cores"
