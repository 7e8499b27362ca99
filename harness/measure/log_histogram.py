"""Durations in logarithmic bins: quantiles within 0.1%, from one pass and in bounded memory.

A bin is at most 1/1024 of its values wide, and nanoseconds below 1,024 have a bin each. Beside its
count a bin keeps the sum of its values: a quantile is the mean of the values in its bin, so it is
exact where they are all alike, and never above the largest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MANTISSA_BITS: Final = 10  # that tell the bins of one doubling apart: 1,024 of them
_SHIFT: Final = 52 - MANTISSA_BITS
_BIN_OF_ONE: Final = (1023 << MANTISSA_BITS) - 1  # a double's exponent is stored with 1023 added
BINS: Final = (54 << MANTISSA_BITS) + 1  # up to 2^53 ns, a hundred days
DENSE_CELLS: Final = 4  # for each value: up to here counting all cells is faster than sorting


def bin_of(ns: Ints) -> Ints:
    """Bin of each duration: 0 for 0 and below, then 1,024 for each doubling; shape as `ns`.

    Read as an integer, the bits of a positive double are its exponent and then its mantissa, which
    grow with its value. Without the lower 42 bits of the mantissa that integer is the bin, but for
    a constant: no logarithm is computed, and integers up to 2^53 are exact as doubles.
    """
    bins = ns.astype(np.float64).view(np.int64)
    bins >>= _SHIFT
    bins -= _BIN_OF_ONE
    return np.clip(bins, 0, BINS - 1, out=bins)


class LogHistogram:
    """Durations counted by block of time and bin. Only cells that hold any take memory."""

    def __init__(self) -> None:
        self._cells = np.zeros(0, np.int64)  # block * BINS + bin, ascending
        self._counts = np.zeros(0)  # whole numbers; exact as doubles up to 2^53
        self._sums = np.zeros(0)  # of each cell's values, ns
        self._totals: tuple[Ints, Floats, Floats] | None = None

    def add(
        self, ns: Ints, bins: Ints, blocks: Ints | int = 0, weights: Ints | None = None
    ) -> None:
        """Count durations with their bins (`bin_of`) in blocks, each once or `weights` times."""
        if not len(ns):
            return
        # Cells are numbered anew, by the range of bins that occurs here, so that np.bincount needs
        # a small array. Where the values are spread too wide for that, they are sorted instead.
        low, width = int(bins.min()), int(bins.max() - bins.min()) + 1
        keys = blocks * width + (bins - low)
        size = (int(np.max(blocks)) + 1) * width
        used = np.arange(size)
        if size > DENSE_CELLS * len(ns) + 4096:
            used, keys = np.unique(keys, return_inverse=True)
        counts = np.bincount(keys, weights, len(used))
        sums = np.bincount(keys, ns if weights is None else ns * weights, len(used))
        some = np.flatnonzero(counts)
        cells = used[some] // width * BINS + used[some] % width + low
        self._merge(cells, counts[some].astype(np.float64), sums[some].astype(np.float64))

    def _merge(self, cells: Ints, counts: Floats, sums: Floats) -> None:
        both = np.concatenate([self._cells, cells])
        self._cells, where = np.unique(both, return_inverse=True)
        self._counts = _sums(where, np.concatenate([self._counts, counts]))
        self._sums = _sums(where, np.concatenate([self._sums, sums]))
        self._totals = None

    @classmethod
    def side_by_side(cls, parts: Sequence[LogHistogram], blocks: Sequence[int]) -> LogHistogram:
        """One histogram of several, whose numbers of blocks are given: their blocks in a row."""
        whole = cls()
        first = 0
        for part, number in zip(parts, blocks, strict=True):
            whole._merge(part._cells + first * BINS, part._counts, part._sums)  # noqa: SLF001
            first += number
        return whole

    @property
    def cells(self) -> tuple[Ints, Ints, Floats]:
        """(block, place of its bin in `totals`, count) of each cell that holds any."""
        bins = self._cells % BINS
        return self._cells // BINS, np.searchsorted(self.totals[0], bins), self._counts

    @property
    def totals(self) -> tuple[Ints, Floats, Floats]:
        """(bin, count, mean of its values in ns) of each bin that holds any, ascending."""
        if self._totals is None:
            bins, where = np.unique(self._cells % BINS, return_inverse=True)
            counts = _sums(where, self._counts)
            self._totals = bins, counts, _sums(where, self._sums) / counts
        return self._totals

    def at(self, rank: int) -> float:
        """The value of a rank, counted from 0, in ns: within 0.1%."""
        _, counts, means = self.totals
        return float(means[np.searchsorted(np.cumsum(counts), rank, "right")])


def _sums(where: Ints, values: Floats) -> Floats:
    """The values of each place added up."""
    return np.bincount(where, values).astype(np.float64)
