"""The matrices of vision towers that are known, by the fields of their `vision_config`.

They are divided by tensor parallelism like the text's layers and stay in 16 bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness.memory.weight_parts import vector
from harness.memory.weights import Kind, Matrix, Shard

COLOURS: Final = 3
HALF: Final = Kind.HALF


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision transformer and what projects its output to the text's hidden size."""

    hidden: int
    inner: int
    layers: int
    patch: int  # pixels of a side
    gated: bool = False
    bias: bool = True
    norm_bias: bool = True
    frames: int = 1  # in a patch
    positions: int = 0  # learned
    patch_bias: bool = True
    extra: int = 0  # single norms and vectors of hidden size outside of layers
    projector: tuple[tuple[int, int], ...] = ()  # inputs x outputs
    projector_bias: bool = True

    def matrices(self) -> tuple[Matrix, ...]:
        """Return all of them, each with the number of its layers."""
        hidden, inner, layers = self.hidden, self.inner, self.layers
        into = 2 if self.gated else 1
        found = [
            Matrix("visual.patch", COLOURS * self.frames * self.patch**2, hidden, kind=HALF),
            vector("visual.positions", hidden, count=self.positions),
            vector("visual.extra", hidden, count=self.extra + self.patch_bias),
            Matrix("visual.qkv", hidden, 3 * hidden, Shard.OUTPUTS, layers, HALF),
            Matrix("visual.proj", hidden, hidden, Shard.INPUTS, layers, HALF),
            Matrix("visual.up", hidden, inner, Shard.OUTPUTS, layers * into, HALF),
            Matrix("visual.down", inner, hidden, Shard.INPUTS, layers, HALF),
            vector("visual.norms", hidden, count=layers * (4 if self.norm_bias else 2)),
        ]
        if self.bias:
            found.append(vector("visual.up.bias", inner, Shard.OUTPUTS, layers * into))
            found.append(vector("visual.bias", hidden, count=5 * layers))  # qkv, out, down
        for inputs, outputs in self.projector:
            found.append(Matrix("visual.projector", inputs, outputs, Shard.OUTPUTS, kind=HALF))
            if self.projector_bias:
                found.append(vector("visual.projector.bias", outputs))
        return tuple(found)
