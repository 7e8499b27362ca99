"""ITL by the position of a token in its answer, as later tokens may be slower.

A gap has the position of the token that ends it; the first token ends none. Positions are taken in
ranges: a tenth to either side of 10, 100, 500 and 1,000 for the table, and ten to a decade for the
curve. Answers of different lengths reach different positions, so two ranges are also compared
within the requests that have both.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.log_histogram import LogHistogram
from harness.metrics.scan import EventChunk, within_window
from harness.metrics.statistics import t_quantile
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.records.record_table import RecordTable

POSITIONS: Final = (10, 100, 500, 1000)
REACH: Final = 0.1  # of a position, to either side
PER_DECADE: Final = 10  # points of the curve
FARTHEST: Final = 1_000_000  # tokens
LEAST_GAPS: Final = 20  # a p95 of fewer is their largest
LEAST_REQUESTS: Final = 5  # whose differences have an interval that is of use

_EXPONENTS: Final = np.arange(np.log10(2), np.log10(FARTHEST), 1 / PER_DECADE)
# Rounded, the lowest ones coincide.
EDGES: Final = np.unique(np.round(10**_EXPONENTS).astype(np.int64))
# Looked up for the positions of nearly all answers: six times as fast as a search.
_POINTS: Final = np.searchsorted(EDGES, np.arange(1 << 13), "right") - 1


@dataclass(frozen=True, slots=True)
class PositionRow:
    """The tokens around one position."""

    position: int  # of a token in its answer, counted from 1
    n: int  # gaps that end within a tenth of it
    p50_ms: float  # median gap, ms
    p95_ms: float  # p95 gap, ms
    requests: int = 0  # that also have tokens around the first position of the table
    later_ms: float = nan  # in these, the mean gap here minus that around the first, ms
    later_ci95_ms: tuple[float, float] = (nan, nan)  # its 95% interval

    @property
    def is_compared(self) -> bool:
        """Whether enough requests have tokens around both positions."""
        return not isnan(self.later_ms)

    @property
    def is_slower(self) -> bool:
        """Whether it is shown."""
        return self.later_ci95_ms[0] > 0

    @property
    def is_faster(self) -> bool:
        return self.later_ci95_ms[1] < 0


@dataclass(frozen=True, slots=True)
class PositionPoint:
    """The tokens from one position to another, both included."""

    first: int  # position, counted from 1
    last: int  # position
    n: int  # gaps
    p50_ms: float  # median gap, ms
    p95_ms: float  # p95 gap, ms


@dataclass(frozen=True, slots=True)
class PositionFigures:
    """ITL by token position; empty: no answer was long enough."""

    rows: tuple[PositionRow, ...] = ()  # around the 10th, 100th, 500th and 1,000th token
    curve: tuple[PositionPoint, ...] = ()  # ten points to a decade


class PositionCounter:
    """An EventVisitor: the gaps of a window by position."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.curve = LogHistogram()
        self.around = LogHistogram()
        # of each position but the first: requests, sum and sum of squares of the differences, ns
        self.differences: Floats = np.zeros((len(POSITIONS), 3))

    def add(self, piece: EventChunk) -> None:
        chunk = piece.chunk
        here = within_window(piece.end_ns, self.start_ns, self.end_ns)
        end = piece.ends[here]
        if not len(end):
            return
        all_gaps_ns, all_bins = piece.columns["ns"]
        gap_ns = all_gaps_ns[here]
        bins = all_bins[here]
        row = chunk.request_of_event[end]
        position = _positions(chunk, end, row)
        point = _points(position)
        self.curve.add(gap_ns, bins, point)
        requests = len(chunk.offsets) - 1
        last = int(position.max())
        means_ns = []
        for number, middle in enumerate(POSITIONS):
            if number and last < (1 - REACH) * middle:
                break
            near = np.abs(position - middle) <= REACH * middle
            block = np.full(near.sum(), number)
            self.around.add(gap_ns[near], bins[near], block)
            means_ns.append(_means(row[near], gap_ns[near], requests))
        self._count_differences(means_ns)

    def _count_differences(self, means_ns: list[Floats]) -> None:
        """Of each request's mean gap at each position; a chunk has whole requests."""
        first_ns = means_ns[0]
        for number, mean_ns in enumerate(means_ns):
            has_both = np.isfinite(mean_ns) & np.isfinite(first_ns)
            difference_ns = (mean_ns - first_ns)[has_both]
            squares = (difference_ns**2).sum()
            self.differences[number] += (len(difference_ns), difference_ns.sum(), squares)

    def figures(self) -> PositionFigures:
        """What was counted; positions with fewer than LEAST_GAPS gaps are left out."""
        rows = []
        for number, figures in _quantiles(self.around).items():
            later = self._later(number)
            rows.append(PositionRow(POSITIONS[number], *figures, *later))
        points = []
        for place, figures in _quantiles(self.curve).items():
            if place + 1 < len(EDGES):
                first = int(EDGES[place])
                last = int(EDGES[place + 1]) - 1
                points.append(PositionPoint(first, last, *figures))
        return PositionFigures(tuple(rows), tuple(points))

    def _later(self, number: int) -> tuple[int, float, tuple[float, float]]:
        """(requests, mean difference in ms, its 95% interval), against the first position."""
        n, total, squares = self.differences[number].tolist()
        if number == 0:
            return (0, nan, (nan, nan))
        if n < LEAST_REQUESTS:
            return (int(n), nan, (nan, nan))
        mean_ns = total / n
        # Rounding may leave a variance of nearly nothing below 0.
        variance = max(squares / n - mean_ns**2, 0.0)
        deviation_ns = sqrt(variance * n / (n - 1))
        half_ns = t_quantile(0.975, n - 1) * deviation_ns / sqrt(n)
        ci95_ms = ((mean_ns - half_ns) / MS, (mean_ns + half_ns) / MS)
        return (int(n), mean_ns / MS, ci95_ms)


def _positions(chunk: RecordTable, end: Ints, row: Ints) -> Ints:
    """The position, in the answer, of the token that ends each gap; `row`: its request."""
    if (chunk.tokens == 1).all():
        return np.asarray(end - chunk.offsets[row] + 1)
    tokens_until = np.cumsum(chunk.tokens)
    first_event = chunk.offsets[row]
    before_request = tokens_until[first_event] - chunk.tokens[first_event]
    return np.asarray(tokens_until[end] - before_request)


def _points(position: Ints) -> Ints:
    """The point of the curve that each position belongs to."""
    if position.max() < len(_POINTS):
        return _POINTS[position]
    return np.searchsorted(EDGES, position, "right") - 1


def _means(row: Ints, gap_ns: Ints, requests: int) -> Floats:
    """The mean gap of each request; NaN without one."""
    counts = np.bincount(row, minlength=requests)
    sums = np.bincount(row, gap_ns, minlength=requests)
    means: Floats = np.full(requests, nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def _quantiles(histogram: LogHistogram) -> dict[int, tuple[int, float, float]]:
    """(n, p50 in ms, p95 in ms) of each block with LEAST_GAPS or more."""
    block, place, counts = histogram.cells
    _, _, means_ns = histogram.totals
    figures = {}
    for number in np.unique(block):
        own = block == number
        upto_bin = np.cumsum(counts[own])
        n = int(upto_bin[-1])
        if n >= LEAST_GAPS:
            values_ms = means_ns[place[own]] / MS
            p50_ms = float(values_ms[np.searchsorted(upto_bin, 0.5 * n)])
            p95_ms = float(values_ms[np.searchsorted(upto_bin, 0.95 * n)])
            figures[int(number)] = (n, p50_ms, p95_ms)
    return figures
