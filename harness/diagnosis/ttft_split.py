"""The parts of a level's mean TTFT: queue + prefill + rest, and the client's excess over it.

    ttft      the server's own, from the request's arrival in it to its first token out
    queue     of it, until the scheduler takes the request in
    prefill   of it, from there to the first token in the engine
    rest      ttft - queue - prefill: tokenizing, and to the engine and back (front end, IPC)
    client    ours, from the first byte sent to the first token's arrival
    residual  client - ttft: HTTP, network, parsing before the server's clock starts; may be below 0

Where servers of their own prefill, ttft and its parts are of the servers that decode, and before
them comes

    prefill server  from its arrival there to its first token, and of it the queue: not in residual
    transfer        of the decode servers' queue: the KV cache on its way, where vLLM says it

All are means over the same requests: those sent between two scrapes (the cohort). The server
observes TTFT at the first token, but queue and prefill when a request ends, so under steady load
its sums are of different requests; cohort.py explains how they are bounded. Means of a cohort add
up, quantiles do not: these are given separately, as the buckets that contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
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
    histogram_mean_s,
    quantile_bucket,
)
from harness.metrics.level_figures import LateSplit, TtftSplit
from harness.metrics.metrics import SLO_METRICS, WHOLE
from harness.records.record_table import OPEN, RecordTable
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints
    from harness.metrics.slo import Slo
    from harness.records.histogram import Histogram
    from harness.records.samples import ServerSample


DECIMALS: Final = 6
OBSERVED_KEYS: Final = ("ttft", "queue", "prefill")
PARTS: Final = ("queue", "prefill", "rest", "residual")  # what adds up to the client's mean
QUANTILES: Final = {"p50": 0.5, "p95": 0.95}


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
    scrapes = choose_scrapes(table, samples, window, around)
    if scrapes is None:
        return TtftSplit()
    first, last = scrapes
    cohort = Cohort.between(table, first, last)
    observed = _Observed(cohort, first, last, samples)
    observed_sums = {key: observed.sum_of(key) for key in OBSERVED_KEYS}
    apart_sums = _apart_sums(cohort, first, last, samples)
    figures: dict[str, Any] = {}
    sums = _consistent_sums(cohort, observed, observed_sums, apart_sums.get("prefill_server"))
    for key, total_ns in (sums | apart_sums).items():
        figures |= _mean_fields(key, total_ns, len(cohort))
    for key in OBSERVED_KEYS:
        figures[f"{key}_n"] = _count(key, first, last)
        figures |= _quantiles(key, histogram_increase([first, last], key))
    under_way_before, under_way_after = cohort.in_flight()
    every_sum = [*observed_sums.values(), *apart_sums.values()]
    known_exactly = [total is not None and total.exact for total in every_sum]
    return TtftSplit(
        transfer_ms=histogram_mean_s([first, last], "transfer") * SECOND / MS,
        exact=all(known_exactly),
        from_ns=first.at_ns,
        to_ns=last.at_ns,
        n=len(cohort),
        under_way_before=under_way_before,
        under_way_after=under_way_after,
        **figures,
    )


def _apart_sums(
    cohort: Cohort, first: ServerSample, last: ServerSample, samples: Sequence[ServerSample]
) -> dict[str, Bounded | None]:
    """The cohort's sums on servers that only prefill; {}: there are none."""
    if first.prefill is None or last.prefill is None:
        return {}
    apart = [sample.prefill for sample in samples if sample.prefill is not None]
    observed = _Observed(cohort, first.prefill, last.prefill, apart)
    return {
        "prefill_server": observed.sum_of("ttft"),
        # Seen when its only token comes: at the same instant as the TTFT.
        "prefill_server_queue": observed.sum_of("queue"),
    }


def _consistent_sums(
    cohort: Cohort,
    observed: _Observed,
    observed_sums: Mapping[str, Bounded | None],
    apart: Bounded | None,
) -> dict[str, Bounded | None]:
    """The cohort's sums of the server's TTFT, its parts and the client's TTFT; None: not known.

    `apart`: that of the servers that prefill, where there are some.
    """
    ttft, queue, prefill = observed_sums.values()
    # The sum of queue and prefill is bounded more tightly together: it never exceeds the TTFT.
    queue_and_prefill = observed.sum_of("queue", "prefill")
    rest = None
    if ttft and queue and prefill and queue_and_prefill:
        ttft, queue, prefill, queue_and_prefill = reconcile(ttft, queue, prefill, queue_and_prefill)
        rest = ttft.minus(queue_and_prefill)
    client = _client(cohort)
    residual = None
    if client and ttft:
        residual = client.minus(ttft, least=-inf)
    if residual and apart:
        residual = residual.minus(apart, least=-inf)
    return {
        "ttft": ttft,
        "queue": queue,
        "prefill": prefill,
        "rest": rest,
        "client": client,
        "residual": residual,
    }


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
        count = counter_increase([self.first, self.last], f"{keys[0]}_count")
        total_ns = _increase_ns(self.first, self.last, keys)
        later_extra_ns = self._later_ns(self.first, uncertainty.extra_until_ns, keys)
        later_missing_ns = self._later_ns(self.last, uncertainty.missing_until_ns, keys)
        return uncertainty.sum_of(count, total_ns, (later_extra_ns, later_missing_ns))

    def _later_ns(self, scrape: ServerSample, until_ns: int, keys: Sequence[str]) -> float:
        """What was observed from `scrape` to the first one after `until_ns`; +inf without one."""
        earliest_ns = max(until_ns, scrape.at_ns)
        for later in self.samples:
            low_ns, _ = scrape_interval(later)
            if low_ns >= earliest_ns:
                total_ns = _increase_ns(scrape, later, keys)
                return inf if isnan(total_ns) else total_ns
        return inf


