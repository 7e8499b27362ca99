"""What fits on a GPU, by arithmetic: KV blocks, users, contexts, and bounds on speed.

Bytes, bytes/s, FLOP/s and tokens in, the same out, all of one GPU: with tensor parallelism, weights
and KV heads are those of its shard. The bounds leave out everything but memory traffic and matrix
products, so no server is faster and none holds more.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WHOLE_CONTEXT: Final = 0  # as a window: the layer attends to all tokens
PADDED: Final = 1.5  # vLLM pads the smaller kind of layers where the larger is less than this times


def kv_layer_bytes(
    kv_heads: int, head_dim: int, value_bytes: int, tensor_parallel: int = 1, latent_dim: int = 0
) -> int:
    """Return what a token leaves in a layer's cache: keys and values, or one latent vector.

    Fewer heads than GPUs are replicated, and so is the latent vector.
    """
    return value_bytes * (latent_dim or 2 * head_dim * max(1, kv_heads // tensor_parallel))


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The paged KV cache of one GPU, laid out as vLLM does.

    A block holds `block_tokens` tokens of one group of layers. All groups have as many layers, so
    that any of them can use any block; a model with only one kind of layers is one group.
    """

    layer_token_bytes: int
    layers_by_window: Mapping[int, int]  # window in tokens, or WHOLE_CONTEXT -> number of layers
    block_tokens: int = 16
    step_tokens: int = 1  # tokens in flight: layers with a window keep these beside it

    @property
    def layers_per_group(self) -> int:
        """The layers that share a block."""
        fewest, most = min(self.layers_by_window.values()), max(self.layers_by_window.values())
        return most if most < PADDED * fewest else fewest

    @property
    def block_bytes(self) -> int:
        """A block of one group."""
        return self.layer_token_bytes * self.block_tokens * self.layers_per_group

    def request_blocks(self, context_tokens: int) -> int:
        """Return the blocks of a request with so many tokens, prompt and output."""
        blocks = 0
        for window, layers in self.layers_by_window.items():
            held = -(-context_tokens // self.block_tokens)
            if window:  # which may begin within a block
                kept = window - 1 + self.step_tokens
                held = min(held, -(-kept // self.block_tokens) + 1)
            blocks += held * -(-layers // self.layers_per_group)
        return blocks

    def request_bytes(self, context_tokens: int) -> int:
        """Return the bytes of its blocks."""
        return self.request_blocks(context_tokens) * self.block_bytes

    def read_bytes(self, context_tokens: int) -> int:
        """Return the keys and values that a step of decoding reads of it."""
        return self.layer_token_bytes * sum(
            layers * min(context_tokens, window or context_tokens)
            for window, layers in self.layers_by_window.items()
        )

    def blocks_in(self, pool_bytes: float) -> int:
        """Return the whole blocks of a pool."""
        return max(int(pool_bytes // self.block_bytes), 0)

    def tokens_in(self, pool_blocks: int, context_tokens: int) -> int:
        """Return the tokens of a pool in requests of this length, as vLLM reports a KV cache."""
        return pool_blocks * context_tokens // self.request_blocks(context_tokens)

    def users_in(self, pool_blocks: int, context_tokens: int) -> int:
        """Return how many such requests a pool holds at once."""
        return pool_blocks // self.request_blocks(context_tokens)

    def context_in(self, pool_blocks: int, users: int) -> int:
        """Return the tokens that each of so many requests can have, in whole blocks."""
        step = self.block_tokens
        lengths = range(step, pool_blocks * step + 1, step)
        return step * bisect_right(lengths, pool_blocks // users, key=self.request_blocks)


def decode_tokens_per_s(
    bandwidth_bytes_s: float, weight_bytes: float, users: int = 1, read_bytes: float = 0
) -> float:
    """Return each user's tokens/s at most: a step reads the weights and every user's KV cache."""
    return bandwidth_bytes_s / (weight_bytes + users * read_bytes)


def compute_tokens_per_s(flops_s: float, parameters: float) -> float:
    """Return all tokens/s at most, of prompts too: each is multiplied by each weight, once.

    Attention is left out, so long prompts are slower still.
    """
    return flops_s / (2 * parameters)
