"""Where a step's mean TTFT goes: queue + prefill + rest, and what the client's mean has beyond it.

    ttft      the server's own, from the request's arrival in it to its first token out
    queue     of it, until the scheduler takes the request in
    prefill   of it, from there to the first token in the engine
    rest      ttft - queue - prefill: tokenizing, and to the engine and back (front end, IPC)
    client    ours, from the first byte sent to the first token's arrival
    residual  client - ttft: HTTP, network, parsing before the server's clock starts; may be below 0

All six are means over the same requests: those sent between two scrapes (the cohort). The server
observes TTFT at the first token, queue and prefill when a request ends, so over a step in full
flow its sums are of other requests; measure/cohort.py says what they bound. Means of a cohort add
up; quantiles do not, so theirs are given beside each other, as the buckets that hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.measure.cohort import Cohort
from harness.measure.edges import edges_of, read_between
from harness.measure.serverside import between, bucket, grown
from harness.measure.sums import Sum, agreed
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.histogram import Histogram
    from harness.measure.samples import ServerSample
    from harness.measure.table import RecordTable

Bounds = tuple[float, float] | None

PLACES: Final = 6
OBSERVED: Final = ("ttft", "queue", "prefill")
PARTS: Final = ("queue", "prefill", "rest", "residual")  # what adds up to the client's mean
QUANTILES: Final = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class TtftSplit:
    """Where the mean TTFT of one window is spent; null: not known."""

    exact: bool = False  # whether each of the server's parts is known, not only bounded
    from_ns: int = 0  # first of the two scrapes, ns
    to_ns: int = 0  # last of the two scrapes, ns
    n: int = 0  # requests sent between the two scrapes
    under_way_before: int = 0  # requests in flight at the first scrape
    under_way_after: int = 0  # requests in flight at the last scrape
    ttft_ms: float = nan  # the server's TTFT, ms
    ttft_ms_bound: Bounds = None  # between which `ttft_ms` lies, ms
    queue_ms: float = nan  # time in the server's queue, ms
    queue_ms_bound: Bounds = None  # between which `queue_ms` lies, ms
    prefill_ms: float = nan  # time from the queue to the first token, ms
    prefill_ms_bound: Bounds = None  # between which `prefill_ms` lies, ms
    rest_ms: float = nan  # the server's TTFT without queue and prefill, ms
    rest_ms_bound: Bounds = None  # between which `rest_ms` lies, ms
    client_ms: float = nan  # the client's TTFT, ms
    client_ms_bound: Bounds = None  # between which `client_ms` lies, ms
    residual_ms: float = nan  # the client's TTFT less the server's, ms
    residual_ms_bound: Bounds = None  # between which `residual_ms` lies, ms
    ttft_n: int | None = None  # first tokens that the server counted between the scrapes
    ttft_p50_ms_bucket: Bounds = None  # bucket of the median TTFT, ms
    ttft_p95_ms_bucket: Bounds = None  # bucket of the p95 TTFT, ms
    queue_n: int | None = None  # queue times that the server counted between the scrapes
    queue_p50_ms_bucket: Bounds = None  # bucket of the median queue time, ms
    queue_p95_ms_bucket: Bounds = None  # bucket of the p95 queue time, ms
    prefill_n: int | None = None  # prefill times that the server counted between the scrapes
    prefill_p50_ms_bucket: Bounds = None  # bucket of the median prefill time, ms
    prefill_p95_ms_bucket: Bounds = None  # bucket of the p95 prefill time, ms


def ttft_split(
    table: RecordTable,
    samples: Sequence[ServerSample],
    window: tuple[int, int],
    around: tuple[float, float] = (-inf, inf),
) -> TtftSplit:
    """Of the requests sent between two scrapes; `TtftSplit()` without two.

    `window` (ns) is the step's settled part; where the server was seen empty before and after it,
    within `around`, the cohort is all that was sent in between and the split is exact. `table`
    has every request under way meanwhile, followed to its end.
    """
    edges = edges_of(table, samples, window, around)
    if edges is None:
        return TtftSplit()
    first, last = edges
    cohort = Cohort.between(table, first, last)
    observed = _Observed(cohort, first, last, samples)
    found = {key: observed.sum_of(key) for key in OBSERVED}
    # queue and prefill at once: together they are not longer than a TTFT either
    both = observed.sum_of("queue", "prefill")
    ttft, queue, prefill = (found[key] for key in OBSERVED)
    client, rest, residual = _client(cohort), None, None
    if ttft and queue and prefill and both:
        ttft, queue, prefill, both = agreed(ttft, queue, prefill, both)
        rest = ttft.less(both)
    if client and ttft:
        residual = client.less(ttft, least=-inf)
    every = {"ttft": ttft, "queue": queue, "prefill": prefill, "rest": rest, "client": client,
             "residual": residual}  # fmt: skip
    figures: dict[str, Any] = {}
    for key, each in every.items():
        figures |= _told(key, each, len(cohort))
    for key in OBSERVED:
        figures[f"{key}_n"] = _whole(grown([first, last], f"{key}_count"))
        figures |= _quantiles(key, between([first, last], key))
    exact = all(each is not None and each.exact for each in found.values())
    return TtftSplit(exact, first.at_ns, last.at_ns, len(cohort), *cohort.under_way(), **figures)


@dataclass(frozen=True, slots=True)
class _Observed:
    """What the server observed between two scrapes, and until when the doubtful ones were."""

    cohort: Cohort
    first: ServerSample
    last: ServerSample
    samples: Sequence[ServerSample]

    def sum_of(self, *keys: str) -> Sum | None:
        """The cohort's sum of these durations together; they are observed at the same instant."""
        doubt = self.cohort.doubt(at_end=keys[0] != "ttft")
        later = (
            self._until(self.first, doubt.extra_until_ns, keys),
            self._until(self.last, doubt.missing_until_ns, keys),
        )
        count = grown([self.first, self.last], f"{keys[0]}_count")
        return doubt.sum_of(count, _grown_ns(self.first, self.last, keys), later)

    def _until(self, scrape: ServerSample, until_ns: int, keys: Sequence[str]) -> float:
        """Observed from a scrape to the next one that is later than that; +inf without one."""
        after = (s for s in self.samples if read_between(s)[0] >= max(until_ns, scrape.at_ns))
        total = _grown_ns(scrape, next(after, None), keys)
        return inf if isnan(total) else total


