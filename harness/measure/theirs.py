"""From a Definition of COMPAT and a RecordTable to a tool's own figures, in ns.

The table holds the requests that the tool would count: those that ended well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.measure.compat import STEP
from harness.measure.metrics import delivered_tokens, inner_events
from harness.measure.spread import Spread, bin_of
from harness.measure.table import OK
from harness.measure.walk import inside
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.compat import Definition
    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

COMPARED: Final = {"mean": -1.0, "p50": 0.5, "p95": 0.95, "p99": 0.99}
MISSING: Final = -1  # an instant that a request does not have


class Values(NamedTuple):
    """n observations, ns, each with its weight."""

    ns: Floats
    weight: Floats


def output_tokens(table: RecordTable) -> Ints:
    """As the server counted them, else as many as arrived."""
    return np.where(table.output_tokens >= 0, table.output_tokens, delivered_tokens(table))


def typical_connect_ns(table: RecordTable) -> int:
    """Mean connect time of the requests that had to connect; 0 when none had."""
    connected = table.connect_ns[table.connect_ns > 0]
    return round(float(connected.mean())) if len(connected) else 0


def instants(table: RecordTable, connect_ns: int = 0) -> dict[str, Ints]:
    """The instants that definitions run between, per request; MISSING where it has none.

    `connect_ns`: what an own connection costs a request that was sent on a kept one.
    """
    some = table.counts > 0
    flat = table.at_ns if len(table.at_ns) else np.zeros(1, np.int64)
    first = np.where(some, flat[np.minimum(table.offsets[:-1], len(flat) - 1)], MISSING)
    last = np.where(some, flat[np.maximum(table.offsets[1:] - 1, 0)], MISSING)
    own = np.where(table.connect_ns > 0, table.connect_ns, connect_ns)
    return {
        "connect": table.sent_ns - table.connect_ns,
        "own connect": table.sent_ns - own,
        "sent": table.sent_ns,
        "first chunk": np.where(table.first_event_ns >= 0, table.first_event_ns, first),
        "first token": first,
        "last token": last,
        "last chunk": np.maximum(last, table.last_silent_ns),
        "done": table.done_ns,
    }


def values(d: Definition, table: RecordTable, connect_ns: int = 0) -> Values:
    """What a definition makes of each request that has both of its instants."""
    at = instants(table, connect_ns)
    tokens = output_tokens(table)
    parts = {"request": np.ones_like(tokens), "token": tokens, "later token": tokens - 1}[d.per]
    have = (at[d.start] != MISSING) & (at[d.end] != MISSING) & (parts > 0)
    ns = ((at[d.end] - at[d.start])[have] / parts[have]).astype(np.float64)
    return Values(ns, parts[have].astype(np.float64) if d.by_tokens else np.ones(len(ns)))


class ChunkGaps:
    """A tool's gaps that ended in the windows, of the requests that ended well: two looks."""

    def __init__(self, windows: Sequence[tuple[int, int]], *, empty_ones: bool) -> None:
        """`empty_ones`: as `gaps`."""
        self.windows = windows
        self.empty_ones = empty_ones
        self.start_ns = min((start for start, _ in windows), default=0)
        self.end_ns = max((end for _, end in windows), default=-1)
        self.finite, self._sum_ns, self._again = 0, 0.0, False
        self._spread = Spread()

    def see(self, piece: Piece) -> None:
        """Either look at a piece."""
        chunk = piece.chunk
        ns, ended = gaps(chunk.select(chunk.outcome == OK), empty_ones=self.empty_ones)
        for window in self.windows:
            own = ns[inside(ended, *window)]
            whole = np.rint(own).astype(np.int64)
            if self._again:
                self._spread.find(whole, bin_of(whole))
                continue
            self._spread.count(bin_of(whole))
            self.finite += len(own)
            self._sum_ns += float(own.sum())

    def look_again(self) -> None:
        """Between the looks."""
        self._again = True
        if self.finite:
            self._spread.want(
                {rank for q in COMPARED.values() if q > 0 for rank in self._places(q)}
            )

    def statistic(self, q: float) -> float:
        """The mean (q below 0) or a quantile (LINEAR), one of COMPARED; NaN of nothing."""
        if not self.finite:
            return math.nan
        if q < 0:
            return self._sum_ns / self.finite
        low, high = map(self._spread.at, self._places(q))
        return low + (high - low) * (q * (self.finite - 1) % 1)

    def _places(self, q: float) -> tuple[int, int]:
        low = int(q * (self.finite - 1))
        return low, min(low + 1, self.finite - 1)


def gaps(table: RecordTable, *, empty_ones: bool) -> tuple[Floats, Ints]:
    """(gaps between chunks with tokens, when each ended); `empty_ones`: between all with a choice.

    An empty chunk between two tokens left its mark in the count of the next one: a gap that ended
    with k tokens is divided by k where the request had such chunks.
    """
    inner = inner_events(table)
    between = (table.at_ns[inner] - table.at_ns[inner - 1]).astype(np.float64)
    if not empty_ones:
        return between, table.at_ns[inner]
    at = instants(table)
    some = table.counts > 0
    after = some & (at["last chunk"] > at["last token"])
    amid = table.silent_events - after > 0
    k = np.where(amid[table.request_of_event[inner]], table.tokens[inner], 1)
    known_before = np.where(table.events_before >= 0, table.events_before > 0,
                            at["first chunk"] < at["first token"])  # fmt: skip
    before = some & known_before
    more = np.repeat(at["first chunk"], np.where(some, table.events_before - 1, 0).clip(min=0))
    parts = [
        (np.repeat(between / k, k), np.repeat(table.at_ns[inner], k)),
        ((at["first token"] - at["first chunk"])[before], at["first token"][before]),
        (np.zeros(len(more)), more),  # empty ones before the first token come together
        ((at["last chunk"] - at["last token"])[after], at["last chunk"][after]),
    ]
    ns, ended = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ns, ended


def statistic(seen: Values, q: float, rule: str) -> float:
    """The weighted mean (q below 0) or a quantile by the tool's rule; NaN of nothing."""
    weight = seen.weight.sum()
    if not weight > 0:
        return math.nan
    if q < 0:
        return float((seen.ns * seen.weight).sum() / weight)
    if rule != STEP:
        return float(np.quantile(seen.ns, q))
    order = np.argsort(seen.ns, kind="stable")
    reached = np.cumsum(seen.weight[order]) / weight
    place = int(np.searchsorted(reached, q, side="left"))
    return float(seen.ns[order][min(place, len(order) - 1)])


def rate(key: str, table: RecordTable, windows: Sequence[tuple[int, int]]) -> float | None:
    """Tokens (or requests) a second, of the requests that ended in the windows.

    The tools divide by the time of their whole run. A window has neither its beginning nor its end,
    so the requests are placed by when they ended and divided by the window.
    """
    count = span = 0
    each = output_tokens(table) if key == "output_tokens_per_s" else np.ones(len(table), np.int64)
    for start, end in windows:
        span += end - start
        count += int(each[(table.done_ns >= start) & (table.done_ns <= end)].sum())
    return round(count * SECOND / span, 4) if span > 0 else None


def joined(parts: Sequence[Values]) -> Values:
    """One set of observations of several."""
    if not parts:
        return Values(np.zeros(0), np.zeros(0))
    return Values(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
