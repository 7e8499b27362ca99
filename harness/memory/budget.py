"""How the memory of a GPU is divided: weights, KV cache, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from harness.memory.reserve import Reserve


class Span(NamedTuple):
    """Bytes; NaN: not known."""

    least: float
    likely: float
    most: float

    @property
    def known(self) -> bool:
        """Whether something can be said of it."""
        return not isnan(self.likely)


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of the GPU that has most weights; NaN: not known."""

    memory: float
    utilization: float  # the share of it that vLLM takes
    weights: float
    most_weights: float  # where a model's files leave a choice of formats
    reserve: Reserve
    kv_given: float | None = None  # as `--kv-cache-memory-bytes` says, whatever else there is

    @property
    def taken(self) -> float:
        """What vLLM takes of the memory."""
        if isnan(self.memory):
            return nan
        return ceil(self.memory * self.utilization)

    @property
    def kv(self) -> Span:
        """What is left for the KV cache."""
        if self.kv_given is not None:
            return Span(self.kv_given, self.kv_given, self.kv_given)
        left = self.taken - self.weights
        return Span(
            self.taken - self.most_weights - self.reserve.most,
            left - self.reserve.likely,
            left - self.reserve.least,
        )

    @property
    def overflows(self) -> bool:
        """Whether weights and the least of the rest leave no KV cache at all, or not the given."""
        if self.kv_given is not None:
            known_weights = 0.0 if isnan(self.weights) else self.weights
            return known_weights + self.kv_given + self.reserve.least > self.memory
        return self.kv.most <= 0
