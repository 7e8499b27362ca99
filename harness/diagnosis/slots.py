"""`max_num_seqs`, the number of requests that the server runs at once, inferred from its metrics.

vLLM does not export it. While requests wait although KV blocks are free, every slot is taken: the
number of running requests is then the number of slots. Unless prompts fill every step: these admit
requests at their own pace, and about as many run at any time, however many slots are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isnan, nan
from typing import TYPE_CHECKING, Final

from harness.records.histogram import Histogram
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.records.samples import ServerSample

MIN_FULL_SAMPLES: Final = 5  # samples with every slot taken
# Of the KV blocks: then these are the limit, not the slots. H200 with 3,000 blocks: 0.99 at 64
# users, which fail, and 0.89 at 48, which do not.
KV_FULL_SHARE: Final = 0.9
# A scrape between two engine steps may see this share fewer running requests than the maximum.
NEAR_MAX_SHARE: Final = 0.1
MIN_FLAT_SAMPLES: Final = 2  # with waiting requests: fewer do not show what stays the same
MIN_FLAT_SHARE: Final = 0.8  # of the samples with waiting requests must be that near
# Prompts fill every step when one is computed at any time, and takes several steps. H200 with 16
# and 32 slots: 0.5 and 0.9 prompts at a time. With 512 slots and 2,048 tokens a step: 1.8, of 4.7
# steps, and 63 requests run.
MIN_PROMPTS: Final = 1.0
MIN_PROMPT_STEPS: Final = 2.0
NO_STEPS: Final = Histogram((), (), 0.0)


def infer_max_num_seqs(samples: Sequence[ServerSample], engines: int = 1) -> int | None:
    """The slots of all engines together; None if no request waited, or something else is the limit.

    A request that waits in a single scrape only has just arrived, so two in a row are needed.
    """
    pairs = [pair for pair in pairwise(samples) if _slots_may_be_full(*pair)]
    running = [after.running for _, after in pairs]
    highest = max(running, default=0.0)
    near = [number for number in running if _is_near(number, highest)]
    if len(near) < max(MIN_FULL_SAMPLES, MIN_FLAT_SHARE * len(running)):
        return None
    if _prompts_fill_steps(pairs, engines):
        return None
    return round(highest)


def _slots_may_be_full(before: ServerSample, after: ServerSample) -> bool:
    """Whether requests waited at two scrapes in a row, and not for KV blocks."""
    waited = min(_waiting(before), _waiting(after)) >= 1
    preempted = after.preemptions_total > before.preemptions_total
    lacks_blocks = preempted or _fullest(after) >= KV_FULL_SHARE
    return waited and not lacks_blocks


def _is_near(running: float, highest: float) -> bool:
    return highest - running <= max(NEAR_MAX_SHARE * highest, 1)


def _prompts_fill_steps(pairs: Sequence[tuple[ServerSample, ServerSample]], engines: int) -> bool:
    """Whether each engine computes prompts all the time, and each prompt for several steps."""

    def increase(value: Callable[[ServerSample], float]) -> float:
        return sum(value(after) - value(before) for before, after in pairs)

    time_s = increase(lambda sample: sample.at_ns) / SECOND * engines
    steps = increase(lambda sample: sample.histograms.get("step_tokens", NO_STEPS).count)
    prefill_s = increase(lambda sample: sample.prefill_sum_s)
    prompts = increase(lambda sample: sample.prefill_count)
    # (prefill_s / prompts) / (time_s / steps), the steps of a prompt, without a division by 0. NaN,
    # where the server does not report one of them, is neither.
    several_steps = prefill_s * steps >= MIN_PROMPT_STEPS * time_s * prompts
    return prefill_s >= MIN_PROMPTS * time_s and several_steps


def flat_share(samples: Sequence[ServerSample]) -> float:
    """Share of the samples with waiting requests in which `running` is near its maximum.

    1 if every slot is taken, as `running` then stays the same however many requests wait. NaN:
    none, or one: on an H200 with 512 slots 235, 215 and 237 ran, and 17 waited at the last reading.
    """
    known = [sample.running for sample in samples if not isnan(sample.running)]
    highest = max(known, default=0.0)
    with_queue = [sample.running for sample in samples if _waiting(sample) >= 1]
    if len(with_queue) < MIN_FLAT_SAMPLES:
        return nan
    near = [running for running in with_queue if _is_near(running, highest)]
    return len(near) / len(with_queue)


def _waiting(sample: ServerSample) -> float:
    """Requests waiting for a slot or a KV block, if the server reports these separately."""
    return sample.waiting if isnan(sample.waiting_capacity) else sample.waiting_capacity


def _fullest(sample: ServerSample) -> float:
    """KV cache usage of the fullest engine, if the server reports engines separately."""
    return sample.kv_usage if isnan(sample.kv_usage_fullest) else sample.kv_usage_fullest
