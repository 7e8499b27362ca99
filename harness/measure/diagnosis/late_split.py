"""Where the requests that break an SLO wait for their first token: the tail, not the mean.

vLLM observes queue and prefill when a request ends: under overload these are requests that were
sent long before, so their means say nothing of those that are late now. Its gauges are of now. At
each scrape the records show how many requests are in flight (F), and how many of them have no token
yet. `running` and `waiting` are in the engine; the other F - running - waiting are with the API
server, the network or the client. A scrape counts as often as late requests wait at it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.metrics import SLO_METRICS
from harness.measure.records.record_table import OPEN
from harness.measure.typed_json import round_floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.records.record_table import RecordTable
    from harness.measure.records.samples import ServerSample
    from harness.measure.slo import Slo

FIRST_TOKEN_SLOS = ("ttft", "ttfot", "e2e")  # on latencies that include the queue and the prompt
NEVER_NS = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class LateSplit:
    """Shares of the time in which requests over their limit wait for a first token; null: none."""

    waits: int = 0  # late requests without a token, summed over the scrapes
    queue: float = nan  # in the engine's queue
    outside: float = nan  # not in the engine: API server, network, client


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
