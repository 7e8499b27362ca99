"""What a step leaves: counts by block of time and by ratio to the limit."""

from dataclasses import replace

import numpy as np
import pytest
from measure_tables import evidence, record, table, window

from harness.core.load import Rate, Users
from harness.metrics.evidence import (
    BINS_PER_SIDE,
    LOG_SPAN,
    RATIO_BINS,
    gather_evidence,
    lifetime_ns,
    pool_evidence,
    ratio_bin,
    ratio_quantiles,
    worst_ratio,
)
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome

TTFT = Slo.parse("ttft_p95=500ms")
ITL = Slo.parse("itl_p95=50ms")
TEN_S = window(1, 0, 10)
STEP = LOG_SPAN / BINS_PER_SIDE  # log 20 / 240: 1.25 % a bin
# sent each second, tokens 100 and 140 ms later
CLEAN = [record(s, 1000 * s, [1000 * s + 100, 1000 * s + 140]) for s in range(10)]
SLOW = record(10, 3000, [3501], done=3600)
YOUNG = record(11, 5000, [], done=5400, outcome=Outcome.open)  # not over the limit yet
OLD = record(12, 5000, [], done=5600, outcome=Outcome.open)  # over it already
CUT = record(14, 5000, [], done=5400, outcome=Outcome.cancelled)  # by the harness, in time
CUT_OLD = record(15, 5000, [], done=5600, outcome=Outcome.cancelled)  # over the limit already
FAILED = record(13, 6000, [], done=6001, outcome=Outcome.connect, planned=3)


@pytest.mark.parametrize(
    ("ratio", "want"),
    [
        (1, BINS_PER_SIDE),  # the limit itself is kept
        (1.0001, BINS_PER_SIDE + 1),
        (np.exp(STEP), BINS_PER_SIDE + 1),  # the first bin's upper edge
        (np.exp(-1.5 * STEP), BINS_PER_SIDE - 1),  # bins end at their upper edge
        (20, 2 * BINS_PER_SIDE),
        (21, RATIO_BINS - 1),
        (np.inf, RATIO_BINS - 1),
        (0, 0),
    ],
)
def test_the_bin_of_a_ratio(ratio, want):
    """The limit is an edge; what is beyond 20 times it, or failed, is in the last bin."""
    assert ratio_bin(np.array([float(ratio)])).tolist() == [want]


def total_over(level, i):
    """(observations, over the limit) of an SLO, in all blocks together."""
    sizes, over = level.over(i)
    return float(sizes.sum()), float(over.sum())


@pytest.mark.parametrize(
    ("more", "want_ttft", "want_itl", "want_ended"),
    [
        ([], (10, 0), (10, 0), (10, 0)),
        ([SLOW], (11, 1), (10, 0), (11, 0)),
        ([YOUNG], (5, 0), (10, 0), (10, 0)),  # those sent at 5 s or later wait for its latency
        ([OLD], (11, 1), (10, 0), (10, 0)),
        ([CUT], (5, 0), (10, 0), (10, 0)),  # no failure, and it has not ended
        ([CUT_OLD], (11, 1), (10, 0), (10, 0)),
        ([FAILED], (11, 1), (12, 2), (11, 1)),  # two gaps of three tokens never came
    ],
)
def test_counts_of_a_step(more, want_ttft, want_itl, want_ended):
    """(observations, over the limit) of both SLOs and (ended, failed)."""
    found = gather_evidence(table(*CLEAN, *more), TEN_S, (TTFT, ITL))
    assert total_over(found, 0) == want_ttft
    assert total_over(found, 1) == want_itl
    assert (found.ended.sum(), found.errors.sum()) == want_ended
    assert found.tokens.sum() == 20 + sum(len(added.at_ns) for added in more)
    assert found.seconds == 10


