"""The gaps between tokens in some windows: the figures of an ITL, without the gaps in memory.

A `Gaps` is a Walker that is shown everything twice, by `count_gaps`. Quantiles, mean, max and n are
exact. An interval's ends are order statistics too, but the design effect that says which of them is
reckoned from bins of a thousandth of the value: within a bin, all blocks are taken to be alike.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np

from harness.measure.metrics import lost_gaps
from harness.measure.spread import Spread
from harness.measure.stats import (
    QUANTILES,
    Interval,
    beyond,
    design_effect,
    interval_ranks,
    rank_of,
)
from harness.measure.walk import Walker, inside, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.recorded import Recorded
    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

GROUPS: Final = (
    512  # of bins, for the design effects: finer towards the top, where the quantiles are
)
COLUMNS: Final = ("gap_ns", "least_ns", "most_ns")  # of a Piece
INF: Final = float("inf")


class Span(NamedTuple):
    """A window, and the length of its time blocks; several of one level are counted together."""

    start_ns: int
    end_ns: int
    block_ns: int


class Gaps:
    """Gaps that ended in the spans, and one infinite one for each token that failed to come."""

    def __init__(
        self, table: RecordTable, spans: Sequence[Span], more: Sequence[float] = ()
    ) -> None:
        """`table`: the requests (of any table, for their losses); `more`: quantiles wanted too."""
        self.spans = list(spans)
        self.start_ns = min((s.start_ns for s in spans), default=0)
        self.end_ns = max((s.end_ns for s in spans), default=-1)
        self.qs = sorted({*QUANTILES.values(), *more})
        self.sum_ns, self.finite, self.max_ns = 0, 0, -1
        self._spreads = {name: Spread() for name in COLUMNS}
        self._first = np.cumsum(
            [0, *(-(-(s.end_ns - s.start_ns + 1) // s.block_ns) for s in spans)]
        )
        self._lost = self._losses(table)
        self._ends: dict[float, tuple[int, int | None]] = {}  # ranks of each interval's ends
        self._second = False

    def _losses(self, table: RecordTable) -> Ints:
        """Infinite gaps by block."""
        lost = np.zeros(int(self._first[-1]), np.int64)
        rows, owed = lost_gaps(table)
        at = table.done_ns[rows]
        for first, span in zip(self._first, self.spans, strict=False):
            here = (at >= span.start_ns) & (at <= span.end_ns)
            np.add.at(lost, first + (at[here] - span.start_ns) // span.block_ns, owed[here])
        return lost

    def see(self, piece: Piece) -> None:
        """Either look at a piece."""
        for first, span in zip(self._first, self.spans, strict=False):
            here = inside(piece.end_ns, span.start_ns, span.end_ns)
            if self._second:
                for name, (values, bins) in piece.columns.items():
                    self._spreads[name].find(values[here], bins[here])
                continue
            blocks = first + (piece.end_ns[here] - span.start_ns) // span.block_ns
            for name, (_, bins) in piece.columns.items():
                self._spreads[name].count(bins[here], blocks if name == "gap_ns" else 0)
            gaps = piece.gap_ns[here]
            self.finite += len(gaps)
            self.sum_ns += int(gaps.sum())
            self.max_ns = max(self.max_ns, int(gaps.max(initial=-1)))

    def look_again(self) -> None:
        """Between the looks: which ranks matter is known now."""
        self._second = True
        if self.n:
            blocks = len(self._grid[0])
            for q in self.qs:
                self._ends[q] = interval_ranks(self.n, q, self.effect(q), blocks)
        own = [rank_of(self.n, q) for q in self.qs]
        ends = [rank for pair in self._ends.values() for rank in pair if rank is not None]
        for name, spread in self._spreads.items():
            ranks = [*own, *ends] if name == "gap_ns" else own
            spread.want({rank for rank in ranks if rank < self.finite})

    # what it says

    @property
    def n(self) -> int:
        """Gaps, infinite ones included."""
        return self.finite + self.n_failed

    @property
    def n_failed(self) -> int:
        """Tokens that never came."""
        return int(self._lost.sum())

    @property
    def mean_ns(self) -> float:
        """Of those that ended; NaN without any."""
        return self.sum_ns / self.finite if self.finite else float("nan")

    @property
    def longest_ns(self) -> float:
        """Of those that ended; NaN without any."""
        return float(self.max_ns) if self.finite else float("nan")

    def quantile(self, q: float, column: str = "gap_ns") -> float:
        """One of QUANTILES or those asked for, as `stats.quantile`; NaN without any."""
        return self._at(column, rank_of(self.n, q)) if self.n else float("nan")

    def instrument(self, q: float) -> tuple[float, float]:
        """Between which bounds the quantile lies by the stamps."""
        return self.quantile(q, "least_ns"), self.quantile(q, "most_ns")

    def interval(self, q: float) -> Interval | None:
        """Of one of QUANTILES or those asked for, as `stats.interval_ranks`; None without any."""
        if q not in self._ends:
            return None
        lo, hi = self._ends[q]
        return Interval(self._at("gap_ns", lo), None if hi is None else self._at("gap_ns", hi))

    def effect(self, q: float) -> float:
        """Design effect of those above any quantile."""
        sizes, grid, upto = self._grid
        before = np.concatenate([[0], upto[:-1]])
        # by group, the share of its gaps that is above; of infinite ones, which are all alike, all
        above = beyond(self.n, q) - (self.n - upto)
        part = np.clip(above / np.maximum(upto - before, 1), 0, 1)
        part[-1] = 1
        return design_effect(sizes, grid @ part)

    @property
    def shares(self) -> tuple[Ints, Floats]:
        """(bins that gaps lie in, ascending; the share of all gaps up to each)."""
        bins, upto = self._spreads["gap_ns"].bins
        return bins, upto / max(self.n, 1)

    # by block

    @cached_property
    def _grid(self) -> tuple[Floats, Floats, Ints]:
        """(gaps of each block that has any, those by group of bins, all up to each group)."""
        blocks, bins, counts = self._spreads["gap_ns"].cells
        used_bins, upto = self._spreads["gap_ns"].bins
        groups = _groups(upto, self.n)
        top = len(groups)
        column = np.searchsorted(groups, np.searchsorted(used_bins, bins))
        grid = np.zeros((len(self._lost), top + 1))
        np.add.at(grid, (blocks, column), counts)
        grid[:, top] = self._lost
        grid = grid[grid.any(axis=1)]
        return grid.sum(axis=1), grid, np.concatenate([upto[groups], [self.n]])

    # by rank

    def _at(self, column: str, rank: int) -> float:
        return float(self._spreads[column].at(rank)) if rank < self.finite else INF


def _groups(upto: Ints, n: int) -> Ints:
    """The last bin of each group: at most GROUPS, the higher the fewer gaps in it."""
    if not len(upto):
        return np.zeros(0, np.int64)
    edges = n * (1 - (1 - np.linspace(0, 1, GROUPS + 1)[1:]) ** 2)
    last = np.searchsorted(upto, np.minimum(np.ceil(edges), upto[-1]))
    return np.unique(np.append(last, len(upto) - 1))


class Twice(Walker, Protocol):
    """A walker that must see everything twice."""

    finite: int  # of the first look: 0, and there is nothing to look for

    def look_again(self) -> None:
        """The first look is over."""


def count_gaps(recorded: Recorded, gaps: Sequence[Twice], also: Sequence[Walker] = ()) -> None:
    """Both looks for all of them; `also` sees the first."""
    walk(recorded, [*gaps, *also])
    for one in gaps:
        one.look_again()
    walk(recorded, [one for one in gaps if one.finite])
