"""What a server's sums over all its requests say about ours: bounds that hold whoever was between.

Two scrapes A and B give how many durations a histogram observed between them, and their sum. Wanted
is the sum over the *cohort*, the requests sent between A and B. The two differ by

    extra     observed between A and B, but sent before A
    missing   sent before B, but observed after it

Neither is seen, but the records bound both. The server observes a TTFT when the first token comes
out, queue and prefill when the request ends: never before the request was sent and at most LATE_NS
after the client saw that token or that end. So only requests under way at A can be extra, only
those under way at B missing. And no duration that ends with the first token is longer than the
client's own TTFT of that request, nor shorter than 0. With e extra and m missing ones,

    sum over the cohort = observed sum - (extra ones) + (missing ones)
    observed count - cohort's count = e - m

the second line, which is known, limits e and m; the e longest that may be extra bound what is to
be subtracted, the m longest that may be missing what is to be added. A second bound comes from
later scrapes: all extra ones are observed by the time the client has seen the last of them end, so
they are part of what the server observed from A until then; the missing ones likewise from B. The
smaller counts. Where nothing is under way at A and B, e = m = 0: the cohort's sum is the observed
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.edges import LATE_NS, read_between
from harness.measure.sums import Sum
from harness.measure.table import OK, OPEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable

    Bools = NDArray[np.bool_]
    Ints = NDArray[np.int64]

NEVER: Final = np.iinfo(np.int64).max // 2


@dataclass(frozen=True, slots=True)
class Cohort:
    """Requests sent between two scrapes, and who else the server may have counted there."""

    inside: Bools  # the cohort: sent between the scrapes, with a first token
    first_ns: Ints  # the client's first token, NEVER without one
    longest_ns: Ints  # no duration that the server observed of a request is longer
    sent_ns: Ints
    done_ns: Ints  # NEVER where the end is not known
    ended_well: Bools
    scrapes: tuple[tuple[int, int], tuple[int, int]]

    @classmethod
    def between(cls, table: RecordTable, first: ServerSample, last: ServerSample) -> Cohort:
        """Of requests as far as they are known; those that were never sent are left out."""
        scrapes = read_between(first), read_between(last)
        done_ns = np.where(table.outcome == OPEN, NEVER, table.done_ns)
        near = (table.sent_ns <= scrapes[1][1]) & (done_ns >= scrapes[0][0] - LATE_NS)
        rows = np.flatnonzero(near & (table.sent_ns >= 0))  # tokens are not copied
        sent_ns, start = table.sent_ns[rows], table.offsets[rows]
        has = table.offsets[rows + 1] > start
        first_ns = np.full(len(rows), NEVER, np.int64)
        first_ns[has] = table.at_ns[start[has]]
        return cls(
            inside=has & (sent_ns > first.at_ns) & (sent_ns <= last.at_ns),
            first_ns=first_ns,
            # what was observed before B has also ended before B
            longest_ns=np.minimum(first_ns, scrapes[1][1]) - sent_ns,
            sent_ns=sent_ns,
            done_ns=done_ns[rows],
            ended_well=table.outcome[rows] == OK,
            scrapes=scrapes,
        )

    def __len__(self) -> int:
        """Requests of the cohort."""
        return int(self.inside.sum())

    def under_way(self) -> tuple[int, int]:
        """Requests that may have been in the server at the first scrape and at the last."""
        first, last = (
            int(((self.sent_ns <= high) & (self.done_ns + LATE_NS >= low)).sum())
            for low, high in self.scrapes
        )
        return first, last

    def doubt(self, *, at_end: bool) -> Doubt:
        """Who may be extra or missing in what is observed at the end, or at the first token."""
        (low, before), (until, high) = self.scrapes
        seen_ns = np.where(at_end, self.done_ns, np.minimum(self.first_ns, self.done_ns)) + LATE_NS
        told = self.ended_well if at_end else self.first_ns < NEVER
        possible = (self.sent_ns <= high) & (seen_ns >= low)
        certain = told & (self.sent_ns >= before) & (seen_ns <= until)
        extra, missing = possible & ~self.inside, self.inside & ~certain
        return Doubt(
            len(self),
            self.longest_ns[extra],
            self.first_ns[missing] - self.sent_ns[missing],
            int(seen_ns[extra].max(initial=low)),
            # one that was cut off may never be observed
            int(np.where(told, seen_ns, NEVER)[missing].max(initial=until)),
        )


@dataclass(frozen=True, slots=True)
class Doubt:
    """The longest that each extra and each missing request may have taken, in ns."""

    n: int  # requests of the cohort
    extra_ns: Ints
    missing_ns: Ints
    extra_until_ns: int  # by then the server has observed every extra one,
    missing_until_ns: int  # and every missing one

    def sum_of(
        self, count: float, total_ns: float, later_ns: tuple[float, float] = (inf, inf)
    ) -> Sum | None:
        """The cohort's sum of a duration that was observed `count` times, `total_ns` in all.

        `later_ns`: what was observed from A until every extra one was, and from B until every
        missing one was; they are part of it. None where the counts do not fit: somebody else's
        requests are in them, or ours are lost.
        """
        if isnan(count + total_ns):
            return None
        surplus = round(count) - self.n
        extra = min(len(self.extra_ns), surplus + len(self.missing_ns))
        missing = min(len(self.missing_ns), len(self.extra_ns) - surplus)
        if extra < 0 or missing < 0:
            return None
        if extra == missing == 0:
            return Sum(total_ns, total_ns, total_ns)
        lo = max(total_ns - min(_largest(self.extra_ns, extra), later_ns[0]), 0.0)
        hi = total_ns + min(_largest(self.missing_ns, missing), later_ns[1])
        likely = total_ns / count * self.n if count else 0.0
        return Sum(likely, lo, hi).near(likely)


def _largest(values: Ints, n: int) -> float:
    """Sum of the `n` largest."""
    return float(np.sort(values)[len(values) - n :].sum()) if n else 0.0
