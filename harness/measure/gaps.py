"""The gaps between tokens in a window: the figures of an ITL, without the gaps in memory.

Mean, max, n, failures and what is over an SLO's limit (`evidence.Judged`) are exact. Quantiles and
the ends of their intervals are order statistics within 0.1%, from a `LogHistogram`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.measure.log_histogram import LogHistogram
from harness.measure.metrics import lost_gaps
from harness.measure.stats import Interval, beyond, design_effect, interval_ranks, rank_of
from harness.measure.walk import GAP_COLUMNS, inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

INF: Final = float("inf")


class Span(NamedTuple):
    """A window, and the length of its time blocks."""

    start_ns: int
    end_ns: int
    block_ns: int

    @property
    def blocks(self) -> int:
        """How many there are."""
        return -(-(self.end_ns - self.start_ns + 1) // self.block_ns)


class GapCounts:
    """Gaps by block of time: `Figures` of what was counted. +inf: a token that never came."""

    def __init__(self, lost: Ints) -> None:
        """`lost`: how many never came, by block."""
        self.lost = lost
        self.sum_ns, self.finite, self.max_ns = 0, 0, -1
        self.histograms = {name: LogHistogram() for name in GAP_COLUMNS}

    @property
    def n(self) -> int:
        """Gaps, infinite ones included."""
        return self.finite + self.n_failed

    @property
    def n_failed(self) -> int:
        """Tokens that never came."""
        return int(self.lost.sum())

    @property
    def mean_ns(self) -> float:
        """Of those that ended; NaN without any."""
        return self.sum_ns / self.finite if self.finite else float("nan")

    @property
    def longest_ns(self) -> float:
        """Of those that ended; NaN without any."""
        return float(self.max_ns) if self.finite else float("nan")

    def quantile(self, q: float, column: str = "gap_ns") -> float:
        """As `stats.quantile`, within 0.1%; NaN without any."""
        return self._at(rank_of(self.n, q), column) if self.n else float("nan")

    def instrument(self, q: float) -> tuple[float, float]:
        """Between which bounds the quantile lies by the stamps."""
        # within a bin the mean of the bounds may lie on the other side of the gaps' mean
        value = self.quantile(q)
        low, high = self.quantile(q, "least_ns"), self.quantile(q, "most_ns")
        return min(low, value), max(high, value)

    def interval(self, q: float) -> Interval | None:
        """Its sampling interval, as `stats.interval_ranks`; None without any gap."""
        if not self.n:
            return None
        blocks = int((self.by_block > 0).sum())
        lo, hi = interval_ranks(self.n, q, self.effect(q), blocks)
        return Interval(self._at(lo), None if hi is None else self._at(hi))

    def effect(self, q: float) -> float:
        """Design effect of those above a quantile."""
        # Of each bin the share that is above, the same in all blocks: all of the higher ones, a
        # part of the one in which the quantile lies. All infinite ones are above.
        _, counts, _ = self.histograms["gap_ns"].totals
        above = np.cumsum(counts[::-1])[::-1] - counts
        share = np.clip((beyond(self.n, q) - self.n_failed - above) / counts, 0, 1)
        block, place, counts = self.histograms["gap_ns"].cells
        hits = np.bincount(block, counts * share[place], len(self.lost)) + self.lost
        some = self.by_block > 0
        return design_effect(self.by_block[some], hits[some])

    @property
    def by_block(self) -> Floats:
        """Gaps of each block, infinite ones included."""
        block, _, counts = self.histograms["gap_ns"].cells
        return np.asarray(np.bincount(block, counts, len(self.lost)) + self.lost)

    def _at(self, rank: int, column: str = "gap_ns") -> float:
        return self.histograms[column].at(rank) if rank < self.finite else INF


class Gaps(GapCounts):
    """A Walker: the gaps that ended in a span."""

    def __init__(self, table: RecordTable, span: Span) -> None:
        """`table`: requests, of which those that failed owe gaps; a thin one will do."""
        self.span = span
        self.start_ns, self.end_ns = span.start_ns, span.end_ns
        rows, owed = lost_gaps(table)
        at = table.done_ns[rows]
        here = (at >= span.start_ns) & (at <= span.end_ns)
        block = (at[here] - span.start_ns) // span.block_ns
        super().__init__(np.bincount(block, owed[here], span.blocks).astype(np.int64))

    def see(self, piece: Piece) -> None:
        """Count a piece's gaps."""
        here = inside(piece.end_ns, self.start_ns, self.end_ns)
        blocks = (piece.end_ns[here] - self.start_ns) // self.span.block_ns
        for name, (ns, bins) in piece.columns.items():
            self.histograms[name].add(ns[here], bins[here], blocks if name == "gap_ns" else 0)
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
        for name in GAP_COLUMNS
    }
    return whole
