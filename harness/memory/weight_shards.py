"""Whether quantized matrices can be divided among GPUs: vLLM refuses a start where not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.memory.weights import (
    EXPERT_SHARDS,
    OUTPUT_SHARDS,
    Kind,
    Matrix,
    Shard,
    WeightPlan,
    shard_sizes,
)

if TYPE_CHECKING:
    from harness.memory.parallel import Parallel

INPUT_SHARDS: Final = (Shard.INPUTS, Shard.EXPERT_INPUTS)


@dataclass(frozen=True, slots=True)
class Undivided:
    """A matrix whose share on one GPU is no multiple of what has one scale."""

    module: str
    side: str  # "inputs" or "outputs"
    size: int  # on one GPU
    step: int

    def sentence(self, method: str) -> str:
        """Say it."""
        return (
            f"{self.module} has {self.size:,} {self.side} on each GPU: vLLM refuses that for "
            f"{method} weights, whose scales are of {self.step:,} {self.side}"
        )


def undivided(plan: WeightPlan, parallel: Parallel) -> Undivided | None:
    """Return the first matrix that vLLM refuses to divide so; None if there is none."""
    numbers = list(range(len(plan.layers)))
    if not plan.quantization.names_modules:  # then equal layers are stored alike
        kinds = dict.fromkeys(plan.layers)
        numbers = [plan.layers.index(layer) for layer in kinds]
    for number in numbers:
        for matrix in plan.layers[number]:
            refused = _check(plan, parallel, f"model.layers.{number}.{matrix.module}", matrix)
            if refused:
                return refused
    return None


def _check(plan: WeightPlan, parallel: Parallel, module: str, matrix: Matrix) -> Undivided | None:
    if matrix.kind is not Kind.LINEAR:
        return None
    expert = matrix.shard in EXPERT_SHARDS
    if expert and plan.quantization.pads_experts:
        return None
    form = plan.quantization.format_of(module, expert)
    inputs, outputs, _ = shard_sizes(matrix, parallel)
    by_outputs = matrix.shard in (*OUTPUT_SHARDS, Shard.KV_HEADS)
    by_inputs = matrix.shard in INPUT_SHARDS
    divided = outputs != matrix.outputs or inputs != matrix.inputs
    name = matrix.module.replace(".0.", ".")
    if form.block and (divided or expert):
        rows, columns = form.block
        if by_outputs and outputs % rows:
            return Undivided(name, "outputs", outputs, rows)
        if by_inputs and inputs % columns:
            return Undivided(name, "inputs", inputs, columns)
    if form.group and divided and by_inputs and inputs % form.group:
        return Undivided(name, "inputs", inputs, form.group)
    return None
