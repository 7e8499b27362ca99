"""The engine's step is long: for prompts, for prompts beside decoding, or for the batch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.measure.rules.causes import (
    GPU_IDLE,
    LARGER_PART,
    gaps_not_longer_for_prompts,
    not_waiting_for_prompts,
)
from harness.measure.rules.finding import (
    Finding,
    alone,
    beside,
    first,
    gpu_evidence,
    growth,
    ms,
    n,
    prompts,
    waiting,
)

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

# Limits of the SLO that a request decodes for: with one or more, prompts share their steps with
# decoding; so far from one that it is clear.
STEPS_SHARED: Final = 1.0
CLEARLY: Final = 0.2
# Limits that a step with a prompt lasts: beyond, half the compute for it would be too long still;
# within the band that is not clear.
TOO_LONG_HALVED: Final = 1.9
NOT_CLEAR: Final = (1.75, 2.1)
GPU_BUSY: Final = 0.85  # of the time: nothing holds it up


def prefill(f: Facts) -> Finding:
    """First tokens wait for prompts to be processed; or one prompt makes a gap too long."""
    if f.first:
        why = not_waiting_for_prompts(f)
        if not why and f.stay >= STEPS_SHARED:
            why = f"requests decode for {n(f.stay)} times the limit: the steps are shared"
        surely = not f.stay >= STEPS_SHARED - CLEARLY and _at_work(f)
        what = (
            f"first tokens wait for prompts to be processed: {ms(f.prefill_ms)} each, after "
            f"{ms(f.queue_ms)} in the queue"
        )
    else:
        why = gaps_not_longer_for_prompts(f)
        if not why and f.prompt_step_ms > TOO_LONG_HALVED * f.limit_ms:
            why = "half the compute for a prompt would not bring gaps in time"
        surely = f.own_ms < f.prompts_ms and not f.perhaps_late and _far(f)
        what = (
            f"steps that compute prompts are longer than a gap may be: {ms(f.prompt_step_ms)} "
            f"against {ms(f.limit_ms)}"
        )
    if why:
        return Finding.no(why)
    return Finding(
        0.85 if surely else 0.65,
        what,
        [*beside(f), *alone(f), *prompts(f), waiting(f.waiting), *first(f), *gpu_evidence(f)],
        [
            "--enable-prefix-caching where prompts share a beginning (less to compute)",
            "--max-num-batched-tokens (higher: sooner first token; lower: shorter gaps)",
            "shorter history (fewer prompt tokens a request)",
            "prefill/decode disaggregation (prompts on GPUs of their own)",
            "another replica",
        ],
    )


def _far(f: Facts) -> bool:
    """Whether it is clear if half the compute for a prompt would do."""
    return not NOT_CLEAR[0] < f.prompt_step_ms / f.limit_ms < NOT_CLEAR[1]


def _at_work(f: Facts) -> bool:
    """Whether it is clear that the GPU is busy with prompts, and that nobody else is late."""
    return (f.filled or f.computing or f.prompt_part >= LARGER_PART) and not f.perhaps_late


def interference(f: Facts) -> Finding:
    """Prompts and decoding in the same steps hold each other up."""
    if f.first:
        why = not_waiting_for_prompts(f)
        if why:
            return Finding.no(why)
        if not f.stay >= STEPS_SHARED:
            return Finding.no("requests decode for less time than first tokens may take")
        sure = 0.85 if f.stay >= STEPS_SHARED + CLEARLY and _at_work(f) else 0.6
        what = "first tokens wait behind the steps that prompts and decoding share"
    else:
        why = gaps_not_longer_for_prompts(f)
        if why:
            return Finding.no(why)
        if f.prompt_step_ms <= TOO_LONG_HALVED * f.limit_ms:
            return Finding.no("half the compute for a prompt would bring gaps in time")
        sure = 0.85 if f.prompts_ms >= f.own_ms and not f.perhaps_late and _far(f) else 0.65
        what = "prompts in the same engine step hold up the tokens of the requests that decode"
    return Finding(
        sure,
        what,
        [*beside(f), *alone(f), *prompts(f), *first(f), *gpu_evidence(f)],
        [
            "--max-num-batched-tokens lower (shorter gaps, later first tokens)",
            "--enable-chunked-prefill, where it is off (a prompt is cut into steps)",
            "prefill/decode disaggregation (prompts on GPUs of their own)",
            "--enable-prefix-caching where prompts share a beginning (less to compute)",
            "another replica",
        ],
    )


def decode(f: Facts) -> Finding:
    """Gaps are long even without prompts: the batch's step itself takes too long."""
    if f.first or not f.broken:
        return Finding.no("gaps between tokens are in time")
    if not f.running > 0:
        return Finding.no("the server shows no running requests")
    if not gaps_not_longer_for_prompts(f):
        return Finding.no(f"gaps without a prompt beside them are {ms(f.alone_ms)} at p95")
    if f.gpu_util < GPU_IDLE:
        return Finding.no(f"the GPU is busy {n(f.gpu_util, '.0%')} of the time only")
    undisturbed = not f.computing and not f.perhaps_late  # by prompts, by the API server
    steady = f.gpu_util >= GPU_BUSY and f.alone_ms >= 0.9 * f.limit_ms and undisturbed
    return Finding(
        0.4 if f.preemptions > 0 else 0.85 if steady else 0.6,
        f"each engine step takes too long with {n(f.running, '.0f')} requests in the batch",
        [
            f"{n(f.running)} requests run together",
            *growth(f),
            *alone(f),
            waiting(f.waiting),
            *gpu_evidence(f),
        ],
        [
            "--max-num-seqs lower (shorter gaps, earlier queueing)",
            "--kv-cache-dtype fp8 (half the bytes to read, some accuracy)",
            "shorter history (less to read for each token)",
            "another replica",
        ],
    )
