"""How a model is spread over GPUs, and what vLLM 0.32 refuses of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import ConfigError

if TYPE_CHECKING:
    from harness.memory.model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class Parallel:
    """Sizes as in vLLM's flags."""

    tensor: int = 1
    pipeline: int = 1
    decode_context: int = 1  # ranks of `tensor` that share the tokens of a context
    data: int = 1  # engines, each with a KV cache of its own
    expert: bool = False  # experts whole on some GPU, not a part of each on all

    @property
    def engine_gpus(self) -> int:
        """The GPUs of one engine."""
        return self.tensor * self.pipeline

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.engine_gpus * self.data


def check_parallel(parallel: Parallel, shape: ModelShape) -> None:
    """Raise ConfigError for a division that vLLM refuses."""
    _check_tensor(parallel.tensor, shape)
    if parallel.pipeline > shape.layers:
        raise ConfigError(
            f"--pipeline-parallel is {parallel.pipeline}, and the model has {shape.layers} layers: "
            f"expected at most that; try --pipeline-parallel {shape.layers}."
        )
    if parallel.decode_context > 1:
        _check_decode_context(parallel, shape)


def divides_heads(tensor: int, shape: ModelShape) -> bool:
    """Whether so many GPUs can share the model's heads."""
    kv_heads = shape.kv_heads
    divides_kv = kv_heads % tensor == 0 or tensor % kv_heads == 0 or shape.latent_size > 0
    return shape.heads % tensor == 0 and divides_kv


def _check_tensor(tensor: int, shape: ModelShape) -> None:
    if divides_heads(tensor, shape):
        return
    smaller = (gpus for gpus in (1, 2, 4, 8) if gpus < tensor)
    fewer = max(gpus for gpus in smaller if divides_heads(gpus, shape))
    raise ConfigError(
        f"--tensor-parallel is {tensor}, and the model has {shape.heads} attention and "
        f"{shape.kv_heads} KV heads: expected a number that divides them; try --tensor-parallel "
        f"{fewer}."
    )


def _check_decode_context(parallel: Parallel, shape: ModelShape) -> None:
    ranks = parallel.decode_context
    tensor = parallel.tensor
    if any(shape.windows):
        raise ConfigError(
            f"--decode-context-parallel is {ranks}, and the model has layers with a sliding "
            "window: expected 1, vLLM has no other for them; try --decode-context-parallel 1."
        )
    # GPUs that would hold the same tokens of the same head
    copies = tensor if shape.latent_size else tensor // shape.kv_heads
    if not 1 <= ranks <= copies or tensor % ranks:
        most = max(copies, 1)
        gpus = "1 GPU" if most == 1 else f"{most} GPUs"
        raise ConfigError(
            f"--decode-context-parallel is {ranks}, and with --tensor-parallel {tensor} each KV "
            f"head is on {gpus}: expected a number that divides {tensor}, at most that; try "
            f"--decode-context-parallel {most}."
        )
    queries = shape.heads // shape.kv_heads
    if not shape.latent_size and queries % ranks:
        raise ConfigError(
            f"--decode-context-parallel is {ranks}, and each KV head has {queries} query heads: "
            "expected a number that divides them; try --decode-context-parallel 1."
        )
