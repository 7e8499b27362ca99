"""A model's layers as its KV cache and its division among GPUs see them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The attention layers of one model; sizes in values, windows and lengths in tokens."""

    family: str  # its model_type
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    windows: tuple[int, ...]  # of each layer; 0: the whole context
    latent_size: int = 0  # of the one vector that a token leaves in a layer (MLA); 0: keys, values
    context_limit: int | None = None
    quantization: str = ""  # quant_method; empty: none
    kv_cache_dtype: str = "auto"  # what vLLM takes for `auto`: "auto", "fp8" or "nvfp4"
    draft_layers: int = 0  # that the model brings for speculative decoding (multi-token prediction)

    @property
    def layers_by_window(self) -> dict[int, int]:
        """How many layers have which window."""
        return dict(Counter(self.windows))


def stage_layers(layers: int, stages: int) -> list[int]:
    """Return the layers of each pipeline stage as vLLM divides them.

    What is left over goes to the stages before the last, from the back: the last one has the head.
    """
    each, left = divmod(layers, stages)
    parts = [each] * stages
    for back in range(2, left + 2):
        parts[-back] += 1
    return parts