def _increase_ns(first: ServerSample, last: ServerSample, keys: Sequence[str]) -> float:
    """Of the sums of these durations, added up."""
    sums_s = [counter_increase([first, last], f"{key}_sum_s") for key in keys]
    return sum(sums_s) * SECOND


def _client(cohort: Cohort) -> Bounded | None:
    rows = cohort.inside
    if not rows.any():
        return None
    ttfts_ns = cohort.first_ns[rows] - cohort.sent_ns[rows]
    total_ns = float(ttfts_ns.astype(np.float64).sum())
    return Bounded(total_ns, total_ns, total_ns)


def _mean_fields(key: str, total_ns: Bounded | None, n: int) -> dict[str, Any]:
    """The mean over `n` requests and its bounds."""
    if total_ns is None or not n:
        return {}
    return {
        f"{key}_ms": _mean_ms(total_ns.estimate, n),
        f"{key}_ms_bound": (_mean_ms(total_ns.lo, n), _mean_ms(total_ns.hi, n)),
    }


def _mean_ms(total_ns: float, n: int) -> float:
    return round(total_ns / n / MS, DECIMALS) + 0.0  # + 0.0: never -0.0


def _count(key: str, first: ServerSample, last: ServerSample) -> int | None:
    """The server's observations between the scrapes; None: not known."""
    count = counter_increase([first, last], f"{key}_count")
    return None if isnan(count) else round(count)


def _quantiles(key: str, histogram: Histogram | None) -> dict[str, Any]:
    """The buckets, in ms, that contain the quantiles of the observations between the scrapes."""
    # Nothing is computed from them: quantiles do not add up, and the first bucket of queue and
    # prefill ends at 300 ms (docs/ttft-split.md).
    fields: dict[str, Any] = {}
    for name, q in QUANTILES.items():
        bucket_s = quantile_bucket(histogram, q)
        bucket_ms = None
        if bucket_s is not None:
            bucket_ms = tuple(round(bound_s * SECOND / MS, DECIMALS) for bound_s in bucket_s)
        fields[f"{key}_{name}_ms_bucket"] = bucket_ms
    return fields


# vLLM observes queue and prefill when a request ends: under overload it was sent long before, so
# these means say nothing of those that are late now. Its gauges are of now. At each scrape the
# records show which requests are in flight and which have no token: `running` and `waiting` are in
# the engine, the others with the API server, the network or the client. A scrape counts as often as
# late requests wait at it.
def late_split(
    table: RecordTable, samples: Sequence[ServerSample], slos: Sequence[Slo]
) -> LateSplit:
    """`table`: every request in flight at any of the scrapes. The rest of the time is prefill."""
    late = _late_requests(table, slos)
    if not late.any() or not len(table.at_ns):
        return LateSplit()
    first_ns = _first_token_ns(table)
    done_ns = np.where(table.outcome == OPEN, NEVER_NS, table.done_ns)
    waits = 0
    weighted_shares = np.zeros(2)  # in the queue, outside the engine
    for sample in samples:
        in_flight = (table.sent_ns <= sample.at_ns) & (done_ns > sample.at_ns)
        no_token = in_flight & (first_ns > sample.at_ns)
        n_late = int((late & no_token).sum())
        in_engine = sample.running + sample.waiting
        if sample.prefill is not None:  # first there, then here
            in_engine += sample.prefill.running + sample.prefill.waiting
        if not n_late or isnan(in_engine):
            continue
        outside = max(int(in_flight.sum()) - in_engine, 0)
        # Preempted requests wait, too, although they have a token; a request that the engine
        # has ended is outside, although it has all of them.
        n_waiting = max(int(no_token.sum()), sample.waiting + outside)
        shares = np.array([sample.waiting, outside]) / n_waiting
        weighted_shares += n_late * shares
        waits += n_late
    if not waits:
        return LateSplit()
    queue, outside_engine = (weighted_shares / waits).tolist()
    return round_floats(LateSplit(waits, queue, outside_engine), 4)


def _first_token_ns(table: RecordTable) -> Ints:
    """When each request got its first token, NEVER without one; `table` has an event."""
    # A request without events may point beyond the last event of all: any will do there.
    last_of_all = len(table.at_ns) - 1
    first_event = np.minimum(table.offsets[:-1], last_of_all)
    return np.where(table.counts > 0, table.at_ns[first_event], NEVER_NS)


def _late_requests(table: RecordTable, slos: Sequence[Slo]) -> Bools:
    """Those over the limit of an SLO on a latency with queue and prompt."""
    late = np.zeros(len(table), bool)
    for slo in slos:
        if slo.metric in WHOLE:
            seen = SLO_METRICS[slo.metric].observe(table)
            late |= seen.ns > slo.limit_ns
    return late
