"""Exact order statistics of many integers that are never all in memory: they are looked at twice.

The first look counts in fine bins (`bin_of`: at most a thousandth of the value wide), by block of
time. From these counts it is known in which bin each wanted rank lies; the second look keeps what
falls into those few bins, as counts of each single value where that takes less room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

FINE: Final = 10  # bits after the leading one that tell bins apart
_SHIFT: Final = 52 - FINE  # of a float's 52
_ZERO: Final = (1023 << FINE) - 1  # a float's exponent is 1023 more than the power of two
BINS: Final = (54 << FINE) + 1  # up to 2^53 ns, a hundred days
SPARSE: Final = 4  # cells a value: where a count of all would have more, values are sorted instead


def bin_of(ns: Ints) -> Ints:
    """Bin of each value: 0 for 0 (and below), then 1,024 for each doubling."""
    bins = ns.astype(np.float64).view(np.int64)
    bins >>= _SHIFT
    bins -= _ZERO
    return np.clip(bins, 0, BINS - 1, out=bins)


def bin_edges(bins: Ints) -> tuple[Ints, Ints]:
    """(least value of each bin, least value above it)."""
    low, above = (
        np.where(b > 0, np.ceil(((b + _ZERO) << _SHIFT).view(np.float64)), 0).astype(np.int64)
        for b in (bins, bins + 1)
    )
    return low, above


class Spread:
    """Counts of values by (block, bin), then the values at wanted ranks.

    `count` everything, `want` ranks, show everything again to `find`, then ask `at`.
    """

    def __init__(self) -> None:
        """Nothing counted."""
        self._cells = np.zeros(0, np.int64)  # block * BINS + bin, ascending
        self._counts = np.zeros(0, np.int64)
        self._found: _Found | None = None

    def count(self, bins: Ints, blocks: Ints | int = 0) -> None:
        """First look: bins of some values, and their blocks."""
        if not len(bins):
            return
        low, width = int(bins.min()), int(bins.max() - bins.min()) + 1
        top = int(np.max(blocks)) + 1
        if top * width <= SPARSE * len(bins) + 4096:
            counts = np.bincount(blocks * width + (bins - low), minlength=top * width)
            used = np.flatnonzero(counts)
            cells, counts = used // width * BINS + used % width + low, counts[used]
        else:
            cells, counts = np.unique(blocks * BINS + bins, return_counts=True)
        both = np.concatenate([self._cells, cells])
        self._cells, where = np.unique(both, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(where, weights).astype(np.int64)

    @property
    def cells(self) -> tuple[Ints, Ints, Ints]:
        """(block, bin, count) of each cell with values, by block, then bin."""
        return self._cells // BINS, self._cells % BINS, self._counts

    @property
    def bins(self) -> tuple[Ints, Ints]:
        """(bin, values up to and including it), of all blocks together."""
        bins, where = np.unique(self._cells % BINS, return_inverse=True)
        counts = np.bincount(where, self._counts, minlength=len(bins))
        return bins, np.cumsum(counts).astype(np.int64)

    def want(self, ranks: Iterable[int]) -> None:
        """Which order statistics, from 0, are to be found."""
        bins, upto = self.bins
        wanted = np.unique(np.searchsorted(upto, np.fromiter(ranks, np.int64), "right"))
        self._found = _Found(bins[wanted], np.diff(upto, prepend=0)[wanted], upto[wanted])

    def find(self, values: Ints, bins: Ints) -> None:
        """Second look, after `want`: the same values again, with their bins."""
        assert self._found is not None  # noqa: S101 - `want` comes before
        self._found.see(values, bins)

    def at(self, rank: int) -> int:
        """The value at a wanted rank."""
        assert self._found is not None  # noqa: S101 - as above
        return self._found.at(rank)

    def up_to(self, value: float) -> int:
        """How many values are at most `value`, which lies in a bin of a wanted rank or between."""
        bins, upto = self.bins
        assert self._found is not None  # noqa: S101 - as above
        here = int(bin_of(np.array([value], np.float64).astype(np.int64))[0])
        place = int(np.searchsorted(bins, here))
        below = int(upto[place - 1]) if place else 0
        if place == len(bins) or bins[place] != here:
            return below
        return below + self._found.up_to(here, value)


class _Found:
    """What fell into some bins; `counts` values are to come to each, so that `upto` are known."""

    def __init__(self, bins: Ints, counts: Ints, upto: Ints) -> None:
        self.bins = bins
        self.before = upto - counts
        self.upto = upto
        self.low, above = bin_edges(bins)
        width = above - self.low
        self.dense = width <= 2 * counts  # four bytes a value that may come, or eight for each
        room = np.where(self.dense, width, 0)
        self.start = np.cumsum(room) - room
        self.room = room
        self.hits = np.zeros(int(room.sum()), np.int32)
        self.rest: list[tuple[Ints, Ints]] = []  # (bin's place, value)

    def see(self, values: Ints, bins: Ints) -> None:
        place = np.searchsorted(self.bins, bins).clip(max=max(len(self.bins) - 1, 0))
        here = self.bins[place] == bins if len(self.bins) else np.zeros(len(bins), bool)
        place, values = place[here], values[here]
        dense = self.dense[place]
        above = values[dense] - self.low[place[dense]]
        spot = self.start[place[dense]] + np.maximum(above, 0)  # bin 0 has what is below 0 too
        if len(spot):
            low = int(spot.min())
            counts = np.bincount(spot - low)
            self.hits[low : low + len(counts)] += counts.astype(np.int32)
        if not dense.all():
            self.rest.append((place[~dense], values[~dense]))

    def of(self, place: int) -> tuple[Ints, Ints]:
        """(values ascending, how many are at most each) of one bin."""
        if self.dense[place]:
            counts = self.hits[self.start[place] : self.start[place] + self.room[place]]
            some = np.flatnonzero(counts)
            return some + self.low[place], np.cumsum(counts[some], dtype=np.int64)
        mine = [values[where == place] for where, values in self.rest]
        ordered = np.sort(np.concatenate(mine)) if mine else np.zeros(0, np.int64)
        return ordered, np.arange(1, len(ordered) + 1)

    def at(self, rank: int) -> int:
        place = int(np.searchsorted(self.upto, rank, "right"))
        values, upto = self.of(place)
        return int(values[np.searchsorted(upto, rank - self.before[place], "right")])

    def up_to(self, bin_: int, value: float) -> int:
        values, upto = self.of(int(np.searchsorted(self.bins, bin_)))
        count = int(np.searchsorted(values, value, "right"))
        return int(upto[count - 1]) if count else 0
