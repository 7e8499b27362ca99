"""Where requests over their limit wait: in the queue, for their prompt, or outside the engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from measure_tables import MS, SECOND, record, table
from split_cases import known

from harness.diagnosis.ttft_split import late_split
from harness.metrics.level_figures import LateSplit
from harness.metrics.metrics import ttft
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.records.samples import ServerSample

LIMIT = (Slo("ttft", 0.95, 500 * MS),)
# ten requests sent at once: four have a token at 100 ms, six have none until 900 ms
EARLY = [record(i, 0, [100, 2000]) for i in range(4)]
LATE = [record(4 + i, 0, [900, 2000]) for i in range(6)]
ROWS = table(*EARLY, *LATE)
# one more that was cut off: its age says that it is late
OPEN = table(*EARLY, *LATE, record(10, 0, [], done=1000, outcome=Outcome.open))


def scrape(at_ms: float, running: float, waiting: float) -> ServerSample:
    """The gauges at an instant."""
    return ServerSample(round(at_ms * MS), running=running, waiting=waiting)


@pytest.mark.parametrize(
    ("rows", "samples", "want"),
    [
        # of the six, three wait, two are outside; one computes its prompt
        (ROWS, [scrape(500, 5, 3)], LateSplit(6, 0.5, 0.3333)),
        # all ten run: the six compute
        (ROWS, [scrape(500, 10, 0)], LateSplit(6, 0.0, 0.0)),
        # two preempted ones wait, too: eight wait, of six that have no token
        (ROWS, [scrape(500, 2, 8)], LateSplit(6, 1.0, 0.0)),
        # two scrapes, of six late requests each: the mean of both
        (ROWS, [scrape(300, 4, 6), scrape(600, 4, 0)], LateSplit(12, 0.5, 0.5)),
        # nobody waits at this one
        (ROWS, [scrape(950, 10, 0)], LateSplit()),
        (ROWS, [scrape(500, float("nan"), 3)], LateSplit()),
        (ROWS, [], LateSplit()),
        (table(*EARLY), [scrape(50, 0, 4)], LateSplit()),  # none is late
        (OPEN, [scrape(950, 10, 1)], LateSplit(1, 1.0, 0.0)),
        (table(), [scrape(50, 0, 4)], LateSplit()),
        # six are at a server that prefills before this one: none is outside
        (ROWS, [replace(scrape(300, 4, 0), prefill=scrape(300, 4, 2))], LateSplit(6, 0.0, 0.0)),
    ],
)
def test_where_late_requests_wait(rows, samples, want):
    """By the gauges at each scrape, and by who has no token then."""
    assert repr(late_split(rows, samples, LIMIT)) == repr(want)


def test_requests_in_time_do_not_count() -> None:
    """At 50 ms all ten wait, four of them not for long: only the late ones weigh a scrape."""
    got = late_split(ROWS, [scrape(50, 0, 10), scrape(500, 4, 6)], LIMIT)
    assert got.waits == 12
    assert got.queue == 1


def test_an_slo_on_gaps_has_no_late_requests() -> None:
    """The split is of first tokens."""
    assert late_split(ROWS, [scrape(0.5 * SECOND / MS, 4, 6)], (Slo("itl", 0.95, MS),)).waits == 0


# those of 24 whose slowest fifth takes over half a second
WAITING = (3, 5, 6, 7, 8, 9, 11, 12, 14, 15, 16, 18, 19, 20, 22, 23)


@pytest.mark.parametrize("seed", WAITING)
def test_it_finds_where_simulated_requests_waited(seed: int) -> None:
    """Against what each request really spent where, if one place has most of it.

    Only where late requests wait for many steps: one that arrives during a step is outside of the
    engine until the step ends.
    """
    run = known(seed)
    ns = ttft(run.table).ns
    limit_ns = float(np.quantile(ns[np.isfinite(ns)], 0.8))
    late = ns > limit_ns
    parts = run.parts_ms
    whole = parts["client"][late].sum()
    queue = parts["queue"][late].sum() / whole
    outside = (parts["rest"] + parts["residual"])[late].sum() / whole
    got = late_split(run.table, run.samples, (Slo("ttft", 0.95, limit_ns),))
    assert limit_ns >= 500 * MS
    assert (got.queue >= 0.6) == (queue >= 0.75)
    assert (got.outside >= 0.6) == (outside >= 0.75)
