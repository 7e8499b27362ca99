"""One way through all events, for many windows at a time.

Whoever needs each token is a Walker: it is shown one chunk after another, and keeps counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.measure.log_histogram import bin_of
from harness.measure.metrics import GAPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.metrics import TokenGaps
    from harness.measure.recorded import Recorded
    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """The events of a chunk and the gaps that they end, computed once, when first asked for."""

    chunk: RecordTable
    key: str = "itl"  # of GAPS
    _others: dict[str, Piece] = field(default_factory=dict)

    def of(self, key: str) -> Piece:
        """The same events with the gaps of another latency."""
        if key not in self._others:
            other = Piece(self.chunk, key)
            # latencies that differ only where events carry several tokens share their bins
            same = np.array_equal(other.gap_ns, self.gap_ns)
            self._others[key] = self if same else other
        return self._others[key]

    @cached_property
    def _gaps(self) -> TokenGaps:
        return GAPS[self.key](self.chunk)

    @property
    def ends(self) -> Ints:
        """Flat indices of the events that end a gap."""
        return self._gaps.end

    @property
    def end_ns(self) -> Ints:
        """When each gap ended."""
        return self._gaps.at_ns

    @property
    def gap_ns(self) -> Ints:
        """Each gap, by the stamps."""
        return self._gaps.ns

    @property
    def least_ns(self) -> Ints:
        """What each gap was at least."""
        return self._gaps.least_ns

    @property
    def most_ns(self) -> Ints:
        """What each gap was at most."""
        return self._gaps.most_ns

    @cached_property
    def tokens(self) -> Ints:
        """How many tokens the event that ended each gap carried."""
        return self.chunk.tokens[self.ends]

    @cached_property
    def columns(self) -> dict[str, tuple[Ints, Ints]]:
        """(gaps, their bins), named as in `Observed`."""
        gaps = {"ns": self.gap_ns, "lo_ns": self.least_ns, "hi_ns": self.most_ns}
        return {name: (ns, bin_of(ns)) for name, ns in gaps.items()}


class Walker(Protocol):
    """Sees the pieces that have an event from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int

    def see(self, piece: Piece) -> None:
        """Count what lies between the two; called in any order of time."""


def walk(recorded: Recorded, walkers: Sequence[Walker]) -> None:
    """Show every walker what there is of its time."""
    if not walkers:
        return
    for chunk in recorded.chunks():
        if not len(chunk.at_ns):
            continue
        first, last = chunk.at_ns.min(), chunk.at_ns.max()
        piece = Piece(chunk)
        for walker in walkers:
            if walker.start_ns <= last and first <= walker.end_ns:
                walker.see(piece)


def inside(at_ns: Ints, start_ns: int, end_ns: int) -> Bools | slice:
    """Which instants lie in [start, end]; everything as a slice, which copies nothing."""
    if len(at_ns) and start_ns <= at_ns.min() and at_ns.max() <= end_ns:
        return slice(None)
    return np.asarray((at_ns >= start_ns) & (at_ns <= end_ns))


class Arrivals:
    """Events and tokens that arrived between two instants, and how many have exact stamps."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.events = self.exact = self.tokens = 0

    def see(self, piece: Piece) -> None:
        """Count the events of a piece."""
        chunk = piece.chunk
        here = inside(chunk.at_ns, self.start_ns, self.end_ns)
        at, low = chunk.at_ns[here], chunk.not_before_ns[here]
        self.events += len(at)
        self.exact += int((at == low).sum())
        self.tokens += int(chunk.tokens[here].sum())
