"""The parts of a level's mean TTFT: queue + prefill + rest, and the client's excess over it.

    ttft      the server's own, from the request's arrival in it to its first token out
    queue     of it, until the scheduler takes the request in
    prefill   of it, from there to the first token in the engine
    rest      ttft - queue - prefill: tokenizing, and to the engine and back (front end, IPC)
    client    ours, from the first byte sent to the first token's arrival
    residual  client - ttft: HTTP, network, parsing before the server's clock starts; may be below 0

All six are means over the same requests: those sent between two scrapes (the cohort). The server
observes TTFT at the first token, but queue and prefill when a request ends, so under steady load
its sums are of different requests; cohort.py explains how they are bounded. Means of a cohort add
up, quantiles do not: these are given separately, as the buckets that contain them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.core.typed_json import round_floats
from harness.diagnosis.cohort import (
    NEVER_NS,
    Bounded,
    Cohort,
    choose_scrapes,
    reconcile,
    scrape_interval,
)
from harness.diagnosis.server_window import (
    counter_increase,
    histogram_increase,
    quantile_bucket,
)
from harness.metrics.level_figures import LateSplit, TtftSplit
from harness.metrics.metrics import SLO_METRICS
from harness.records.record_table import OPEN, RecordTable
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.metrics.slo import Slo
    from harness.records.histogram import Histogram
    from harness.records.samples import ServerSample


DECIMALS: Final = 6
OBSERVED_KEYS: Final = ("ttft", "queue", "prefill")
PARTS: Final = ("queue", "prefill", "rest", "residual")  # what adds up to the client's mean
QUANTILES: Final = {"p50": 0.5, "p95": 0.95}
FIRST_TOKEN_SLOS: Final = ("ttft", "ttfot", "e2e")  # on latencies with queue and prompt


def ttft_split(
    table: RecordTable,
    samples: Sequence[ServerSample],
    window: tuple[int, int],
    around: tuple[float, float] = (-inf, inf),
) -> TtftSplit:
    """The split for the requests sent between two scrapes; `TtftSplit()` without two scrapes.

    `window` (ns) is the measured part of the level. If the server was empty before and after it,
    within `around`, the cohort is everything sent in between and the split is exact. `table` has
    every request that was in flight meanwhile, with its end.
    """
    edges = choose_scrapes(table, samples, window, around)
    if edges is None:
        return TtftSplit()
    first, last = edges
    cohort = Cohort.between(table, first, last)
    observed = _Observed(cohort, first, last, samples)
    found = {key: observed.sum_of(key) for key in OBSERVED_KEYS}
    # The sum of queue and prefill is bounded more tightly together: it never exceeds the TTFT.
    queue_and_prefill = observed.sum_of("queue", "prefill")
    ttft, queue, prefill = (found[key] for key in OBSERVED_KEYS)
    client, rest, residual = _client(cohort), None, None
    if ttft and queue and prefill and queue_and_prefill:
        ttft, queue, prefill, queue_and_prefill = reconcile(ttft, queue, prefill, queue_and_prefill)
        rest = ttft.minus(queue_and_prefill)
    if client and ttft:
        residual = client.minus(ttft, least=-inf)
    every = {
        "ttft": ttft,
        "queue": queue,
        "prefill": prefill,
        "rest": rest,
        "client": client,
        "residual": residual,
    }
    figures: dict[str, Any] = {}
    for key, each in every.items():
        figures |= _mean_fields(key, each, len(cohort))
    for key in OBSERVED_KEYS:
        figures[f"{key}_n"] = _whole(counter_increase([first, last], f"{key}_count"))
        figures |= _quantiles(key, histogram_increase([first, last], key))
    exact = all(each is not None and each.exact for each in found.values())
    return TtftSplit(exact, first.at_ns, last.at_ns, len(cohort), *cohort.in_flight(), **figures)


@dataclass(frozen=True, slots=True)
class _Observed:
    """What the server observed between two scrapes, and in the scrapes after them."""

    cohort: Cohort
    first: ServerSample
    last: ServerSample
    samples: Sequence[ServerSample]

    def sum_of(self, *keys: str) -> Bounded | None:
        """The cohort's sum of these durations, which the server observes at the same instant."""
        uncertainty = self.cohort.uncertainty(at_end=keys[0] != "ttft")
        later = (
            self._until(self.first, uncertainty.extra_until_ns, keys),
            self._until(self.last, uncertainty.missing_until_ns, keys),
        )
        count = counter_increase([self.first, self.last], f"{keys[0]}_count")
        return uncertainty.sum_of(count, _grown_ns(self.first, self.last, keys), later)

    def _until(self, scrape: ServerSample, until_ns: int, keys: Sequence[str]) -> float:
        """What was observed from `scrape` to the first one after `until_ns`; +inf without one."""
        after = (s for s in self.samples if scrape_interval(s)[0] >= max(until_ns, scrape.at_ns))
        total = _grown_ns(scrape, next(after, None), keys)
        return inf if isnan(total) else total


