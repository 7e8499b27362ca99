"""The duration of an engine step: a roofline model over public figures of models and GPUs."""

# A step reads every weight once and the KV cache of every running sequence (bandwidth), and
# multiplies every token by every weight (compute); the two overlap, so the slower one counts. A
# constant is added for what a roofline does not show: launching kernels, sampling, the engine loop.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.memory.kv_dtypes import AUTO, head_bytes

if TYPE_CHECKING:
    from harness.memory.cards import GpuSpec


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Shape of a dense decoder; parameters and KV in 16 bit."""

    parameters: float
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def weight_bytes(self) -> float:
        return 2 * self.parameters

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return self.kv_heads * head_bytes(AUTO, self.head_dim) * self.layers


# parameters, layers, KV heads and head size from each model's published config.json
MODELS: Final[dict[str, ModelSpec]] = {
    "qwen2.5-0.5b": ModelSpec(0.49e9, 24, 2, 64),
    "qwen2.5-1.5b": ModelSpec(1.54e9, 28, 2, 128),
    "llama-3.2-3b": ModelSpec(3.21e9, 28, 8, 128),
    "qwen2.5-7b": ModelSpec(7.6e9, 28, 4, 128),
    "llama-3.1-8b": ModelSpec(8.03e9, 32, 8, 128),
    "qwen2.5-14b": ModelSpec(14.8e9, 48, 8, 128),
    "qwen2.5-32b": ModelSpec(32.8e9, 64, 8, 128),
}

EFFICIENCY: Final = 0.6  # of the vendor's peaks that serving kernels reach
STEP_NS: Final = 2_000_000  # launch, sampling, scheduling: what an empty step costs
SEQUENCE_NS: Final = 4_000  # per sequence in the batch: sampling and detokenizing


@dataclass(frozen=True, slots=True)
class Roofline:
    """Step time as a linear function of what the step does, all in ns."""

    base_ns: float
    weights_ns: float
    kv_token_ns: float
    token_ns: float
    sequence_ns: float
    # A step with prompt tokens takes at least this long, because vLLM launches it without one CUDA
    # graph for all of it, and without any beyond `graph_tokens` tokens. Known of a measured server.
    mixed_ns: float = 0.0
    eager_ns: float = 0.0
    graph_tokens: float = 0.0

    def memory_ns(self, kv_tokens: int) -> float:
        """Return the time to read the weights and the KV cache of `kv_tokens` tokens."""
        return self.weights_ns + kv_tokens * self.kv_token_ns

    def step_ns(self, sequences: int, kv_tokens: int, tokens: int, prompt: int = 0) -> float:
        """`kv_tokens` are read; `tokens` are computed, `prompt` of them of prompts."""
        work = max(self.memory_ns(kv_tokens), tokens * self.token_ns)
        if prompt:
            work = max(work, self.mixed_ns if tokens <= self.graph_tokens else self.eager_ns)
        return self.base_ns + sequences * self.sequence_ns + work


def roofline(
    model: ModelSpec, gpu: GpuSpec, *, bandwidth_scale: float = 1.0, compute_scale: float = 1.0
) -> Roofline:
    """Return the constants of a model on a GPU, or on one that is faster by these factors."""
    bandwidth = gpu.bandwidth_bytes_s * EFFICIENCY * bandwidth_scale
    flops = gpu.flops_s * EFFICIENCY * compute_scale
    return Roofline(
        base_ns=STEP_NS,
        weights_ns=model.weight_bytes / bandwidth * 1e9,
        kv_token_ns=model.kv_bytes_per_token / bandwidth * 1e9,
        token_ns=2 * model.parameters / flops * 1e9,
        sequence_ns=SEQUENCE_NS,
    )


def blocks_that_fit(
    model: ModelSpec, gpu: GpuSpec, block_size: int, utilization: float = 0.9
) -> int:
    """Return the KV blocks that fit beside the weights, at vLLM's `--gpu-memory-utilization`."""
    free = gpu.memory_bytes * utilization - model.weight_bytes - 2e9  # 2 GB of activations
    return max(int(free / (model.kv_bytes_per_token * block_size)), 0)
