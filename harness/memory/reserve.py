"""What a GPU's memory holds beside weights and KV cache, as public start logs of vLLM show it.

vLLM runs the largest step once and keeps what it took free: the sampler's tensors of all slots and
the whole vocabulary are most of it, then the activations of a step, the CUDA context and NCCL. The
terms were fitted to start logs of vLLM 0.9 to 0.14; docs/capacity.md has the table. From 0.2x on
the sampler takes less on many GPUs, so the least is far below what is likely.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.memory.cards import GIB

DEFAULT_UTILIZATION: Final = 0.92  # vLLM 0.32's --gpu-memory-utilization
CONTEXT_BYTES: Final = 0.13 * GIB  # the CUDA context and libraries
NCCL_BYTES: Final = 0.42 * GIB  # with more than one GPU
SAMPLER_BYTES: Final = 36  # of a slot and a token of the vocabulary: sorted, in 32 and 64 bit
STEP_TOKEN_BYTES: Final = 50 << 10  # of a token in the largest step
UNKNOWN_VOCABULARY: Final = 128_256
LEAST_SAMPLER_BYTES: Final = 8  # where the sampler sorts nothing
MOST_FACTOR: Final = 1.5
MOST_EXTRA_BYTES: Final = 1.5 * GIB


@dataclass(frozen=True, slots=True)
class Reserve:
    """Bytes of each GPU; the least and the most that logs show, and what is likely."""

    least: float
    likely: float
    most: float


def expected_reserve(step_tokens: int, slots: int, vocabulary: int | None, gpus: int) -> Reserve:
    """Return the reserve of each of so many GPUs that share a model."""
    fixed = CONTEXT_BYTES + (NCCL_BYTES if gpus > 1 else 0)
    values = slots * (vocabulary or UNKNOWN_VOCABULARY)
    likely = fixed + SAMPLER_BYTES * values + STEP_TOKEN_BYTES * step_tokens
    least = CONTEXT_BYTES + LEAST_SAMPLER_BYTES * values
    return Reserve(least, likely, MOST_FACTOR * likely + MOST_EXTRA_BYTES)


def known_reserve(reserve_bytes: float) -> Reserve:
    """Return a reserve that was measured: nothing is left open."""
    return Reserve(reserve_bytes, reserve_bytes, reserve_bytes)