def _grown_ns(first: ServerSample, last: ServerSample | None, keys: Sequence[str]) -> float:
    if last is None:
        return nan
    return sum(counter_increase([first, last], f"{key}_sum_s") for key in keys) * SECOND


def _client(cohort: Cohort) -> Bounded | None:
    rows = cohort.inside
    if not rows.any():
        return None
    total = float((cohort.first_ns[rows] - cohort.sent_ns[rows]).astype(np.float64).sum())
    return Bounded(total, total, total)


def _mean_fields(key: str, each: Bounded | None, n: int) -> dict[str, Any]:
    if each is None or not n:
        return {}
    mean, lo, hi = (
        round(value / n / MS, DECIMALS) + 0.0 for value in (each.estimate, each.lo, each.hi)
    )
    return {f"{key}_ms": mean, f"{key}_ms_bound": (lo, hi)}


def _quantiles(key: str, histogram: Histogram | None) -> dict[str, Any]:
    """The buckets, in ms, that contain the quantiles of the observations between the scrapes."""
    out: dict[str, Any] = {}
    for name, q in QUANTILES.items():
        held = quantile_bucket(histogram, q)
        ms = held and tuple(round(bound_s * SECOND / MS, DECIMALS) for bound_s in held)
        out[f"{key}_{name}_ms_bucket"] = ms
    return out


def _whole(value: float) -> int | None:
    return None if isnan(value) else round(value)


# vLLM observes queue and prefill when a request ends: under overload it was sent long before, so
# these means say nothing of those that are late now. Its gauges are of now. At each scrape the
# records show which requests are in flight and which have no token: `running` and `waiting` are in
# the engine, the others with the API server, the network or the client. A scrape counts as often as
# late requests wait at it.
def late_split(
    table: RecordTable, samples: Sequence[ServerSample], slos: Sequence[Slo]
) -> LateSplit:
    """`table`: every request in flight at any of the scrapes. The rest of the time is prefill."""
    late = np.zeros(len(table), bool)
    for slo in slos:
        if slo.metric in FIRST_TOKEN_SLOS:
            late |= SLO_METRICS[slo.metric].observe(table).ns > slo.limit_ns
    if not late.any() or not len(table.at_ns):
        return LateSplit()
    flat = np.minimum(table.offsets[:-1], len(table.at_ns) - 1)
    first_ns = np.where(table.counts > 0, table.at_ns[flat], NEVER_NS)
    done_ns = np.where(table.outcome == OPEN, NEVER_NS, table.done_ns)
    waits, shares = 0, np.zeros(2)
    for s in samples:
        here = (table.sent_ns <= s.at_ns) & (done_ns > s.at_ns)
        no_token = here & (first_ns > s.at_ns)
        n = int((late & no_token).sum())
        if n and not isnan(s.running + s.waiting):
            outside = max(int(here.sum()) - s.running - s.waiting, 0)
            # Preempted requests wait, too, although they have a token; a request that the engine
            # has ended is outside, although it has all of them.
            whole = max(int(no_token.sum()), s.waiting + outside)
            shares += n * np.array([s.waiting, outside]) / whole
            waits += n
    return round_floats(LateSplit(waits, *(shares / waits).tolist()), 4) if waits else LateSplit()
