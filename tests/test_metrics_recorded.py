"""Requests without most of their events say the same of themselves as with all of them."""

from dataclasses import fields

import numpy as np
import pytest
from measure_tables import SECOND, window
from random_tables import Pieces, random_table

from harness.metrics.evidence import gather_evidence
from harness.metrics.metrics import GAPS, LATENCIES, Observations, delivered_tokens, itl, lost_gaps
from harness.metrics.record_source import RecordsAsOf
from harness.metrics.slo import Slo
from harness.metrics.window_summary import good_requests
from harness.records.record_table import concat_tables, keep_three_events

SLOS = tuple(map(Slo.parse, ("ttft_p95=90ms", "itl_p95=21ms", "tpot_p90=20ms", "e2e_p50=1s")))
PER_REQUEST = [key for key in LATENCIES if key not in GAPS]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("horizon_s", [None, 3, 11])
def test_every_figure_of_a_request_is_kept(seed, horizon_s):
    """Whole, or as it was known at some instant: cut before or after, it is the same."""
    whole = random_table(seed)
    few = keep_three_events(whole)
    assert few.counts.max() <= 3
    if horizon_s is not None:
        whole = whole.until(horizon_s * SECOND)
        few = few.until(horizon_s * SECOND)
    for key in PER_REQUEST:
        got = LATENCIES[key].observe(few)
        want = LATENCIES[key].observe(whole)
        for f in fields(Observations):
            assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), (key, f.name)
    assert np.array_equal(good_requests(few, SLOS), good_requests(whole, SLOS))
    for got, want in zip(lost_gaps(few), lost_gaps(whole), strict=True):
        assert got.tolist() == want.tolist()
    ended = few.done_ns < (horizon_s or 99) * SECOND  # of the others, some had more
    assert np.array_equal(delivered_tokens(few)[ended], delivered_tokens(whole)[ended])


@pytest.mark.parametrize("seed", range(4))
def test_thinning_twice_changes_nothing_more(seed):
    """A thin table is its own thin table."""
    once = keep_three_events(random_table(seed))
    twice = keep_three_events(once)
    for f in fields(once):
        assert np.array_equal(getattr(twice, f.name), getattr(once, f.name)), f.name


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("requests", [1, 17, 1000])
def test_evidence_from_pieces_is_that_of_the_table(seed, requests):
    """Live, replayed, whole or in pieces: the same counts."""
    whole = random_table(seed)
    step = window(20, 2, 9)
    pieces = RecordsAsOf(Pieces(whole, requests), step.settled_ns, step.end_ns)
    want = gather_evidence(RecordsAsOf(whole, step.settled_ns, step.end_ns), step, SLOS)
    got = gather_evidence(pieces, step, SLOS)
    for f in fields(want)[1:]:
        assert np.array_equal(getattr(got, f.name), getattr(want, f.name)), f.name


def test_gaps_are_not_made_of_what_is_left_out():
    """A thin table refuses both ways to its events, and so does what is joined with one."""
    whole = random_table(0, 5)
    thin = keep_three_events(whole)
    for table in (thin, thin.until(SECOND), concat_tables([whole, thin])):
        with pytest.raises(ValueError, match="thinned-out table"):
            itl(table)
        with pytest.raises(ValueError, match="thin table"):
            list(table.chunks())
