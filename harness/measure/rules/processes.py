"""CPU, not the GPU: the API server's process, or the engine's own."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.evidence import gpu_evidence
from harness.measure.rules.finding import MISSING, Finding, ms, n, said

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

MOST: Final = 0.5  # of the mean TTFT is neither queue nor prefill;
MUCH: Final = 0.3  # enough where its process has no CPU left
CORE: Final = 0.85  # of a core: a process of one thread has none left
HALF: Final = 0.5  # of a core: less is not what anybody waits for
BUSY: Final = 0.7  # of a core: bursts of requests and events wait for it,
BEHIND: Final = 0.3  # and so many events are sent late
TURNS: Final = 0.9  # shares of the process and of the GPU together: one waits for the other
IDLE: Final = 0.6  # of the time at most the GPU works: it waits for somebody
MOSTLY: Final = 0.45
CLEAR: Final = 1.5  # its half over what prompts add


def front_end(f: Facts) -> Finding:
    """The API server's process has no CPU left: first tokens, or events, wait for it."""
    whole = max(f.ttft_ms, f.client_ttft_ms) if f.client_ttft_ms > 0 else f.ttft_ms
    other = max(whole - f.queue_ms - f.prefill_ms, 0.0)
    share = other / whole if whole > 0 else float("nan")
    at_limit = f.api_cores >= CORE
    behind = f.api_cores >= BUSY and f.late_share >= BEHIND
    if f.first and not (share >= (MUCH if at_limit else MOST) or behind):
        return Finding.no(
            said(
                share, f"{n(share, '.0%')} of the mean TTFT is neither queue nor prefill", "TTFT is"
            )
        )
    if not f.first and not (at_limit or f.sent_late):
        return Finding.no(f"API server CPU: {_cores(f.api_cores)}")
    if f.api_cores < HALF and not f.sent_late:
        return Finding.no(f"API server CPU: {_cores(f.api_cores)}, it has time")
    return Finding(
        0.9 if at_limit or (f.sent_late and not f.first) else 0.7 if behind else 0.5,
        "the API server cannot keep up: first tokens and events wait for its process, not for "
        "the engine",
        [
            f"{ms(other)} of the mean TTFT of {ms(whole)} is neither queue nor prefill",
            f"API server CPU: {_cores(f.api_cores)}",
            f"{n(f.late_share, '.1%')} of the events were made on time and sent late",
            *gpu_evidence(f),
        ],
        [
            "--api-server-count higher (one more process and its memory each)",
            "token ids instead of text (no tokenizing)",
            "--stream-interval higher (fewer events, coarser gaps)",
            "another replica",
        ],
        "the API server has CPU left",
    )


def engine_process(f: Facts) -> Finding:
    """The engine core's process is at one core while the GPU has time left."""
    if isnan(f.gpu_util):
        return Finding.no("the GPU's load is not known")
    if f.gpu_util >= IDLE:
        return Finding.no(f"the GPU is busy {n(f.gpu_util, '.0%')} of the time")
    if not f.running >= 1:
        return Finding.no(said(f.running, "the engine is idle in between", "running requests are"))
    at_limit = f.engine_cores >= CORE or f.engine_cores + f.gpu_util >= TURNS
    if not at_limit:
        sure = 0.5 if isnan(f.engine_cores) else 0.4
    else:
        mostly = f.gpu_util <= MOSTLY and not f.own_ms / 2 < CLEAR * f.prompts_ms
        sure = 0.9 if mostly else 0.65
    return Finding(
        sure,
        "the engine's own process holds the GPU up: it has no CPU left, the GPU has time",
        [
            f"engine process CPU: {_cores(f.engine_cores)}",
            *gpu_evidence(f),
            f"{n(f.running)} requests run together",
            f"its part of a gap is {ms(f.own_ms)}; prompts add {ms(f.prompts_ms)} at p95",
        ],
        [
            "--async-scheduling, where it is off (the next step is planned during this one)",
            "--stream-interval higher, speculative decoding (fewer outputs to handle)",
            "a faster core, or cores of its own, for the engine's process",
            "another replica",
        ],
        "the engine's process has CPU left",
    )


def _cores(value: float) -> str:
    return MISSING if isnan(value) else f"{value:.2f} cores"
