"""The matrices of each part of a layer, by its sizes in values. Names are those of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.memory.weights import Kind, Matrix, Shard

ROUTER: Final = "mlp.gate"


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
        wide = self.heads * self.head_size
        narrow = self.kv_heads * self.head_size
        size, hidden = self.head_size, self.hidden
        found = [
            Matrix("self_attn.q_proj", hidden, wide, Shard.OUTPUTS),
            Matrix("self_attn.k_proj", hidden, narrow, Shard.KV_HEADS, unit=size),
            Matrix("self_attn.v_proj", hidden, narrow, Shard.KV_HEADS, unit=size),
            Matrix("self_attn.o_proj", wide, hidden, Shard.INPUTS),
        ]
        if self.query_bias:
            found.append(vector("self_attn.q_proj.bias", wide, Shard.OUTPUTS))
            found.append(vector("self_attn.kv.bias", narrow, Shard.KV_HEADS, 2, size))
        if self.output_bias:
            found.append(vector("self_attn.o_proj.bias", hidden))
        if self.head_norms:
            found.append(vector("self_attn.norms", size, count=2))
        if self.sinks:
            found.append(vector("self_attn.sinks", self.heads))
        return found


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
        queries = self.heads * (self.nope + self.rope)
        keys_values = self.heads * (self.nope + self.value)
        found = [
            Matrix("self_attn.kv_a_proj_with_mqa", self.hidden, self.rank + self.rope),
            vector("self_attn.kv_a_layernorm", self.rank),
            Matrix("self_attn.kv_b_proj", self.rank, keys_values, Shard.OUTPUTS),
            Matrix("self_attn.kv_b_proj", self.rank, keys_values, Shard.OUTPUTS, kind=Kind.COPY),
            Matrix("self_attn.o_proj", self.heads * self.value, self.hidden, Shard.INPUTS),
        ]
        if not self.query_rank:
            return [*found, Matrix("self_attn.q_proj", self.hidden, queries, Shard.OUTPUTS)]
        return [
            *found,
            Matrix("self_attn.q_a_proj", self.hidden, self.query_rank),
            vector("self_attn.q_a_layernorm", self.query_rank),
            Matrix("self_attn.q_b_proj", self.query_rank, queries, Shard.OUTPUTS),
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
        up = ["gate_proj", "up_proj"] if self.gated else ["up_proj"]
        found = [
            Matrix(f"{self.module}.{name}", self.hidden, self.inner, Shard.OUTPUTS) for name in up
        ]
        found.append(Matrix(f"{self.module}.down_proj", self.inner, self.hidden, Shard.INPUTS))
        if self.bias:
            found.append(vector(f"{self.module}.up.bias", self.inner, Shard.OUTPUTS, len(up)))
            found.append(vector(f"{self.module}.down.bias", self.hidden))
        return found


@dataclass(frozen=True, slots=True)
class Experts:
    """Experts that a router chooses from, and the router."""

    hidden: int
    inner: int
    count: int
    bias: bool = False

    def matrices(self) -> list[Matrix]:
        """Return the router, in 16 bit in any model, and three matrices of each expert."""
        hidden, inner, count = self.hidden, self.inner, self.count
        each = "mlp.experts.0"
        found = [
            Matrix(ROUTER, hidden, count, kind=Kind.HALF),
            Matrix(f"{each}.gate_proj", hidden, inner, Shard.EXPERT_OUTPUTS, count),
            Matrix(f"{each}.up_proj", hidden, inner, Shard.EXPERT_OUTPUTS, count),
            Matrix(f"{each}.down_proj", inner, hidden, Shard.EXPERT_INPUTS, count),
        ]
        if self.bias:
            found.append(vector("mlp.gate.bias", count))
            found.append(vector("mlp.up.bias", inner, Shard.EXPERT_OUTPUTS, 2 * count))
            found.append(vector("mlp.down.bias", hidden, count=count))
        return found


def vector(
    module: str, size: int, shard: Shard = Shard.WHOLE, count: int = 1, unit: int = 1
) -> Matrix:
    """Return a bias or a norm: never quantized."""
    return Matrix(module, 1, size, shard, count, kind=Kind.HALF, unit=unit)


def norms(hidden: int, count: int, bias: bool) -> list[Matrix]:
    """Return the norms of a layer."""
    return [vector("norms", hidden, count=count * (2 if bias else 1))]
