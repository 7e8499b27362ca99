"""Durations in logarithmic bins: quantiles within 0.1%, from one pass and in bounded memory.

A bin is at most 1/1024 of its values wide, and each nanosecond below 1,024 has its own bin. Besides
its count a bin keeps the sum of its values: a quantile is the mean of the values in its bin, so it
is exact if they are all equal, and never above the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.records.codec import WHY_PYTHON

if not WHY_PYTHON:
    from harness.records._arrays import count

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints


# 0.1% is far below the intervals of the quantiles, and below the 5% by which the instrument is
# judged. A second pass that made quantiles exact bought digits that nobody prints (decision 11).
MANTISSA_BITS: Final = 10  # 1,024 bins per doubling
_SHIFT: Final = 52 - MANTISSA_BITS
_BIN_OF_ONE: Final = (1023 << MANTISSA_BITS) - 1  # a double's exponent is stored with 1023 added
DURATION_BINS: Final = (54 << MANTISSA_BITS) + 1  # up to 2^53 ns, a hundred days
# Cells per value up to which a dense np.bincount is faster than sorting.
DENSE_CELLS: Final = 4
LEAST_FRESH: Final = 1 << 13  # cells that are not joined yet, at least: 200 kB
CELLS_OBJECTS: Final = 16  # cells as large as the objects that hold some


def duration_bin(ns: Ints) -> Ints:
    """Bin of each duration: 0 for 0 and below, then 1,024 for each doubling; shape as `ns`.

    Read as an integer, the bits of a positive double are its exponent and then its mantissa, which
    grow with its value. Without the lower 42 bits of the mantissa that integer is the bin, up to
    a constant. So no logarithm is computed, and integers up to 2^53 are exact as doubles.
    """
    bins = ns.astype(np.float64).view(np.int64)
    bins >>= _SHIFT
    bins -= _BIN_OF_ONE
    return np.clip(bins, 0, DURATION_BINS - 1, out=bins)


class Cells(NamedTuple):
    """Durations counted by block of time and bin: the cells with a count, ascending."""

    cells: Ints  # block * DURATION_BINS + bin
    counts: Floats  # whole numbers; exact as doubles up to 2^53
    sums_ns: Floats  # of each cell's values

    @classmethod
    def of(cls, ns: Ints, bins: Ints, blocks: Ints | int = 0, weights: Ints | None = None) -> Cells:
        """Count durations with their bins (`duration_bin`) by block, each `weights` times."""
        if not len(ns):
            return cls(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
        # Cells are renumbered within the range of bins that occurs here, so that only a small array
        # is needed. If the values are spread too wide for that, they are sorted instead.
        low = int(bins.min())
        width = int(bins.max() - bins.min()) + 1
        size = (int(np.max(blocks)) + 1) * width
        keys = blocks * width + (bins - low)
        if size > DENSE_CELLS * len(ns) + 4096:
            used, keys = np.unique(keys, return_inverse=True)
        else:
            used = np.arange(size)
        counts, sums = _counted(ns, keys, len(used), weights)
        filled = np.flatnonzero(counts)
        block, bin_above_low = np.divmod(used[filled], width)
        cells = block * DURATION_BINS + low + bin_above_low
        return cls(cells, counts[filled], sums[filled])

    @classmethod
    def joined(cls, parts: Sequence[Cells]) -> Cells:
        """Each cell once, with all that any of them counted."""
        cells, where = np.unique(np.concatenate([p.cells for p in parts]), return_inverse=True)
        counts = _sums(where, np.concatenate([p.counts for p in parts]))
        return cls(cells, counts, _sums(where, np.concatenate([p.sums_ns for p in parts])))


class LogHistogram:
    """Durations counted by block of time and bin. Only cells with a count take memory."""

    def __init__(self) -> None:
        self._whole = Cells.of(np.zeros(0, np.int64), np.zeros(0, np.int64))
        self._fresh: list[Cells] = []  # not joined to it yet
        self._n_fresh = 0  # cells that take as much memory as these
        self._totals: tuple[Ints, Floats, Floats] | None = None

    def add(
        self, ns: Ints, bins: Ints, blocks: Ints | int = 0, weights: Ints | None = None
    ) -> None:
        """As `Cells.of`, to what was counted before."""
        self.add_cells(Cells.of(ns, bins, blocks, weights))

    def add_cells(self, cells: Cells) -> None:
        if not len(cells.cells):
            return
        self._fresh.append(cells)
        self._n_fresh += len(cells.cells) + CELLS_OBJECTS
        self._totals = None
        # Joining sorts all cells, so it waits until there are about as many new ones.
        if self._n_fresh > max(len(self._whole.cells), LEAST_FRESH):
            self._join()

    def _join(self) -> Cells:
        if self._fresh:
            self._whole = Cells.joined([self._whole, *self._fresh])
            self._fresh = []
            self._n_fresh = 0
        return self._whole

    @classmethod
    def concat_blocks(cls, parts: Sequence[LogHistogram], blocks: Sequence[int]) -> LogHistogram:
        """Concatenate histograms along the block axis; `blocks`: how many blocks each one has."""
        joined = cls()
        first_block = 0
        for part, n_blocks in zip(parts, blocks, strict=True):
            own = part._join()  # noqa: SLF001 - of this class
            moved = own._replace(cells=own.cells + first_block * DURATION_BINS)
            joined.add_cells(moved)
            first_block += n_blocks
        return joined

    @property
    def cells(self) -> tuple[Ints, Ints, Floats]:
        """(block, index of its bin in `totals`, count) of each cell with a count."""
        used_bins, _, _ = self.totals
        whole = self._join()
        block = whole.cells // DURATION_BINS
        place = np.searchsorted(used_bins, whole.cells % DURATION_BINS)
        return block, place, whole.counts

    @property
    def totals(self) -> tuple[Ints, Floats, Floats]:
        """(bin, count, mean of its values in ns) of each bin with a count, ascending."""
        if self._totals is None:
            whole = self._join()
            bins, where = np.unique(whole.cells % DURATION_BINS, return_inverse=True)
            counts = _sums(where, whole.counts)
            means_ns = _sums(where, whole.sums_ns) / counts
            self._totals = (bins, counts, means_ns)
        return self._totals

    def at(self, rank: int) -> float:
        """The value with this rank, counted from 0, in ns: within 0.1%."""
        _, counts, means_ns = self.totals
        # The first bin up to whose end there are more than `rank` values.
        place = np.searchsorted(np.cumsum(counts), rank, "right")
        return float(means_ns[place])


def _counted(ns: Ints, keys: Ints, size: int, weights: Ints | None) -> tuple[Floats, Floats]:
    """(how many values, their sum) of each key; as doubles, which whole numbers are up to 2^53."""
    if WHY_PYTHON or weights is not None or ns.dtype != np.int64:
        totals_ns = ns if weights is None else ns * weights
        counted = np.bincount(keys, weights, size).astype(np.float64)
        return counted, np.bincount(keys, totals_ns, size).astype(np.float64)
    counts = np.zeros(size)
    sums = np.zeros(size)
    count(np.ascontiguousarray(ns), keys, counts, sums)
    return counts, sums


def _sums(where: Ints, values: Floats) -> Floats:
    """The values of each place added up."""
    return np.bincount(where, values).astype(np.float64)
