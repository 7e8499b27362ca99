"""CPU bottlenecks: the API server's process, or the engine's own."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.diagnosis.rules.inputs import API_BUSY, API_FULL
from harness.measure.diagnosis.rules.rule_result import (
    MISSING_WORDS,
    RuleResult,
    fmt,
    fmt_ms,
    gpu_evidence,
    late_evidence,
    or_missing,
)

if TYPE_CHECKING:
    from harness.measure.diagnosis.rules.inputs import VerdictInputs

# Share of the time that late requests wait outside the engine at which it points to the API server;
# less is enough if its process has no CPU left. H200 with 3,000 blocks: 0.17, at 0.90 cores; one of
# docs/h200.md, whose knee doubled with four API servers: 0.70.
MIN_OUTSIDE_ENGINE: Final = 0.5
MIN_OUTSIDE_ENGINE_NO_CPU: Final = 0.3
# Cores used by a process that does its work in one thread.
CORE_BUSY: Final = 0.7  # requests and events wait for it in bursts, if this share is sent late:
MIN_LATE_SHARE: Final = 0.3
# The process's share and the GPU's together: one waits for the other.
ALTERNATING_SHARE: Final = 0.9
GPU_IDLE: Final = 0.6  # GPU utilization below which it waits for something
GPU_MOSTLY_IDLE: Final = 0.45
OWN_OVER_PROMPTS: Final = 1.5  # half of the process's part of a gap, over what prompts add


def front_end(f: VerdictInputs) -> RuleResult:
    """The API server's process has no CPU left: first tokens, or events, wait for it."""
    share, at_limit = f.outside_share, f.api_cores >= API_FULL
    if f.first and not share >= (MIN_OUTSIDE_ENGINE_NO_CPU if at_limit else MIN_OUTSIDE_ENGINE):
        waits = f"{fmt(share, '.0%')} of the wait of late requests is outside the engine"
        return RuleResult.no(or_missing(share, waits, "waiting requests are"))
    if not f.first and not (at_limit or f.sent_late):
        return RuleResult.no(f"API server CPU: {_cores(f.api_cores)}")
    if f.api_cores < API_BUSY and not f.sent_late:
        return RuleResult.no(f"API server CPU: {_cores(f.api_cores)}, it has time")
    behind = f.api_cores >= CORE_BUSY and f.late_share >= MIN_LATE_SHARE
    return RuleResult(
        0.9 if at_limit or (f.sent_late and not f.first) else 0.7 if behind else 0.5,
        "the API server cannot keep up: first tokens and events wait for its process, not for "
        "the engine",
        [
            *late_evidence(f),
            f"API server CPU: {_cores(f.api_cores)}"
            + f" of each of the Rust front end's {f.api_threads:.0f}" * (f.api_threads > 0),
            f"{fmt(f.late_share, '.1%')} of the events were generated on time and sent late",
            *gpu_evidence(f),
        ],
        [
            # vLLM refuses --api-server-count beside it
            "--api-server-count higher (one more process and its memory each)"
            if isnan(f.api_threads)
            else "more CPUs for the Rust front end, apart from the engine's and the client's",
            "token ids instead of text (no tokenizing)",
            "--stream-interval higher (fewer events, coarser gaps)",
        ],
    )


def engine_process(f: VerdictInputs) -> RuleResult:
    """The engine core's process is at one core while the GPU has time left."""
    if isnan(f.gpu_util):
        return RuleResult.no("the GPU's utilization is not known")
    if f.gpu_util >= GPU_IDLE:
        return RuleResult.no(f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time")
    if not f.running >= 1:
        return RuleResult.no(
            or_missing(f.running, "the engine is idle in between", "running requests are")
        )
    at_limit = f.engine_cores >= API_FULL or f.engine_cores + f.gpu_util >= ALTERNATING_SHARE
    if not at_limit:
        sure = 0.5 if isnan(f.engine_cores) else 0.4
    else:
        mostly = (
            f.gpu_util <= GPU_MOSTLY_IDLE
            and not f.engine_wait_ms / 2 < OWN_OVER_PROMPTS * f.prompt_cost_ms
        )
        sure = 0.9 if mostly else 0.6
    return RuleResult(
        sure,
        "the engine's own process holds up the GPU: it has no CPU left, the GPU has time",
        [
            f"engine process CPU: {_cores(f.engine_cores)}",
            *gpu_evidence(f),
            f"{fmt(f.running)} requests run together",
            (
                f"its part of a gap is {fmt_ms(f.engine_wait_ms)}; "
                f"prompts add {fmt_ms(f.prompt_cost_ms)} at p95"
            ),
        ],
        [
            "--async-scheduling, where it is off (the next step is planned during this one)",
            "--stream-interval higher, speculative decoding (fewer outputs to handle)",
            "a faster core, or cores of its own, for the engine's process",
        ],
    )


def _cores(value: float) -> str:
    return MISSING_WORDS if isnan(value) else f"{value:.2f} cores"
