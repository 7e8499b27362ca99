"""Bounds on a sum over our requests, from the server's sums over all requests it observed.

Two scrapes A and B show how many durations a histogram observed between them, and their sum. We
want the sum over the *cohort*, the requests sent between A and B. The two differ by

    extra     observed between A and B, but sent before A
    missing   sent before B, but observed after it

Neither is visible, but the records bound both. The server observes a TTFT at the first token, and
queue and prefill when the request ends: never before the request was sent, and at most LATE_NS
after the client saw that token or that end. So only requests in flight at A can be extra, and only
requests in flight at B can be missing. A duration that ends with the first token is never negative
and never longer than the client's own TTFT of that request. With e extra and m missing ones,

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
        return replace(self, estimate=min(max(value, self.lo), self.hi))

    def minus(self, part: Bounded, least: float = 0.0) -> Bounded:
        """This sum minus `part`: at least `least`, unless it is exactly known."""
        estimate, lo, hi = self.estimate - part.estimate, self.lo - part.hi, self.hi - part.lo
        if lo == hi:
            return Bounded(estimate, estimate, estimate)
        return Bounded(estimate, max(lo, least), max(hi, least)).clamp(estimate)


def reconcile(
    whole: Bounded, one: Bounded, other: Bounded, both: Bounded
) -> tuple[Bounded, Bounded, Bounded, Bounded]:
    """The four sums with consistent estimates: one + other = both, and both <= whole.

    Each estimate stays in its bounds. The bounds of `both` are tightened to those of its two parts.
    """
    both = Bounded(both.estimate, max(both.lo, one.lo + other.lo), min(both.hi, one.hi + other.hi))
    if not whole.exact:
        whole = whole.clamp(max(whole.estimate, both.lo))
    both = both.clamp(min(both.estimate, whole.estimate))
    parts = one.estimate + other.estimate
    share = one.estimate / parts if parts > 0 else 0.5
    least, most = both.estimate - other.hi, both.estimate - other.lo
    one = one.clamp(min(max(both.estimate * share, least), most))
    return whole, one, other.clamp(both.estimate - one.estimate), both


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
        scrapes = scrape_interval(first), scrape_interval(last)
        done_ns = np.where(table.outcome == OPEN, NEVER_NS, table.done_ns)
        # Only requests that were in the server around the two scrapes matter. Their tokens are not
        # copied: of the events, only the first one of each request is read.
        relevant = (table.sent_ns <= scrapes[1][1]) & (done_ns >= scrapes[0][0] - MAX_SERVER_LAG_NS)
        rows = np.flatnonzero(relevant & (table.sent_ns >= 0))
        sent_ns, start = table.sent_ns[rows], table.offsets[rows]
        has = table.offsets[rows + 1] > start
        first_ns = np.full(len(rows), NEVER_NS, np.int64)
        first_ns[has] = table.at_ns[start[has]]
        return cls(
            inside=has & (sent_ns > first.at_ns) & (sent_ns <= last.at_ns),
            first_ns=first_ns,
            # what was observed before B also ended before B, whatever the client saw later
            longest_ns=np.minimum(first_ns, scrapes[1][1]) - sent_ns,
            sent_ns=sent_ns,
            done_ns=done_ns[rows],
            ended_well=table.outcome[rows] == OK,
            scrapes=scrapes,
        )

    def __len__(self) -> int:
        return int(self.inside.sum())

    def in_flight(self) -> tuple[int, int]:
        """How many requests may have been in the server at the first and at the last scrape."""
        first, last = (
            int(((self.sent_ns <= high) & (self.done_ns + MAX_SERVER_LAG_NS >= low)).sum())
            for low, high in self.scrapes
        )
        return first, last

    def uncertainty(self, *, at_end: bool) -> SumUncertainty:
        """Which requests may be extra or missing; `at_end`: in a histogram of ended requests."""
        (low, before), (until, high) = self.scrapes
        seen_ns = self.done_ns if at_end else np.minimum(self.first_ns, self.done_ns)
        seen_ns = seen_ns + MAX_SERVER_LAG_NS
        reported = self.ended_well if at_end else self.first_ns < NEVER_NS
        possible = (self.sent_ns <= high) & (seen_ns >= low)
        certain = reported & (self.sent_ns >= before) & (seen_ns <= until)
        extra, missing = possible & ~self.inside, self.inside & ~certain
        return SumUncertainty(
            len(self),
            self.longest_ns[extra],
            self.first_ns[missing] - self.sent_ns[missing],
            int(seen_ns[extra].max(initial=low)),
            # the server may never observe a request that was cut off
            int(np.where(reported, seen_ns, NEVER_NS)[missing].max(initial=until)),
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
        lo = max(total_ns - min(_largest(self.extra_ns, extra), later_ns[0]), 0.0)
        hi = total_ns + min(_largest(self.missing_ns, missing), later_ns[1])
        likely = total_ns / count * self.n if count else 0.0
        return Bounded(likely, lo, hi).clamp(likely)


def _largest(values: Ints, n: int) -> float:
    """Sum of the `n` largest."""
    return float(np.sort(values)[len(values) - n :].sum()) if n else 0.0
