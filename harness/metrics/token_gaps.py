"""The statistics of ITL in a window, without holding the gaps in memory.

Mean, max, n, failures and the share over an SLO's limit are exact. Quantiles
and the ends of their intervals are order statistics within 0.1%, from a `LogHistogram`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from harness.core.arrays import between
from harness.metrics.latency_figures import BOUND_COLUMNS, BlockedWindow, LatencyFigures
from harness.metrics.log_histogram import Cells, LogHistogram
from harness.metrics.metrics import lost_gaps
from harness.metrics.scan import EventChunk, within_window
from harness.metrics.statistics import design_effect, tail_size

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Floats, Ints
    from harness.records.record_table import RecordTable


class Group(NamedTuple):
    """Requests that have one of these values in a column: a row of a mix, a name."""

    column: str  # of RecordTable
    values: Ints

    def rows(self, table: RecordTable) -> Bools:
        return np.isin(getattr(table, self.column), self.values)


# Gaps are counted, not kept: as objects and tables, the sixty million tokens of a ten-minute search
# at 100,000 tokens/s took 20 GB (decision 11).
class GapCounter(LatencyFigures):
    def __init__(self, lost: Ints) -> None:
        """`lost`: tokens that never arrived, per block; each is an infinite gap."""
        self.lost = lost
        self.n_failed = int(lost.sum())
        self.sum_ns = 0
        self.finite = 0
        self.max_ns = -1
        self.histograms = {column: LogHistogram() for column in BOUND_COLUMNS}

    def value_at(self, rank: int, column: str = "ns") -> float:
        # Tokens that never arrived are infinite gaps, which rank above all others.
        if rank >= self.finite:
            return math.inf
        return self.histograms[column].at(rank)

    @property
    def block_sizes(self) -> Floats:
        sizes = self._per_block(1.0)
        return sizes[sizes > 0]

    def effect(self, q: float) -> float:
        # The share of each bin that lies above the quantile, assumed equal in all blocks: 1 for the
        # higher bins, a part of the bin that holds the quantile. All infinite gaps lie above.
        _, counts, _ = self.histograms["ns"].totals
        from_bin_up = np.cumsum(counts[::-1])[::-1]
        in_higher_bins = from_bin_up - counts
        finite_tail = tail_size(self.n, q) - self.n_failed
        share = np.clip((finite_tail - in_higher_bins) / counts, 0, 1)
        hits = self._per_block(share)
        sizes = self._per_block(1.0)
        has_any = sizes > 0
        return design_effect(sizes[has_any], hits[has_any])

    def _per_block(self, share: Floats | float) -> Floats:
        """Gaps per block, each bin weighted by its share, plus all infinite ones."""
        block, place, counts = self.histograms["ns"].cells
        bins, _, _ = self.histograms["ns"].totals
        share_of_cell = np.broadcast_to(share, len(bins))[place]
        finite = np.bincount(block, counts * share_of_cell, len(self.lost))
        return np.asarray(finite + self.lost)


class WindowGapCounter(GapCounter):
    """An EventVisitor: the gaps that ended in a span."""

    def __init__(
        self,
        table: RecordTable,
        span: BlockedWindow,
        key: str = "itl",
        group: Group | None = None,
    ) -> None:
        """`table`: the requests, for the gaps of failed ones (thinned out is enough).

        `key`: of metrics.GAPS. `group`: of these requests alone.
        """
        self.span = span
        self.key = key
        self.group = group
        self.start_ns = span.start_ns
        self.end_ns = span.end_ns
        rows, lost = lost_gaps(table)
        failed_ns = table.done_ns[rows]
        here = between(failed_ns, span.start_ns, span.end_ns)
        block = (failed_ns[here] - span.start_ns) // span.block_ns
        lost_per_block = np.bincount(block, lost[here], span.blocks)
        super().__init__(lost_per_block.astype(np.int64))

    def add(self, piece: EventChunk) -> None:
        piece = piece.of(self.key)
        if self.group is None:
            # Latencies whose gaps are the same here are also counted alike.
            counted = piece.shared(self.span, lambda: self._counted(piece))
        else:
            counted = self._counted(piece)
        for column, cells in counted.cells.items():
            self.histograms[column].add_cells(cells)
        self.finite += counted.n
        self.sum_ns += counted.sum_ns
        self.max_ns = max(self.max_ns, counted.max_ns)

    def _counted(self, piece: EventChunk) -> _CountedGaps:
        here = within_window(piece.end_ns, self.start_ns, self.end_ns)
        if self.group is not None:
            request = piece.chunk.request_of_event[piece.ends]
            of_group = self.group.rows(piece.chunk)[request]
            here = of_group if isinstance(here, slice) else of_group & here
        cells = {}
        for column, (ns, bins) in piece.columns.items():
            # blocks are of the values; a stamp's bounds need only their quantiles
            blocks: Ints | int = 0
            if column == "ns":
                blocks = (piece.end_ns[here] - self.start_ns) // self.span.block_ns
            cells[column] = Cells.of(ns[here], bins[here], blocks)
        gap_ns = piece.gap_ns[here]
        longest_ns = int(gap_ns.max(initial=-1))
        return _CountedGaps(cells, len(gap_ns), int(gap_ns.sum()), longest_ns)


class _CountedGaps(NamedTuple):
    """The gaps of a chunk that ended in a span."""

    cells: dict[str, Cells]  # by column of bounds
    n: int
    sum_ns: int
    max_ns: int


WindowGaps = dict[tuple[int, int], WindowGapCounter]  # a window is (settled_ns, end_ns)


def pool_gaps(parts: Sequence[GapCounter]) -> GapCounter:
    """Several windows of one level as one, their blocks side by side."""
    if len(parts) == 1:
        return parts[0]
    no_blocks = np.zeros(0, np.int64)
    lost = [part.lost for part in parts]
    # np.concatenate refuses an empty list.
    pooled = GapCounter(np.concatenate([no_blocks, *lost]))
    pooled.sum_ns = sum(part.sum_ns for part in parts)
    pooled.finite = sum(part.finite for part in parts)
    pooled.max_ns = max((part.max_ns for part in parts), default=-1)
    blocks = [len(part.lost) for part in parts]
    for name in BOUND_COLUMNS:
        histograms = [part.histograms[name] for part in parts]
        pooled.histograms[name] = LogHistogram.concat_blocks(histograms, blocks)
    return pooled
