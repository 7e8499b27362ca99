"""Latencies by their definitions: each expected figure has its arithmetic beside it."""

import numpy as np
import pytest
from measure_tables import MS, record, table

from harness.metrics import metrics
from harness.records.record_table import OUTCOMES, concat_tables
from harness.records.request_record import Outcome

INF = float("inf")
# sent at 0, tokens at 100, 120, 150; the last byte at 155
PLAIN = record(0, 0, [100, 120, 150], done=155)
# the middle event was read late: it lies in (110, 120]
UNSURE = record(1, 0, [100, 120, 150], lows=[100, 110, 150])
# two tokens in the second event
MERGED = record(2, 0, [100, 130], tokens=[1, 2])
FAILED = record(3, 0, [100, 120], done=900, outcome=Outcome.truncated, planned=5)
SILENT = record(4, 0, [], done=50, outcome=Outcome.status, planned=3)
OPEN = record(5, 0, [], done=400, outcome=Outcome.open, planned=3)
# the harness stopped waiting for it: no failure, but as open as one that is under way
CUT = record(6, 0, [], done=400, outcome=Outcome.cancelled, planned=3)
HALF = record(7, 0, [100, 120], done=400, outcome=Outcome.cancelled, planned=3)


@pytest.mark.parametrize(
    ("metric", "request_record", "want_ns", "want_lo", "want_hi"),
    [
        ("ttft", PLAIN, [100], [100], [100]),
        ("ttft", UNSURE, [100], [100], [100]),
        ("ttft", FAILED, [INF], [INF], [INF]),  # shedding load never looks fast
        ("ttft", OPEN, [400], [400], [INF]),  # open at its age
        ("ttft", CUT, [400], [400], [INF]),
        ("ttft", HALF, [100], [100], [100]),
        ("itl", HALF, [20], [20], [20]),
        ("itl", CUT, [], [], []),
        ("tpot", HALF, [], [], []),
        ("e2e", HALF, [400], [400], [INF]),
        ("itl", PLAIN, [20, 30], [20, 30], [20, 30]),
        ("itl", UNSURE, [20, 30], [10, 30], [20, 40]),  # 110 - 100, 150 - 120; 120 - 100, 150 - 110
        ("itl", FAILED, [20, INF, INF, INF], [20, INF, INF, INF], [20, INF, INF, INF]),  # 5 - 2
        ("itl", SILENT, [INF, INF], [INF, INF], [INF, INF]),  # 3 tokens are 2 gaps
        ("itl", OPEN, [], [], []),
        ("tpot", PLAIN, [25], [25], [25]),  # (150 - 100) / 2
        ("itl", MERGED, [30], [30], [30]),  # what a reader sees
        ("itl_per_token", MERGED, [15, 15], [15, 15], [15, 15]),  # 30 / 2 tokens, twice
        ("itl_per_token", PLAIN, [20, 30], [20, 30], [20, 30]),
        ("itl_per_token", UNSURE, [20, 30], [10, 30], [20, 40]),
        ("itl_per_token", FAILED, [20, INF, INF, INF], [20, INF, INF, INF], [20, INF, INF, INF]),
        ("tpot", MERGED, [15], [15], [15]),  # (130 - 100) / 2 tokens
        ("tps", PLAIN, [25], [25], [25]),  # as time per token; (150 - 100) / 2
        ("tps", FAILED, [INF], [INF], [INF]),  # 0 tokens/s
        ("tps", SILENT, [INF], [INF], [INF]),
        ("tpot", OPEN, [], [], []),
        ("tpot", SILENT, [INF], [INF], [INF]),
        ("e2e", PLAIN, [155], [155], [155]),
        ("e2e", OPEN, [400], [400], [INF]),
        ("e2e", FAILED, [INF], [INF], [INF]),
    ],
)
def test_a_latency_of_one_request(metric, request_record, want_ns, want_lo, want_hi):
    """Each metric gives the figure and its instrument interval that its definition says."""
    seen = metrics.SLO_METRICS[metric].observe(table(request_record))
    assert (seen.ns / MS).tolist() == want_ns
    assert (seen.lo_ns / MS).tolist() == want_lo
    assert (seen.hi_ns / MS).tolist() == want_hi


def test_latencies_of_many_requests_are_those_of_each():
    """Columns mix nothing up: the table's figures are the single requests' in order."""
    all_of_them = [PLAIN, SILENT, UNSURE, MERGED, CUT, OPEN, HALF, FAILED]
    together = table(*all_of_them)
    for metric in metrics.ALL_LATENCIES.values():
        single = [metric.observe(table(one)).ns for one in all_of_them]
        want = sorted(np.concatenate(single).tolist())
        got = sorted(metric.observe(together).ns.tolist())
        assert got == want


@pytest.mark.parametrize(
    ("horizon_ms", "want_outcome", "want_events", "want_ttft"),
    [
        (50, "open", 0, 50),  # no token yet: open at its age
        (100, "open", 1, 100),
        (125, "open", 2, 100),
        (155, "ok", 3, 100),
    ],
)
def test_a_horizon_hides_what_came_later(horizon_ms, want_outcome, want_events, want_ttft):
    """A table cut at an instant shows only what was known then."""
    cut = table(PLAIN).until(horizon_ms * MS)
    assert OUTCOMES[cut.outcome[0]] == want_outcome
    assert len(cut.at_ns) == want_events
    assert metrics.ttft(cut).ns[0] / MS == want_ttft


@pytest.mark.parametrize(("horizon_ms", "age_ms"), [(300, 300), (400, 400), (900, 400)])
def test_what_the_harness_cut_off_grows_no_older(horizon_ms, age_ms):
    """Its age is counted up to the horizon, or to when nobody waited for it any more."""
    cut = table(CUT, HALF, FAILED).until(horizon_ms * MS)
    ages_ns = metrics.e2e(cut).lo_ns[:2]
    assert (ages_ns / MS).tolist() == [age_ms] * 2
    assert metrics.failed_requests(cut).tolist() == [False, False, horizon_ms == 900]


def test_joined_tables_keep_each_requests_events():
    """Offsets move with their rows when tables are joined and selected."""
    joined = concat_tables([table(PLAIN, SILENT), table(MERGED), table()])
    assert joined.counts.tolist() == [3, 0, 2]
    picked = joined.select(np.array([False, True, True]))
    assert (picked.at_ns / MS).tolist() == [100, 130]
