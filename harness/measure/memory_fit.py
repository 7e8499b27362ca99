"""What fits on GPUs, by arithmetic: KV blocks, users, contexts, and upper bounds on speed.

Bytes, bytes/s, FLOP/s and tokens in, the same out, of one replica: all of its GPUs together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil


def kv_layer_bytes(heads: int, size: int, value_bytes: int, gpus: int = 1, latent: int = 0) -> int:
    """Return what a token leaves in a layer's cache; each GPU has a head, or the latent vector."""
    return value_bytes * (gpus * latent or 2 * max(heads, gpus) * size)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A paged KV cache, laid out as vLLM does.

    A block holds `block_tokens` tokens of one group of layers. Groups are equally large, so that
    any of them can use any block; layers of only one kind are one group.
    """

    layer_token_bytes: int
    layers_by_window: Mapping[int, int]  # by tokens; 0: the whole context
    block_tokens: int = 16
    step_tokens: int = 1  # in flight: layers with a window keep them beside it

    @property
    def layers_per_group(self) -> int:
        """The layers that share a block."""
        fewest, most = min(self.layers_by_window.values()), max(self.layers_by_window.values())
        return most if most < 1.5 * fewest else fewest  # by padding

    @property
    def block_bytes(self) -> int:
        """A block of one group."""
        return self.layer_token_bytes * self.block_tokens * self.layers_per_group

    def request_blocks(self, context_tokens: int) -> int:
        """Return the blocks of a request of so many tokens, prompt and output."""
        blocks = 0
        for window, layers in self.layers_by_window.items():
            held = ceil(context_tokens / self.block_tokens)
            if window:  # it may begin within a block
                held = min(held, ceil((window - 1 + self.step_tokens) / self.block_tokens) + 1)
            blocks += held * ceil(layers / self.layers_per_group)
        return blocks

    def read_bytes(self, context_tokens: int) -> int:
        """Return the keys and values that a step of decoding reads of a request."""
        layers = self.layers_by_window.items()
        tokens = sum(n * min(context_tokens, window or context_tokens) for window, n in layers)
        return self.layer_token_bytes * tokens

    def users_in(self, blocks: int, context_tokens: int, slots: int | None = None) -> int:
        """Return how many such requests run at once: as the KV cache holds, at most the slots."""
        return min(blocks // self.request_blocks(context_tokens), slots or blocks)

    def context_in(self, blocks: int, users: int) -> int:
        """Return the tokens that each of so many requests can have, in whole blocks."""
        step = self.block_tokens
        lengths = range(step, blocks * step + 1, step)
        return step * bisect_right(lengths, blocks // users, key=self.request_blocks)


def decode_tokens_per_s(bandwidth_bytes_s: float, weight_bytes: float, kv_bytes: float) -> float:
    """Return each user's tokens/s at most: a step reads the weights and all users' KV caches."""
    return bandwidth_bytes_s / (weight_bytes + kv_bytes)


def compute_tokens_per_s(flops_s: float, parameters: float) -> float:
    """Return all tokens/s at most, prompts included; attention is left out."""
    return flops_s / (2 * parameters)
