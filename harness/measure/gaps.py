"""The gaps between tokens in a window: the figures of an ITL, without the gaps in memory.

Mean, max, n, failures and what is over an SLO's limit (`evidence.Judged`) are exact. Quantiles and
the ends of their intervals are order statistics within 0.1%, from a `LogHistogram`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.figures import OBSERVED, Figures
from harness.measure.log_histogram import LogHistogram
from harness.measure.metrics import lost_gaps
from harness.measure.stats import beyond, design_effect
from harness.measure.walk import inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.figures import Span
    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class GapCounts(Figures):
    """Figures of gaps that were counted."""

    def __init__(self, lost: Ints) -> None:
        """`lost`: tokens that never came, by block: infinite gaps."""
        self.lost, self.n_failed = lost, int(lost.sum())
        self.sum_ns, self.finite, self.max_ns = 0, 0, -1
        self.histograms = {column: LogHistogram() for column in OBSERVED}

    def value_at(self, rank: int, column: str = "ns") -> float:
        return self.histograms[column].at(rank) if rank < self.finite else math.inf

    @property
    def by_block(self) -> Floats:
        sizes = self._per_block(1.0)
        return sizes[sizes > 0]

    def effect(self, q: float) -> float:
        # Of each bin the share that is above, the same in all blocks: all of the higher ones, a
        # part of the one in which the quantile lies. All infinite ones are above.
        _, counts, _ = self.histograms["ns"].totals
        above = np.cumsum(counts[::-1])[::-1] - counts
        share = np.clip((beyond(self.n, q) - self.n_failed - above) / counts, 0, 1)
        hits = self._per_block(share)
        return design_effect(self.by_block, hits[self._per_block(1.0) > 0])

    def _per_block(self, share: Floats | float) -> Floats:
        """The gaps of each block, of each bin that share; and all infinite ones."""
        block, place, counts = self.histograms["ns"].cells
        part = np.broadcast_to(share, len(self.histograms["ns"].totals[0]))[place]
        return np.asarray(np.bincount(block, counts * part, len(self.lost)) + self.lost)


class Gaps(GapCounts):
    """A Walker: the gaps that ended in a span."""

    def __init__(self, table: RecordTable, span: Span, key: str = "itl") -> None:
        """`table`: requests, of which those that failed owe gaps; a thin one will do.

        `key`: of metrics.GAPS.
        """
        self.span, self.key = span, key
        self.start_ns, self.end_ns = span.start_ns, span.end_ns
        rows, owed = lost_gaps(table)
        at = table.done_ns[rows]
        here = (at >= span.start_ns) & (at <= span.end_ns)
        block = (at[here] - span.start_ns) // span.block_ns
        super().__init__(np.bincount(block, owed[here], span.blocks).astype(np.int64))

    def see(self, piece: Piece) -> None:
        """Count a piece's gaps."""
        piece = piece.of(self.key)
        here = inside(piece.end_ns, self.start_ns, self.end_ns)
        blocks = (piece.end_ns[here] - self.start_ns) // self.span.block_ns
        for name, (ns, bins) in piece.columns.items():
            self.histograms[name].add(ns[here], bins[here], blocks if name == "ns" else 0)
        gaps = piece.gap_ns[here]
        self.finite += len(gaps)
        self.sum_ns += int(gaps.sum())
        self.max_ns = max(self.max_ns, int(gaps.max(initial=-1)))


WindowGaps = dict[tuple[int, int], Gaps]  # a window is (settled_ns, end_ns)


def together(parts: Sequence[GapCounts]) -> GapCounts:
    """Several windows of one level as one, their blocks side by side."""
    if len(parts) == 1:
        return parts[0]
    whole = GapCounts(np.concatenate([np.zeros(0, np.int64), *(part.lost for part in parts)]))
    whole.sum_ns = sum(part.sum_ns for part in parts)
    whole.finite = sum(part.finite for part in parts)
    whole.max_ns = max((part.max_ns for part in parts), default=-1)
    blocks = [len(part.lost) for part in parts]
    whole.histograms = {
        name: LogHistogram.side_by_side([part.histograms[name] for part in parts], blocks)
        for name in OBSERVED
    }
    return whole
