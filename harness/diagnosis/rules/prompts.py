"""Engine steps are too long: for prompts, for prompts next to decoding, or for decoding alone."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

from harness.diagnosis.rules.rule_result import (
    GPU_IDLE_UTIL,
    MAJOR_SHARE,
    RuleResult,
    fmt,
    fmt_ms,
    gaps_not_longer_for_prompts,
    gpu_evidence,
    not_waiting_for_prompts,
    waiting_evidence,
)

if TYPE_CHECKING:
    from harness.diagnosis.rules.inputs import VerdictInputs

# How long a request decodes, in multiples of the SLO's limit. From 1 on, prompts share their steps
# with decoding; at this distance from 1 it is clear.
MIN_DECODE_LIMITS: Final = 1.0
CLEAR_DISTANCE: Final = 0.2
# Length of a step with a prompt, in multiples of the SLO's limit. Above this, even half the compute
# would be too long; within the band it is not clear.
MAX_PROMPT_STEP: Final = 1.9
UNCLEAR_BAND: Final = (1.75, 2.1)
SMALLER: Final = "lower --max-num-batched-tokens"
GPU_BUSY: Final = 0.85  # utilization at which nothing holds it up
# What to try, by what it changes.
STEP_BUDGET: Final = (
    "change --max-num-batched-tokens (raise it: earlier first tokens; lower it: shorter gaps)"
)
CACHE_PREFIXES: Final = "set --enable-prefix-caching if prompts share a beginning (less to compute)"
OTHER_GPUS: Final = "disaggregate prefill and decode (prompts on GPUs of their own)"
LESS_PROMPT_WORK: Final = (
    "shorten the history (fewer prompt tokens per request)",
    "raise --tensor-parallel-size (each GPU computes a part; they talk in every layer)",
    OTHER_GPUS,
)
# Where nobody decodes beside them.
FASTER_PROMPTS: Final = (
    "raise --max-num-batched-tokens (more prompts in a step, longer steps)",
    "shorten the history (fewer prompt tokens per request)",
    "raise --tensor-parallel-size (each GPU computes a part; they talk in every layer)",
)
ONLY_PREFILL: Final = "these servers only prefill"
SEPARATE_PROMPTS: Final = (
    "set --enable-chunked-prefill if it is off (it cuts a prompt into steps)",
    OTHER_GPUS,
    CACHE_PREFIXES,
)


def prefill(f: VerdictInputs) -> RuleResult:
    """First tokens wait for prompts to be processed; or one prompt makes a gap too long."""
    return _prompts_delay_first_tokens(f) if f.first else _prompts_lengthen_gaps(f)


def _prompts_delay_first_tokens(f: VerdictInputs) -> RuleResult:
    if against := not_waiting_for_prompts(f):
        return RuleResult.no(against)
    if f.decode_limits >= MIN_DECODE_LIMITS:
        times = fmt(f.decode_limits)
        return RuleResult.no(f"requests decode for {times} times the limit: the steps are shared")
    clear = not f.decode_limits >= MIN_DECODE_LIMITS - CLEAR_DISTANCE
    confidence = 0.9 if clear and _prompts_at_work(f) else 0.65
    remedies = FASTER_PROMPTS if f.prefills_only else (STEP_BUDGET, *LESS_PROMPT_WORK)
    return RuleResult(
        confidence,
        f"first tokens wait for prompts to be processed: {fmt_ms(f.prefill_ms)} each, after "
        f"{fmt_ms(f.queue_ms)} in the queue",
        _evidence(f),
        [CACHE_PREFIXES, *remedies],
    )


def _prompts_lengthen_gaps(f: VerdictInputs) -> RuleResult:
    if against := gaps_not_longer_for_prompts(f):
        return RuleResult.no(against)
    if f.prompt_step_ms > MAX_PROMPT_STEP * f.limit_ms:
        return RuleResult.no("half the compute per prompt would not bring the gaps under the limit")
    by_prompts = f.engine_wait_ms < f.prompt_cost_ms and not f.maybe_late
    clear = by_prompts and _clear_of_halving(f) and not f.long_steps
    return RuleResult(
        0.9 if clear else 0.65,
        f"steps that compute prompts are longer than a gap may be: {fmt_ms(f.prompt_step_ms)} "
        f"against {fmt_ms(f.limit_ms)}",
        _evidence(f),
        [STEP_BUDGET, CACHE_PREFIXES, *LESS_PROMPT_WORK],
    )


def _evidence(f: VerdictInputs) -> list[str]:
    return [
        *_prompt_share_evidence(f),
        *_gap_evidence(f),
        *_prompt_evidence(f),
        waiting_evidence(f.server.waiting_mean),
        *_ttft_evidence(f),
        *gpu_evidence(f),
    ]


def _clear_of_halving(f: VerdictInputs) -> bool:
    """Whether it is clear on which side of `MAX_PROMPT_STEP` a step with a prompt is."""
    return not UNCLEAR_BAND[0] < f.prompt_step_ms / f.limit_ms < UNCLEAR_BAND[1]


def _prompts_at_work(f: VerdictInputs) -> bool:
    """Whether the GPU is clearly busy with prompts, and the API server is not late."""
    if f.maybe_late:
        return False
    return f.prompts_fill_steps or f.compute_bound or f.prompt_part >= MAJOR_SHARE


def interference(f: VerdictInputs) -> RuleResult:
    """Prompts and decoding in the same steps hold each other up."""
    if f.prefills_only:
        return RuleResult.no(ONLY_PREFILL)
    return _shared_steps_delay_first_tokens(f) if f.first else _shared_steps_lengthen_gaps(f)


def _shared_steps_delay_first_tokens(f: VerdictInputs) -> RuleResult:
    if against := not_waiting_for_prompts(f):
        return RuleResult.no(against)
    if not f.decode_limits >= MIN_DECODE_LIMITS:
        return RuleResult.no("requests decode for less time than first tokens may take")
    clear = f.decode_limits >= MIN_DECODE_LIMITS + CLEAR_DISTANCE
    try_next = [*SEPARATE_PROMPTS]
    # One H200, 64 users: p95 TTFT 1,452 ms with 16,384 tokens a step, 144 with 2,048; and no
    # sooner with more where prompts fill steps that short.
    if f.long_steps:
        try_next.insert(0, f"{SMALLER} (a request that arrives waits for a shorter step's end)")
    confidence = 0.9 if clear and _prompts_at_work(f) else 0.6
    return RuleResult(
        confidence,
        "first tokens wait behind the steps that prompts and decoding share",
        _evidence(f),
        try_next,
    )


def _shared_steps_lengthen_gaps(f: VerdictInputs) -> RuleResult:
    if against := gaps_not_longer_for_prompts(f):
        return RuleResult.no(against)
    if f.prompt_step_ms <= MAX_PROMPT_STEP * f.limit_ms and not f.long_steps:
        return RuleResult.no("half the compute per prompt would bring the gaps under the limit")
    by_prompts = f.prompt_cost_ms >= f.engine_wait_ms and not f.maybe_late
    clear = by_prompts and (f.long_steps or _clear_of_halving(f))
    return RuleResult(
        0.9 if clear else 0.65,
        "prompts in the same engine step hold up the tokens of the requests that decode",
        _evidence(f),
        [f"{SMALLER} (shorter gaps, more steps for a prompt)", *SEPARATE_PROMPTS],
    )


def decode(f: VerdictInputs) -> RuleResult:
    """Gaps are long even without prompts: the batch's step itself takes too long."""
    if f.prefills_only:
        return RuleResult.no(ONLY_PREFILL)
    if f.first or not f.broken:
        return RuleResult.no("gaps between tokens are under the limit")
    running = f.server.running_mean
    if not running > 0:
        return RuleResult.no("the server does not report running requests")
    if not gaps_not_longer_for_prompts(f):
        return RuleResult.no(
            f"gaps without a prompt beside them are {fmt_ms(f.no_prompt_ms)} at p95"
        )
    if f.gpu_util < GPU_IDLE_UTIL:
        return RuleResult.no(f"the GPU is busy {fmt(f.gpu_util, '.0%')} of the time only")
    # neither by prompts nor by the API server
    undisturbed = not f.compute_bound and not f.maybe_late
    confidence = 0.6
    if f.server.preemptions > 0 or f.sent_late:
        confidence = 0.4
    elif f.gpu_util >= GPU_BUSY and f.no_prompt_ms >= 0.9 * f.limit_ms and undisturbed:
        confidence = 0.9
    return RuleResult(
        confidence,
        f"each engine step takes too long with {fmt(running, '.0f')} requests in the batch",
        [
            f"{fmt(running)} requests run together",
            *_gap_growth_evidence(f),
            *_gap_evidence(f),
            waiting_evidence(f.server.waiting_mean),
            *gpu_evidence(f),
        ],
        [
            "lower --max-num-seqs (shorter gaps, earlier queueing)",
            "quantize the weights: --quantization fp8, or a 4-bit model (less to read per step)",
            "set --kv-cache-dtype fp8 (half the bytes to read, some accuracy)",
            "raise --tensor-parallel-size (each GPU reads a part; they talk in every layer)",
            "use a GPU with more memory bandwidth",
            "shorten the history (less to read for each token)",
        ],
    )


