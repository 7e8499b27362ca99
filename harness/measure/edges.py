"""Between which two scrapes a step is compared with its server: empty ones where there are."""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING, Final

from harness.measure.samples import within
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable

LATE_NS: Final = 100 * MS  # vLLM counts a step's tokens after it has handed them to its streams
TOOK_NS: Final = 500 * MS  # a scrape that does not say how long it took
PAIR: Final = 2  # scrapes that a difference needs


def read_between(sample: ServerSample) -> tuple[int, int]:
    """The instants between which the server put this scrape together."""
    half = round((TOOK_NS if isnan(sample.took_ns) else sample.took_ns) / 2)
    return sample.at_ns - half, sample.at_ns + half


def edges_of(
    table: RecordTable,
    samples: Sequence[ServerSample],
    window: tuple[int, int],
    around: tuple[float, float] = (-inf, inf),
) -> tuple[ServerSample, ServerSample] | None:
    """The two scrapes to compare: empty ones where there are, else the window's first and last.

    Empty ones may lie outside the window, within `around`, or in its first and last quarter.
    """
    start, end = window
    quarter = (end - start) // 4
    early = [s for s in samples if around[0] <= s.at_ns <= start + quarter]
    late = [s for s in samples if end - quarter <= s.at_ns <= around[1]]
    # nearest to the window's own start, then as early as possible inside it
    early.sort(key=lambda s: (s.at_ns > start, abs(s.at_ns - start)))
    late.sort(key=lambda s: (s.at_ns < end, abs(s.at_ns - end)))
    first = next((s for s in early if _empty(table, s)), None)
    last = next((s for s in late if _empty(table, s)), None)
    if first is not None and last is not None and first.at_ns < last.at_ns:
        return first, last
    inside = within(samples, start, end)
    return (inside[0], inside[-1]) if len(inside) >= PAIR else None


def _empty(table: RecordTable, sample: ServerSample) -> bool:
    """Nothing under way, by the records and by the server itself where it says."""
    if sample.running > 0 or sample.waiting > 0:
        return False
    low, high = read_between(sample)
    begun = (table.sent_ns >= 0) & (table.sent_ns <= high)
    return not bool((begun & (table.done_ns >= low - LATE_NS)).any())
