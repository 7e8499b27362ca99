"""One pass through all events, for many windows at a time.

Everything that needs each token is an EventVisitor: it is shown one chunk after another and keeps
counts. So the events are decoded once, and the gaps of a chunk are computed once for all visitors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from harness.core.arrays import between
from harness.metrics.log_histogram import duration_bin
from harness.metrics.metrics import GAPS

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints
    from harness.metrics.event_gaps import TokenGaps
    from harness.metrics.record_source import RecordSource
    from harness.records.record_table import RecordTable


T = TypeVar("T")


@dataclass(frozen=True)
class EventChunk:
    """The events of a chunk and the gaps that they end, computed once, on first use."""

    chunk: RecordTable
    key: str = "itl"  # of GAPS
    _others: dict[str, EventChunk | None] = field(default_factory=dict)
    _shared: dict[Hashable, Any] = field(default_factory=dict)

    def shared(self, what: Hashable, count: Callable[[], T]) -> T:
        """What several visitors count alike, counted once."""
        if what not in self._shared:
            self._shared[what] = count()
        found: T = self._shared[what]
        return found

    def of(self, key: str) -> EventChunk:
        """The same events with the gaps of another latency."""
        if key == self.key:
            return self
        if key not in self._others:
            other = EventChunk(self.chunk, key)
            # Latencies that differ only for events with several tokens usually have the same gaps.
            # None stands for this chunk: a reference to itself would keep its arrays in memory
            # until Python's collector looks for cycles, which few large objects rarely make it do.
            same = np.array_equal(other.gap_ns, self.gap_ns)
            self._others[key] = None if same else other
        return self._others[key] or self

    @cached_property
    def _gaps(self) -> TokenGaps:
        return GAPS[self.key](self.chunk)

    @property
    def ends(self) -> Ints:
        """Flat indices of the events that end a gap."""
        return self._gaps.end

    @property
    def end_ns(self) -> Ints:
        return self._gaps.at_ns

    @property
    def gap_ns(self) -> Ints:
        return self._gaps.ns

    @property
    def min_ns(self) -> Ints:
        return self._gaps.min_ns

    @property
    def max_ns(self) -> Ints:
        return self._gaps.max_ns

    @cached_property
    def tokens(self) -> Ints:
        """How many tokens the event that ended each gap carried."""
        return self.chunk.tokens[self.ends]

    @cached_property
    def columns(self) -> dict[str, tuple[Ints, Ints]]:
        """(gaps, their bins), by the name of the bound of each gap."""
        gaps = {"ns": self.gap_ns, "lo_ns": self.min_ns, "hi_ns": self.max_ns}
        return {name: (ns, duration_bin(ns)) for name, ns in gaps.items()}


class EventVisitor(Protocol):
    """Is shown the pieces with an event from `start_ns` to `end_ns`."""

    start_ns: int
    end_ns: int

    def add(self, piece: EventChunk) -> None:
        """Count what lies in [start_ns, end_ns]; pieces come in any order of time."""


def scan(recorded: RecordSource, visitors: Sequence[EventVisitor]) -> None:
    """Show every visitor the chunks of its window."""
    if not visitors:
        return
    for chunk in recorded.chunks():
        if not len(chunk.at_ns):
            continue
        first_ns = chunk.at_ns.min()
        last_ns = chunk.at_ns.max()
        piece = EventChunk(chunk)
        for visitor in visitors:
            if visitor.start_ns <= last_ns and first_ns <= visitor.end_ns:
                visitor.add(piece)


def within_window(at_ns: Ints, start_ns: int, end_ns: int) -> Bools | slice:
    """Which instants lie in [start, end]; a full slice, which copies nothing, if all do."""
    if len(at_ns) and start_ns <= at_ns.min() and at_ns.max() <= end_ns:
        return slice(None)
    return between(at_ns, start_ns, end_ns)


class ArrivalCounter:
    """Events and tokens that arrived between two instants, and how many have exact stamps."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self.events = 0
        self.exact = 0
        self.tokens = 0

    def add(self, piece: EventChunk) -> None:
        chunk = piece.chunk
        here = within_window(chunk.at_ns, self.start_ns, self.end_ns)
        at_ns = chunk.at_ns[here]
        self.events += len(at_ns)
        self.exact += int((at_ns == chunk.not_before_ns[here]).sum())
        self.tokens += int(chunk.tokens[here].sum())