def _prompt_evidence(f: VerdictInputs) -> list[str]:
    if isnan(f.gaps.slope_ms):
        return []
    tokens = f"{fmt(f.gaps.prompt_tokens_mean, ',.0f')} prompt tokens in a step on average"
    line = f"{tokens}, 1,000 cost {fmt_ms(f.gaps.slope_ms)}"
    if not isnan(f.prompt_part):
        line += f"; they take {fmt(f.prompt_part, '.0%')} of the engine's time"
    return [line]


def _prompt_share_evidence(f: VerdictInputs) -> list[str]:
    if isnan(f.gaps.longest_prompt_share):
        return []
    of_longest = fmt(f.gaps.longest_prompt_share, ".0%")
    of_all = fmt(f.gaps.prompt_share, ".0%")
    return [
        f"a prompt was in the step of {of_longest} of the longest gaps, and of {of_all} of all gaps"
    ]


def _ttft_evidence(f: VerdictInputs) -> list[str]:
    if not f.first or isnan(f.ttft_ms):
        return []
    parts = f"{fmt_ms(f.queue_ms)} in the queue and {fmt_ms(f.prefill_ms)} in prefill"
    then = "" if f.prefills_only else f"; then a request decodes for {fmt_ms(f.decode_ms)}"
    return [f"the server's mean TTFT is {fmt_ms(f.ttft_ms)}: {parts}{then}"]


def _gap_evidence(f: VerdictInputs) -> list[str]:
    gaps = f.gaps
    if isnan(gaps.p95_ms):
        return []
    without = "every gap had a prompt in it"
    if not isnan(gaps.alone_p95_ms):
        without = f"{fmt_ms(gaps.alone_p95_ms)} without prompts"
    return [f"gaps are {fmt_ms(gaps.p50_ms)} at p50, {fmt_ms(gaps.p95_ms)} at p95; {without}"]


def _gap_growth_evidence(f: VerdictInputs) -> list[str]:
    low_ms = f.lowest.gaps.p50_ms
    low_users = f.lowest.concurrency
    if isnan(low_ms) or isnan(f.gaps.p50_ms) or low_users >= f.level.concurrency:
        return []
    return [f"the median gap was {fmt_ms(low_ms)} at {fmt(low_users, '.0f')} {f.unit}"]
