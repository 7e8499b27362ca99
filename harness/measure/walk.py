"""One way through all events, for many windows at a time.

Whoever needs each token is a Walker: it is shown one chunk after another, and keeps counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from harness.measure.metrics import inner_events
from harness.measure.spread import bin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.recorded import Recorded
    from harness.measure.table import RecordTable

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Piece:
    """The events of a chunk and the gaps that they end; computed once, when first asked for."""

    chunk: RecordTable

    @cached_property
    def ends(self) -> Ints:
        """Flat indices of the events that end a gap."""
        return inner_events(self.chunk)

    @cached_property
    def end_ns(self) -> Ints:
        """When each gap ended."""
        return self.chunk.at_ns[self.ends]

    @cached_property
    def gap_ns(self) -> Ints:
        """Each gap, by the stamps."""
        return self.end_ns - self.chunk.at_ns[self.ends - 1]

    @cached_property
    def least_ns(self) -> Ints:
        """What each gap was at least."""
        gaps = self.chunk.not_before_ns[self.ends] - self.chunk.at_ns[self.ends - 1]
        return gaps.clip(min=0)

    @cached_property
    def most_ns(self) -> Ints:
        """What each gap was at most."""
        return self.end_ns - self.chunk.not_before_ns[self.ends - 1]

    @cached_property
    def columns(self) -> dict[str, tuple[Ints, Ints]]:
        """(gaps, their bins) by the stamps, at least and at most."""
        names = ("gap_ns", "least_ns", "most_ns")
        return {name: (gaps := getattr(self, name), bin_of(gaps)) for name in names}


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
        """Nothing seen yet."""
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