def _grown_ns(first: ServerSample, last: ServerSample | None, keys: Sequence[str]) -> float:
    if last is None:
        return nan
    return sum(grown([first, last], f"{key}_sum_s") for key in keys) * SECOND


def _client(cohort: Cohort) -> Sum | None:
    rows = cohort.inside
    if not rows.any():
        return None
    total = float((cohort.first_ns[rows] - cohort.sent_ns[rows]).astype(np.float64).sum())
    return Sum(total, total, total)


def _told(key: str, each: Sum | None, n: int) -> dict[str, Any]:
    if each is None or not n:
        return {}
    mean, lo, hi = (round(value / n / MS, PLACES) + 0.0 for value in (each.at, each.lo, each.hi))
    return {f"{key}_ms": mean, f"{key}_ms_bound": (lo, hi)}


def _quantiles(key: str, histogram: Histogram | None) -> dict[str, Any]:
    """The buckets, in ms, that hold the quantiles of what was observed between the scrapes."""
    out: dict[str, Any] = {}
    for name, q in QUANTILES.items():
        held = bucket(histogram, q)
        ms = held and tuple(round(bound_s * SECOND / MS, PLACES) for bound_s in held)
        out[f"{key}_{name}_ms_bucket"] = ms
    return out


def _whole(value: float) -> int | None:
    return None if isnan(value) else round(value)
