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
        return (*self._outside_layers(), *self._in_layers(), *self._projectors())

    def _outside_layers(self) -> list[Matrix]:
        pixels = COLOURS * self.frames * self.patch**2
        singles = self.extra
        if self.patch_bias:
            singles += 1
        return [
            Matrix("visual.patch", pixels, self.hidden, kind=HALF),
            vector("visual.positions", self.hidden, count=self.positions),
            vector("visual.extra", self.hidden, count=singles),
        ]

    def _in_layers(self) -> list[Matrix]:
        hidden = self.hidden
        layers = self.layers
        ups = 2 * layers if self.gated else layers
        norms = 4 * layers if self.norm_bias else 2 * layers
        matrices = [
            Matrix("visual.qkv", hidden, 3 * hidden, Shard.OUTPUTS, layers, HALF),
            Matrix("visual.proj", hidden, hidden, Shard.INPUTS, layers, HALF),
            Matrix("visual.up", hidden, self.inner, Shard.OUTPUTS, ups, HALF),
            Matrix("visual.down", self.inner, hidden, Shard.INPUTS, layers, HALF),
            vector("visual.norms", hidden, count=norms),
        ]
        if self.bias:
            matrices.append(vector("visual.up.bias", self.inner, Shard.OUTPUTS, ups))
            matrices.append(vector("visual.bias", hidden, count=5 * layers))  # qkv, out, down
        return matrices

    def _projectors(self) -> list[Matrix]:
        matrices = []
        for inputs, outputs in self.projector:
            projector = Matrix("visual.projector", inputs, outputs, Shard.OUTPUTS, kind=HALF)
            matrices.append(projector)
            if self.projector_bias:
                matrices.append(vector("visual.projector.bias", outputs))
        return matrices
