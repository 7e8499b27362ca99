"""Which two scrapes a level is compared between: preferably ones at which the server was empty."""

from __future__ import annotations

from math import inf, isnan
from typing import TYPE_CHECKING, Final

from harness.measure.records.samples import samples_within
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.records.record_table import RecordTable
    from harness.measure.records.samples import ServerSample

MAX_SERVER_LAG_NS: Final = 100 * MS  # vLLM counts an engine step's tokens after it has sent them
DEFAULT_SCRAPE_NS: Final = 500 * MS  # assumed if a scrape does not say how long it took
MIN_SCRAPES: Final = 2  # needed for a difference


def scrape_interval(sample: ServerSample) -> tuple[int, int]:
    """The instants between which the server put this scrape together."""
    half = round((DEFAULT_SCRAPE_NS if isnan(sample.took_ns) else sample.took_ns) / 2)
    return sample.at_ns - half, sample.at_ns + half


def choose_scrapes(
    table: RecordTable,
    samples: Sequence[ServerSample],
    window: tuple[int, int],
    around: tuple[float, float] = (-inf, inf),
) -> tuple[ServerSample, ServerSample] | None:
    """The two scrapes to compare: empty ones if there are any, else the window's first and last.

    With an empty server at both ends its counters belong to our requests only. Such scrapes may lie
    outside the window (within `around`), or in its first and last quarter. None: too few.
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
    inside = samples_within(samples, start, end)
    return (inside[0], inside[-1]) if len(inside) >= MIN_SCRAPES else None


def _empty(table: RecordTable, sample: ServerSample) -> bool:
    """Whether nothing was in flight: by the records, and by the server if it reports it."""
    if sample.running > 0 or sample.waiting > 0:
        return False
    low, high = scrape_interval(sample)
    begun = (table.sent_ns >= 0) & (table.sent_ns <= high)
    return not bool((begun & (table.done_ns >= low - MAX_SERVER_LAG_NS)).any())