@pytest.mark.parametrize(
    ("high", "over", "lasting", "want"),
    [
        ([0] * 24, 0, True, 1.0),  # none stands out
        ([0] * 24, 1, True, 1.0),  # nor where a quarter is over, evenly
        ([4, 0, 0, 0] * 6, 0, False, 1.0),  # without a hit nothing clusters
        ([4, 0, 0, 0] * 6, 0, True, 4.17),  # by 4, a block: 4 x 24 / 23
        ([4, 4, 4, 4, 0, 0, 0, 0] * 3, 0, True, 19.2),  # by 16, four blocks: 16 x 6 / 5
    ],
)
def test_what_clusters(high, over, lasting, want):
    """24 blocks of four; `high`: how many are just below the limit, `over`: above, in each.

    The tail that is looked at is twice the share allowed: the ones below the limit, where any are.
    """
    grid = np.zeros((24, RATIO_BINS))
    grid[:, BINS_PER_SIDE] = high
    grid[:, BINS_PER_SIDE + 1] = over
    grid[:, 100] = 4 - grid.sum(axis=1)
    level = replace(evidence(8, blocks=24), grids=(grid,), lasting=lasting)
    allowed = max(sum(high), 24) / 96 / 2
    assert level.effect(0, allowed) == pytest.approx(want, abs=0.05)


@pytest.mark.parametrize(
    ("load", "session", "want"), [(Users(8), -1, False), (Rate(20), -1, True), (Users(8), 3, True)]
)
def test_what_outlasts_a_request(load, session, want):
    """The queue of an open loop, and sessions; pooled, too."""
    sent = table(*(replace(clean, session=session) for clean in CLEAN))
    found = gather_evidence(sent, replace(TEN_S, load=load), (TTFT,))
    assert found.lasting == want
    assert pool_evidence([found, found]).lasting == want


def test_blocks_are_of_time():
    """Ten seconds in 24 blocks: 10 s over a lifetime of 140 ms are more than the most."""
    found = gather_evidence(table(*CLEAN), TEN_S, (TTFT,))
    sizes, _ = found.over(0)
    assert found.blocks == 24
    # sent at s seconds: floor(s / (10 / 24)); 5 s just misses 12, for blocks are 1 ns longer
    assert np.flatnonzero(sizes).tolist() == [0, 2, 4, 7, 9, 11, 14, 16, 19, 21]


def test_the_mean_lifetime_counts_what_is_open():
    """Ten of 140 ms and one open for 600 ms over ten ended: (1400 + 600) / 10."""
    assert lifetime_ns(table(*CLEAN, OLD)) == 200_000_000


@pytest.mark.parametrize(
    ("within", "over", "q", "want_bins"),
    [
        (90, 10, 0.95, 0.5),  # the 95th of 100 is half way into the first bin above
        (95, 5, 0.95, 0),  # at the limit
        (100, 0, 0.95, -0.05),  # 95 of 100 into the bin that ends at the limit
        (0, 100, 0.5, 0.5),
    ],
)
def test_the_quantiles_ratio_to_the_limit(within, over, q, want_bins):
    """Linear within a bin, as a logarithm."""
    level = evidence(8, (within + over, over))
    counts = level.grids[0].sum(axis=0)
    assert ratio_quantiles(counts[None], q)[0] == pytest.approx(want_bins * STEP)


def test_the_worst_ratio_leaves_out_what_was_not_observed():
    """No gaps: TTFT alone; nothing at all: NaN."""
    no_gaps = evidence(8, (100, 10), (0, 0))
    nothing = evidence(8, (0, 0), (0, 0))
    assert worst_ratio(no_gaps, (TTFT, ITL))[0] == pytest.approx(STEP / 2)
    assert np.isnan(worst_ratio(nothing, (TTFT, ITL))[0])


def test_steps_of_one_level_are_pooled():
    """Blocks side by side, time added up."""
    short = evidence(8, (100, 10), seconds=20)
    long = evidence(8, (300, 0), seconds=40, blocks=4)
    both = pool_evidence([short, long])
    sizes, hits = both.over(0)
    assert both.blocks == 12
    assert both.seconds == 60
    assert sizes.sum() == 400
    assert hits.sum() == 10
