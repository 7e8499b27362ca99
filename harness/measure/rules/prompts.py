"""Prompts: first tokens wait for them, or the tokens of those that decode beside them."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.measure.rules.evidence import alone, beside, first, gpu_evidence, prompts
from harness.measure.rules.finding import Finding, ms, n, waiting
from harness.measure.rules.seating import FULL, SURE, WAITS, slots

if TYPE_CHECKING:
    from harness.measure.rules.facts import Facts

MOST: Final = 0.5  # of the engine's time goes to prompts, or of a gap to one of its parts
LITTLE: Final = 0.15  # of the engine's time: not what the rest waits for
IDLE: Final = 0.6  # of the time at most the GPU works: then it is not the limit
SHARED: Final = 1.0  # limits that a request decodes for, beside prompts: the steps are shared
APART: Final = 0.2  # and so far from that it is clear
LONGER: Final = 0.07  # of the p95 gap comes from prompts: more than steps vary
LONGEST: Final = 0.5  # of the longest gaps had a prompt beside them
HALVED: Final = 1.9  # limits that a step with a prompt lasts: half of it would be too long still
BAND: Final = (1.75, 2.1)  # limits: not clear
CLOSER: Final = 0.03  # enough where nearly all of the longest gaps had one,
NEARLY_ALL: Final = 0.9
OFTENER: Final = 1.3  # more often than any gap


def prefill(f: Facts) -> Finding:
    """First tokens wait for prompts to be processed; or one prompt makes a gap too long."""
    if f.first:
        why = _not_prompts(f)
        if not why and f.stay >= SHARED:
            why = f"requests decode for {n(f.stay)} times the limit: the steps are shared"
        surely = not f.stay >= SHARED - APART and _at_work(f)
        what = (
            f"first tokens wait for prompts to be processed: {ms(f.prefill_ms)} each, after "
            f"{ms(f.queue_ms)} in the queue"
        )
    else:
        why = no_longer_gaps(f)
        if not why and f.prompt_step_ms > HALVED * f.limit_ms:
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
    return not BAND[0] < f.prompt_step_ms / f.limit_ms < BAND[1]


def _at_work(f: Facts) -> bool:
    """Whether it is clear that the GPU is busy with prompts, and that nobody else is late."""
    return (f.filled or f.computing or f.prompt_part >= MOST) and not f.perhaps_late


def _not_prompts(f: Facts) -> str:
    """Why it is not the prompts that first tokens wait for; "" when it is."""
    inside, whole = f.queue_ms + f.prefill_ms, max(f.ttft_ms, f.client_ttft_ms)
    # where slots and blocks are free and still requests wait, only the token budget is left
    unseen = isnan(f.beside_share) and f.waiting >= WAITS
    fills = unseen or f.filled or f.computing or f.prompt_part >= LITTLE
    reasons = {
        "first tokens are in time": not f.first,
        "requests wait for KV blocks": f.kv_max >= FULL or f.preemptions > 0,
        f"the GPU is busy {n(f.gpu_util, '.0%')} of the time only": f.gpu_util < IDLE,
        "requests wait for a slot": slots(f).confidence >= SURE,
        f"queue and prefill are {ms(inside)} of {ms(whole)} to first token": not (
            inside >= MOST * whole
        ),
        f"prompts take {n(f.prompt_part, '.0%')} of the engine's time": not fills,
    }
    return next((why for why, holds in reasons.items() if holds), "")


def interference(f: Facts) -> Finding:
    """Prompts and decoding in the same steps hold each other up."""
    if f.first:
        why = _not_prompts(f)
        if why:
            return Finding.no(why)
        if not f.stay >= SHARED:
            return Finding.no("requests decode for less time than first tokens may take")
        sure = 0.85 if f.stay >= SHARED + APART and _at_work(f) else 0.6
        what = "first tokens wait behind the steps that prompts and decoding share"
    else:
        why = no_longer_gaps(f)
        if why:
            return Finding.no(why)
        if f.prompt_step_ms <= HALVED * f.limit_ms:
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


def no_longer_gaps(f: Facts) -> str:
    """Why it is not prompts that make gaps long; "" when it is."""
    if not f.broken:
        return "no SLO is broken"
    if isnan(f.longest_beside_share) or isnan(f.alone_ms):
        return "too few gaps to compare those with and without prompts"
    longer = f.prompts_ms >= LONGER * f.gap_p95_ms and f.longest_beside_share >= LONGEST
    tell = f.longest_beside_share >= max(NEARLY_ALL, OFTENER * f.beside_share)
    if not (longer or (tell and f.prompts_ms >= CLOSER * f.gap_p95_ms)):
        return (
            f"gaps with a prompt beside them are hardly longer: {ms(f.gap_p95_ms)} at p95, "
            f"{ms(f.alone_ms)} without"
        )
    if f.sent_late:
        return "the API server sends late what the engine made on time"
    if f.own_ms / 2 > f.prompts_ms:
        return f"the engine's process takes {ms(f.own_ms)} of a gap, prompts {ms(f.prompts_ms)}"
    return ""
