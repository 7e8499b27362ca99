"""Bounds on a sum over our requests, from the server's sums over all requests it observed.

Two scrapes A and B show how many durations a histogram observed between them, and their sum. We
want the sum over the *cohort*, the requests sent between A and B. The two differ by

    extra     observed between A and B, but sent before A
    missing   sent before B, but observed after it

Neither is visible, but the records bound both. The server observes a TTFT at the first token, and
queue and prefill when the request ends: never before the request was sent, and at most
MAX_SERVER_LAG_NS after the client saw that token or that end. So only requests in flight at A can
be extra, and only requests in flight at B can be missing. A duration that ends with the first token
is never negative and never longer than the client's own TTFT of that request. With e extra and m
missing ones,

    sum over the cohort = observed sum - (extra ones) + (missing ones)
    observed count - cohort's count = e - m

The second line is known, so it limits e and m. The e longest that may be extra bound what has to be
subtracted; the m longest that may be missing bound what has to be added. Later scrapes give another
bound: the server has observed every extra request by the time the client has seen the last of them
end, so they are part of what it observed from A until then; likewise the missing ones from B. The
tighter bound is used. If nothing is in flight at A and B, e = m = 0 and the sum is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between
from harness.records.record_table import OK, OPEN, RecordTable
from harness.records.samples import ServerSample, samples_within
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints


MAX_SERVER_LAG_NS: Final = 100 * MS  # vLLM counts an engine step's tokens after it has sent them
DEFAULT_SCRAPE_NS: Final = 500 * MS  # assumed if a scrape does not say how long it took
MIN_SCRAPES: Final = 2  # needed for a difference


def scrape_interval(sample: ServerSample) -> tuple[int, int]:
    """The instants between which the server put this scrape together."""
    took_ns = DEFAULT_SCRAPE_NS if isnan(sample.took_ns) else sample.took_ns
    half_ns = round(took_ns / 2)
    return sample.at_ns - half_ns, sample.at_ns + half_ns


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
    start_ns, end_ns = window
    earliest_ns, latest_ns = around
    quarter_ns = (end_ns - start_ns) // 4
    early_until_ns = start_ns + quarter_ns
    late_from_ns = end_ns - quarter_ns
    early = [sample for sample in samples if earliest_ns <= sample.at_ns <= early_until_ns]
    late = [sample for sample in samples if late_from_ns <= sample.at_ns <= latest_ns]
    # outside the window and nearest to it, else as near to its edge as possible inside it
    early.sort(key=lambda sample: (sample.at_ns > start_ns, abs(sample.at_ns - start_ns)))
    late.sort(key=lambda sample: (sample.at_ns < end_ns, abs(sample.at_ns - end_ns)))
    first = _first_empty(table, early)
    last = _first_empty(table, late)
    if first is not None and last is not None and first.at_ns < last.at_ns:
        return first, last
    inside = samples_within(samples, start_ns, end_ns)
    if len(inside) < MIN_SCRAPES:
        return None
    return inside[0], inside[-1]


def _first_empty(table: RecordTable, samples: Sequence[ServerSample]) -> ServerSample | None:
    return next((sample for sample in samples if _is_empty(table, sample)), None)


def _is_empty(table: RecordTable, sample: ServerSample) -> bool:
    """Whether nothing was in flight: by the records, and by the server if it reports it."""
    if sample.running > 0 or sample.waiting > 0:
        return False
    low_ns, high_ns = scrape_interval(sample)
    begun = between(table.sent_ns, 0, high_ns)
    in_flight = begun & (table.done_ns >= low_ns - MAX_SERVER_LAG_NS)
    return not bool(in_flight.any())


@dataclass(frozen=True, slots=True)
class Bounded:
    """A sum over the requests of a cohort: `lo` <= sum <= `hi`; `estimate` is the best estimate."""

    estimate: float
    lo: float
    hi: float

    @property
    def exact(self) -> bool:
        return self.lo == self.hi

    def clamp(self, value: float) -> Bounded:
        """The same bounds with `value` as the estimate, clamped to them."""
        estimate = min(max(value, self.lo), self.hi)
        return replace(self, estimate=estimate)

    def minus(self, part: Bounded, least: float = 0.0) -> Bounded:
        """This sum minus `part`: at least `least`, unless it is exactly known."""
        estimate = self.estimate - part.estimate
        lo = self.lo - part.hi
        hi = self.hi - part.lo
        if lo == hi:
            return Bounded(estimate, estimate, estimate)
        bounds = Bounded(estimate, max(lo, least), max(hi, least))
        return bounds.clamp(estimate)


def reconcile(
    total: Bounded, first: Bounded, second: Bounded, both: Bounded
) -> tuple[Bounded, Bounded, Bounded, Bounded]:
    """The four sums with consistent estimates: first + second = both, and both <= total.

    Each estimate stays in its bounds. The bounds of `both` are tightened to those of its two parts.
    """
    lo = max(both.lo, first.lo + second.lo)
    hi = min(both.hi, first.hi + second.hi)
    both = Bounded(both.estimate, lo, hi)
    if not total.exact:
        total = total.clamp(max(total.estimate, both.lo))
    both = both.clamp(min(both.estimate, total.estimate))
    parts = first.estimate + second.estimate
    share = first.estimate / parts if parts > 0 else 0.5
    # the second has the rest of `both`, and must stay in its bounds, too
    least = both.estimate - second.hi
    most = both.estimate - second.lo
    fair = both.estimate * share
    first = first.clamp(min(max(fair, least), most))
    second = second.clamp(both.estimate - first.estimate)
    return total, first, second, both


NEVER_NS: Final = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class Cohort:
    """Requests sent between two scrapes, and the others that the server may have counted there."""

    inside: Bools  # the cohort: sent between the scrapes, with a first token
    first_ns: Ints  # the client's first token, NEVER without one
    longest_ns: Ints  # upper bound of any duration that the server observed of the request
    sent_ns: Ints
    done_ns: Ints  # NEVER where the end is not known
    ended_well: Bools
    scrapes: tuple[tuple[int, int], tuple[int, int]]

    @classmethod
    def between(cls, table: RecordTable, first: ServerSample, last: ServerSample) -> Cohort:
        """The cohort of `table`; requests that were never sent are left out."""
        scrapes = (scrape_interval(first), scrape_interval(last))
        from_ns, _ = scrapes[0]
        _, until_ns = scrapes[1]
        done_ns = np.where(table.outcome == OPEN, NEVER_NS, table.done_ns)
        # Only requests that were in the server around the two scrapes matter. Their tokens are not
        # copied: of the events, only the first one of each request is read.
        was_sent = (table.sent_ns >= 0) & (table.sent_ns <= until_ns)
        had_not_ended = done_ns >= from_ns - MAX_SERVER_LAG_NS
        rows = np.flatnonzero(was_sent & had_not_ended)
        sent_ns = table.sent_ns[rows]
        first_event = table.offsets[rows]
        has_token = table.offsets[rows + 1] > first_event
        first_ns = np.full(len(rows), NEVER_NS, np.int64)
        first_ns[has_token] = table.at_ns[first_event[has_token]]
        # The cohort is a matter of definition, so the middles of the scrapes bound it; that the
        # server's counters may be of a little earlier or later is a matter of `uncertainty`.
        sent_between = (sent_ns > first.at_ns) & (sent_ns <= last.at_ns)
        # What the last scrape has counted ended before it, whatever the client saw later.
        counted_until_ns = np.minimum(first_ns, until_ns)
        return cls(
            inside=has_token & sent_between,
            first_ns=first_ns,
            longest_ns=counted_until_ns - sent_ns,
            sent_ns=sent_ns,
            done_ns=done_ns[rows],
            ended_well=table.outcome[rows] == OK,
            scrapes=scrapes,
        )

    def __len__(self) -> int:
        return int(self.inside.sum())

    def in_flight(self) -> tuple[int, int]:
        """How many requests may have been in the server at the first and at the last scrape."""
        at_first, at_last = self.scrapes
        return self._in_flight_at(*at_first), self._in_flight_at(*at_last)

    def _in_flight_at(self, low_ns: int, high_ns: int) -> int:
        sent = self.sent_ns <= high_ns
        not_ended = self.done_ns + MAX_SERVER_LAG_NS >= low_ns
        return int((sent & not_ended).sum())

    def uncertainty(self, *, at_end: bool) -> SumUncertainty:
        """Which requests may be extra or missing; `at_end`: in a histogram of ended requests."""
        (first_low_ns, first_high_ns), (last_low_ns, last_high_ns) = self.scrapes
        if at_end:
            latest_ns = self.done_ns + MAX_SERVER_LAG_NS  # when it has observed the request
            reported = self.ended_well
        else:
            latest_ns = np.minimum(self.first_ns, self.done_ns) + MAX_SERVER_LAG_NS
            reported = self.first_ns < NEVER_NS
        # Of a request, whether it may have been observed between A and B, and whether it was.
        possible = (self.sent_ns <= last_high_ns) & (latest_ns >= first_low_ns)
        certain = reported & (self.sent_ns >= first_high_ns) & (latest_ns <= last_low_ns)
        extra = possible & ~self.inside
        missing = self.inside & ~certain
        # the server may never observe a request that was cut off
        latest_if_ever_ns = np.where(reported, latest_ns, NEVER_NS)
        return SumUncertainty(
            n=len(self),
            extra_ns=self.longest_ns[extra],
            missing_ns=self.first_ns[missing] - self.sent_ns[missing],
            extra_until_ns=int(latest_ns[extra].max(initial=first_low_ns)),
            missing_until_ns=int(latest_if_ever_ns[missing].max(initial=last_low_ns)),
        )


@dataclass(frozen=True, slots=True)
class SumUncertainty:
    """The longest duration of each request that may be extra or missing, in ns."""

    n: int  # requests of the cohort
    extra_ns: Ints
    missing_ns: Ints
    extra_until_ns: int  # when the server has observed every extra request
    missing_until_ns: int  # when it has observed every missing request

    def sum_of(
        self, count: float, total_ns: float, later_ns: tuple[float, float] = (inf, inf)
    ) -> Bounded | None:
        """The cohort's sum of a duration that was observed `count` times, `total_ns` in all.

        `later_ns`: the sums observed from A until every extra request was, and from B until every
        missing one was, which include them. None if the counts do not fit: they contain another
        client's requests, or some of ours are lost.
        """
        if isnan(count + total_ns):
            return None
        # surplus = extra - missing is known; each of the two is limited by its candidates.
        surplus = round(count) - self.n
        extra = min(len(self.extra_ns), surplus + len(self.missing_ns))
        missing = min(len(self.missing_ns), len(self.extra_ns) - surplus)
        if extra < 0 or missing < 0:
            return None
        if extra == missing == 0:
            return Bounded(total_ns, total_ns, total_ns)
        later_extra_ns, later_missing_ns = later_ns
        most_extra_ns = min(_sum_of_largest(self.extra_ns, extra), later_extra_ns)
        most_missing_ns = min(_sum_of_largest(self.missing_ns, missing), later_missing_ns)
        lo = max(total_ns - most_extra_ns, 0.0)
        hi = total_ns + most_missing_ns
        # The best estimate: the cohort's requests are like those that were observed.
        likely = total_ns / count * self.n if count else 0.0
        return Bounded(likely, lo, hi).clamp(likely)


def _sum_of_largest(values: Ints, n: int) -> float:
    ascending = np.sort(values)
    largest = ascending[len(values) - n :]
    return float(largest.sum())
