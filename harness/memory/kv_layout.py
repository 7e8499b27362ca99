"""The paged KV cache of one engine, laid out as vLLM 0.32 does (`v1/core/kv_cache_utils.py`).

Layers that keep the same tokens of a context share a group, each group has a block table, and any
group can use any block. So groups are made equally large: `layers_per_group` of each kind.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from harness.errors import ConfigError
from harness.memory.kv_dtypes import (
    AUTO,
    boundary_layers,
    head_bytes,
    keeps_boundary_layers,
    latent_bytes,
)
from harness.memory.model_shape import ModelShape, stage_layers
from harness.memory.parallel import Parallel, check_parallel

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_TOKENS = 16  # vLLM's default for most attention backends
FEW_MORE = 1.5  # kinds of layers whose numbers differ by less are padded, not divided


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers that share a block table."""

    window: int  # in tokens; 0: the whole context
    token_bytes: tuple[int, ...]  # of a token in its layers, on a GPU of each pipeline stage


@dataclass(frozen=True, slots=True)
class KvLayout:
    """Blocks of one engine; the figures of all its GPUs together say so."""

    groups: tuple[KvGroup, ...]
    layer_bytes: tuple[tuple[int, int], ...]  # of each layer: window, bytes of a token on a GPU
    parallel: Parallel = field(default_factory=Parallel)
    block_tokens: int = BLOCK_TOKENS
    in_flight_tokens: int = 1  # scheduled and not yet settled: windows are kept beside them

    @property
    def stage_block_bytes(self) -> tuple[int, ...]:
        """A block, on a GPU of each pipeline stage."""
        sizes = []
        for stage in range(self.parallel.pipeline):
            largest = max(group.token_bytes[stage] for group in self.groups)
            sizes.append(self.block_tokens * largest)
        return tuple(sizes)

    @property
    def block_bytes(self) -> int:
        """A block, on all GPUs of the engine together."""
        return self.parallel.tensor * sum(self.stage_block_bytes)

    @property
    def has_windows(self) -> bool:
        """Whether a layer keeps only the latest tokens."""
        return any(group.window for group in self.groups)

    def blocks_in(self, stage_kv_bytes: Sequence[float]) -> int:
        """Return how many blocks there are; the GPU with the fewest decides."""
        sizes = zip(stage_kv_bytes, self.stage_block_bytes, strict=True)
        fewest = min(int(memory // size) for memory, size in sizes)
        return max(fewest, 0)

    def request_blocks(self, context_tokens: int) -> int:
        """Return what vLLM reserves for a request of so many tokens, prompt and output."""
        return sum(self._group_blocks(group.window, context_tokens) for group in self.groups)

    def _group_blocks(self, window: int, context_tokens: int) -> int:
        if not window:
            tokens_of_gpu = ceil(context_tokens / self.parallel.decode_context)
            return ceil(tokens_of_gpu / self.block_tokens)
        # The window ends before the token that is computed. One more block: it may begin anywhere.
        held = min(window - 1 + self.in_flight_tokens, context_tokens)
        return ceil(held / self.block_tokens) + 1

    def read_bytes(self, context_tokens: int) -> int:
        """Return the keys and values of a request's tokens, on all GPUs of the engine together."""
        one_gpu = 0
        for window, token_bytes in self.layer_bytes:
            kept_tokens = min(context_tokens, window) if window else context_tokens
            one_gpu += token_bytes * kept_tokens
        return one_gpu * self.parallel.tensor // self.parallel.decode_context

    def concurrency(self, blocks: int, context_tokens: int) -> float:
        """Return vLLM's *maximum concurrency*: whole requests of so many tokens."""
        return blocks / self.request_blocks(context_tokens)

    def users_in(self, blocks: int, context_tokens: int, slots: int | None = None) -> int:
        """Return how many such requests run at once: as blocks suffice, at most the slots."""
        users = usable(blocks) // self.request_blocks(context_tokens)
        if slots is None:
            return users
        return min(users, slots)

    def context_in(self, blocks: int, users: int, limit: int | None = None) -> int:
        """Return the tokens that each of so many requests can have, up to the model's limit."""
        step = self.block_tokens * self.parallel.decode_context
        lengths = range(step, usable(blocks) * step + 1, step)
        blocks_of_each = usable(blocks) // users
        # Longer requests never need fewer blocks, so the longest one that fits can be bisected for.
        steps = bisect_right(lengths, blocks_of_each, key=self.request_blocks)
        tokens = step * steps
        if limit is None:
            return tokens
        return min(tokens, limit)


def usable(blocks: int) -> int:
    """Return the blocks that requests can have: vLLM holds one back."""
    return max(blocks - 1, 0)


def kv_layout(
    shape: ModelShape,
    dtype: str = AUTO,
    parallel: Parallel | None = None,
    *,
    block_tokens: int = BLOCK_TOKENS,
    in_flight_tokens: int = 1,
    model_bytes: int = 2,
    draft: ModelShape | None = None,
) -> KvLayout:
    """Return the KV cache of an engine. Raises ConfigError for what vLLM refuses.

    `model_bytes` are those of a value in the model's own precision. A draft model's layers are
    beside the model's, on the last pipeline stage.
    """
    ways = parallel or Parallel()
    check_parallel(ways, shape)
    packed = _token_bytes(shape, dtype, ways.tensor, model_bytes)
    plain = _token_bytes(shape, AUTO, ways.tensor, model_bytes)
    unpacked = boundary_layers(dtype, shape.layers)
    if unpacked and any(shape.windows):
        raise ConfigError(
            f"--kv-cache-dtype is {dtype}, which leaves some layers unpacked, and the model has "
            "sliding windows: expected another format, how vLLM lays these out is not known here; "
            "try --kv-cache-dtype fp8."
        )
    sizes = [plain if i in unpacked else packed for i in range(shape.layers)]
    if keeps_boundary_layers(dtype):
        block_tokens = _covering_block_tokens(block_tokens, packed, plain)
    layers = list(zip(shape.windows, sizes, strict=True))
    counts = list(stage_layers(shape.layers, ways.pipeline))
    if draft:
        added = _draft_layers(draft, dtype, ways.tensor, model_bytes)
        _check_alike(layers, added)
        layers += added
        counts[-1] += len(added)
    groups = _groups(layers, counts)
    return KvLayout(groups, tuple(layers), ways, block_tokens, in_flight_tokens)


def _draft_layers(
    draft: ModelShape, dtype: str, tensor: int, model_bytes: int
) -> list[tuple[int, int]]:
    size = _token_bytes(draft, dtype, tensor, model_bytes)
    return [(window, size) for window in draft.windows]


def _check_alike(layers: Sequence[tuple[int, int]], added: Sequence[tuple[int, int]]) -> None:
    """Raise ConfigError for groups of layers whose blocks would differ in size."""
    every = [*layers, *added]
    has_windows = any(window for window, _ in every)
    sizes = {size for _, size in every}
    if has_windows and len(sizes) > 1:
        raise ConfigError(
            "--draft has layers of another size than the model's, and some have a sliding window: "
            "expected one size, how vLLM lays out others is not known here; leave --draft out."
        )


def _token_bytes(shape: ModelShape, dtype: str, tensor: int, model_bytes: int) -> int:
    """What a token leaves on a GPU in one layer: each GPU has a head, or the latent vector."""
    if shape.latent_size:
        return latent_bytes(dtype, shape.latent_size, model_bytes)
    heads = max(shape.kv_heads // tensor, 1)
    return heads * head_bytes(dtype, shape.head_size, model_bytes)


def _covering_block_tokens(block_tokens: int, packed: int, plain: int) -> int:
    """The smallest block that, packed, is as large as the smallest one that is not."""
    least_bytes = BLOCK_TOKENS * plain
    blocks = ceil(least_bytes / (block_tokens * packed))
    return block_tokens * blocks


def _groups(layers: Sequence[tuple[int, int]], stage_layers: Sequence[int]) -> tuple[KvGroup, ...]:
    """`layers`: window and bytes of a token of each; `stage_layers`: how many a stage has."""
    by_window: dict[int, list[int]] = {}
    for index, (window, _) in enumerate(layers):
        by_window.setdefault(window, []).append(index)
    numbers = [len(indexes) for indexes in by_window.values()]
    fewest = min(numbers)
    most = max(numbers)
    # Any block must serve any group, so all have as many layers: the smallest kind is one group,
    # and larger kinds are several. But a kind with only a few more layers would be two groups, both
    # half empty, so all kinds are padded to the largest; a block has the size of the largest group.
    per_group = most if most < FEW_MORE * fewest else fewest
    stage_of: list[int] = []
    for stage, count in enumerate(stage_layers):
        stage_of += [stage] * count
    groups = []
    for window, indexes in by_window.items():
        parts = ceil(len(indexes) / per_group)
        for part in range(parts):  # every n-th layer, so that each stage has some of each group
            token_bytes = [0] * len(stage_layers)
            for index in indexes[part::parts]:
                _, layer_bytes = layers[index]
                token_bytes[stage_of[index]] += layer_bytes
            groups.append(KvGroup(window, tuple(token_bytes)))
    return tuple(groups)
