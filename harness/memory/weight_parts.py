"""The matrices of each part of a layer, by its sizes in values. Names are those of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from harness.memory.weights import Kind, Matrix, Shard

ROUTER: Final = "mlp.gate"
EXPERT: Final = "mlp.experts.0"  # stands for all of a layer


@dataclass(frozen=True, slots=True)
class Attention:
    """Queries, keys and values of one layer."""

    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    query_bias: bool = False
    output_bias: bool = False
    head_norms: bool = False
    sinks: bool = False  # a learned number for each head

    def matrices(self) -> list[Matrix]:
        """Return what vLLM loads for it."""
        hidden = self.hidden
        queries = self.heads * self.head_size
        keys = self.kv_heads * self.head_size
        unit = self.head_size
        matrices = [
            Matrix("self_attn.q_proj", hidden, queries, Shard.OUTPUTS),
            Matrix("self_attn.k_proj", hidden, keys, Shard.KV_HEADS, unit=unit),
            Matrix("self_attn.v_proj", hidden, keys, Shard.KV_HEADS, unit=unit),
            Matrix("self_attn.o_proj", queries, hidden, Shard.INPUTS),
        ]
        if self.query_bias:
            matrices.append(vector("self_attn.q_proj.bias", queries, Shard.OUTPUTS))
            matrices.append(vector("self_attn.kv.bias", keys, Shard.KV_HEADS, 2, unit))
        if self.output_bias:
            matrices.append(vector("self_attn.o_proj.bias", hidden))
        if self.head_norms:
            matrices.append(vector("self_attn.norms", self.head_size, count=2))
        if self.sinks:
            matrices.append(vector("self_attn.sinks", self.heads))
        return matrices


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Attention over one compressed vector of a token (DeepSeek's MLA)."""

    hidden: int
    heads: int
    rank: int
    rope: int
    nope: int
    value: int
    query_rank: int = 0  # 0: queries are not compressed

    def matrices(self) -> list[Matrix]:
        """Return what vLLM loads for it: of a quantized `kv_b_proj`, a copy in 16 bit, too."""
        keys_values = self.heads * (self.nope + self.value)
        unpacking = Matrix("self_attn.kv_b_proj", self.rank, keys_values, Shard.OUTPUTS)
        output = Matrix("self_attn.o_proj", self.heads * self.value, self.hidden, Shard.INPUTS)
        return [
            Matrix("self_attn.kv_a_proj_with_mqa", self.hidden, self.rank + self.rope),
            vector("self_attn.kv_a_layernorm", self.rank),
            unpacking,
            replace(unpacking, kind=Kind.COPY),
            output,
            *self._queries(),
        ]

    def _queries(self) -> list[Matrix]:
        size = self.heads * (self.nope + self.rope)
        if not self.query_rank:
            return [Matrix("self_attn.q_proj", self.hidden, size, Shard.OUTPUTS)]
        return [
            Matrix("self_attn.q_a_proj", self.hidden, self.query_rank),
            vector("self_attn.q_a_layernorm", self.query_rank),
            Matrix("self_attn.q_b_proj", self.query_rank, size, Shard.OUTPUTS),
        ]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A dense feed-forward part, or shared experts."""

    hidden: int
    inner: int
    gated: bool = True
    bias: bool = False
    module: str = "mlp"

    def matrices(self) -> list[Matrix]:
        """Return two matrices, or three with a gate."""
        module = self.module
        up_names = ["gate_proj", "up_proj"] if self.gated else ["up_proj"]
        matrices = []
        for name in up_names:
            up = Matrix(f"{module}.{name}", self.hidden, self.inner, Shard.OUTPUTS)
            matrices.append(up)
        down = Matrix(f"{module}.down_proj", self.inner, self.hidden, Shard.INPUTS)
        matrices.append(down)
        if self.bias:
            up_bias = vector(f"{module}.up.bias", self.inner, Shard.OUTPUTS, len(up_names))
            matrices.append(up_bias)
            matrices.append(vector(f"{module}.down.bias", self.hidden))
        return matrices


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts that a router chooses from, and the router."""

    hidden: int
    inner: int
    count: int
    bias: bool = False

    def matrices(self) -> list[Matrix]:
        """Return the router, in 16 bit in any model, and three matrices of each expert."""
        hidden = self.hidden
        inner = self.inner
        count = self.count
        matrices = [
            Matrix(ROUTER, hidden, count, kind=Kind.HALF),
            Matrix(f"{EXPERT}.gate_proj", hidden, inner, Shard.EXPERT_OUTPUTS, count),
            Matrix(f"{EXPERT}.up_proj", hidden, inner, Shard.EXPERT_OUTPUTS, count),
            Matrix(f"{EXPERT}.down_proj", inner, hidden, Shard.EXPERT_INPUTS, count),
        ]
        if self.bias:
            matrices.append(vector("mlp.gate.bias", count))
            matrices.append(vector("mlp.up.bias", inner, Shard.EXPERT_OUTPUTS, 2 * count))
            matrices.append(vector("mlp.down.bias", hidden, count=count))
        return matrices


def vector(
    module: str, size: int, shard: Shard = Shard.WHOLE, count: int = 1, unit: int = 1
) -> Matrix:
    """Return a bias or a norm: never quantized."""
    return Matrix(module, 1, size, shard, count, kind=Kind.HALF, unit=unit)


def norms(hidden: int, count: int, bias: bool) -> list[Matrix]:
    """Return the norms of a layer."""
    return [vector("norms", hidden, count=2 * count if bias else count)]
