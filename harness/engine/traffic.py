"""Lengths of simulated requests: lognormal around their means, the same for the same seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH: Final = 1024


@dataclass(frozen=True, slots=True)
class Traffic:
    """Mean tokens and their coefficient of variation (0: all the same)."""

    prompt_tokens: int = 256
    output_tokens: int = 128
    variation: float = 0.5
    most: int = 8192  # prompt and output together never exceed this

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endless (prompt, output) pairs."""
        rng = np.random.default_rng([seed, 2])
        sigma = float(np.sqrt(np.log(1 + self.variation**2)))
        while True:
            draws = np.exp(sigma * rng.standard_normal((BATCH, 2)) - sigma**2 / 2)
            means = np.array([self.prompt_tokens, self.output_tokens])
            pairs = np.maximum(np.rint(draws * means), [1, 2]).astype(np.int64)
            pairs = np.minimum(pairs, self.most // 2)
            yield from zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True)
