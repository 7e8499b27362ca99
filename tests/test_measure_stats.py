"""Quantiles that admit failures; intervals that admit autocorrelation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.measure import judge, stats

INF = float("inf")


@pytest.mark.parametrize(
    ("values", "q", "want"),
    [
        ([1, 2, 3, 4], 0.5, 2.5),  # type 7: place 1.5
        ([1, 2, 3, 4, 5], 0.5, 3),
        ([10, 20], 0.95, 19.5),  # 10 + 0.95 * 10
        ([1, 2, 3, INF], 0.5, 2.5),
        ([1, 2, INF, INF], 0.5, INF),  # the neighbour above is infinite: take it
        ([1, 2, 3, INF, INF], 0.5, 3),  # place 2 exactly: no neighbour needed
        ([INF], 0.95, INF),
    ],
)
def test_quantile(values, q, want):
    """Type 7, the upper order statistic where a neighbour is infinite."""
    assert stats.quantile(np.array(values, float), q) == want


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.95]))
def test_quantile_is_numpys_on_finite_values(values, q):
    """Where nothing is infinite the quantile is numpy's default (type 7)."""
    got = stats.quantile(np.sort(np.array(values)), q)
    assert got == pytest.approx(np.quantile(values, q), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "q", "want"),
    [
        (199, 0.95, False),
        (200, 0.95, True),
        (19, 0.5, False),
        (20, 0.5, True),
        (10_000, 0.999, True),
    ],
)
def test_a_quantile_needs_ten_observations_beyond_it(n, q, want):
    """N (1 - q) >= 10."""
    assert stats.reportable(n, q) is want


@pytest.mark.parametrize(
    ("p", "df", "want"),
    [(0.975, 4, 2.776), (0.975, 11, 2.201), (0.95, 6, 1.943), (0.975, 1000, 1.962)],
)
def test_t_quantile(p, df, want):
    """The series is within 1 % of the printed tables."""
    assert stats.t_quantile(p, df) == pytest.approx(want, rel=0.01)


def test_interval_of_shared_gaps_covers_where_the_iid_one_does_not():
    """Gaps shared by whole batches: blocks over time keep about 95 %, ignoring them does not."""
    rng, truth, block_hits, iid_hits, runs = np.random.default_rng(7), 0.0, 0, 0, 200
    truth = float(np.exp(0.3 * 1.6448536))  # p95 of the lognormal below
    for _ in range(runs):
        steps = np.exp(0.3 * rng.standard_normal(400))  # one gap per engine step ...
        gaps = np.repeat(steps, 32)  # ... shared by a batch of 32
        at = np.repeat(np.arange(400), 32)
        block = stats.quantile_interval(gaps, at // 20, 0.95, seed=1)
        shuffled = stats.quantile_interval(gaps, rng.permutation(len(gaps)) // 20, 0.95, seed=1)
        block_hits += block.lo <= truth <= block.hi
        iid_hits += shuffled.lo <= truth <= shuffled.hi
    assert block_hits >= 0.90 * runs
    assert iid_hits <= 0.60 * runs


@pytest.mark.parametrize(
    ("cluster", "want"),
    [(1, 2000), (10, 200)],  # ten equal neighbours are one observation
)
def test_effective_n(cluster, want):
    """Observations that always agree count once."""
    rng = np.random.default_rng(3)
    over = np.repeat(rng.random(2000 // cluster) < 0.2, cluster)
    got = stats.effective_n(over, np.arange(2000) // 40)
    assert got == pytest.approx(want, rel=0.45)


@pytest.mark.parametrize(
    ("n", "k", "alpha", "want"),
    [
        (50, 0, 0.05, "inconclusive"),
        (90, 0, 0.05, "pass"),
        (125, 0, 0.05 / 8, "inconclusive"),
        (126, 0, 0.05 / 8, "pass"),  # the figure in the module's text
        (126, 6, 0.05 / 8, "inconclusive"),  # 4.8 %
        (3, 3, 0.05 / 8, "inconclusive"),
        (5, 5, 0.05 / 8, "fail"),
        (1000, 100, 0.05 / 8, "fail"),
        (1000, 20, 0.05 / 8, "pass"),
    ],
)
def test_judging_a_share(n, k, alpha, want):
    """The sequential test on clean, middling and bad counts."""
    assert judge.judge_share(n, k, 0.05, alpha) == want


def test_looking_after_every_request_keeps_the_error_rate():
    """At exactly the allowed share, 400 looks in each of 1,000 runs decide wrongly under 5 %."""
    rng = np.random.default_rng(11)
    runs, looks, alpha = 1000, 400, 0.05
    k = np.cumsum(rng.random((runs, looks)) < 0.05, axis=1)
    wrong = 0
    for row in k:
        wrong += any(
            judge.judge_share(n, row[n - 1], 0.05, alpha) != "inconclusive"
            for n in range(5, looks + 1, 5)
        )
    assert wrong <= alpha * runs


@pytest.mark.parametrize(
    ("memory", "n", "block"),
    [(0.0, 600, 25), (0.9, 2400, 100)],  # independent; like the tenth before by a third
)
def test_the_block_bootstrap_covers(memory, n, block):
    """Intervals of a p90 over 24 blocks hold the true one in 90 % of 200 series at least."""
    rng, hits, runs = np.random.default_rng(19), 0, 200
    truth = 1.2815516  # of a standard normal
    for _ in range(runs):
        noise = rng.standard_normal(n) * (1 - memory**2) ** 0.5
        noise[0] = rng.standard_normal()
        series = noise.copy()
        for i in range(1, n):
            series[i] += memory * series[i - 1]
        found = stats.quantile_interval(series, np.arange(n) // block, 0.9, seed=2)
        hits += found.lo <= truth <= found.hi
    assert hits >= 0.90 * runs


@pytest.mark.parametrize(("blocks", "want"), [(3, None), (4, True)])
def test_an_interval_needs_four_blocks(blocks, want):
    """A spread of three says nothing."""
    found = stats.quantile_interval(np.arange(400.0), np.arange(400) * blocks // 400, 0.9)
    assert (found is not None) is bool(want)


@pytest.mark.parametrize(
    ("sizes", "hits", "want"),
    [
        ([10, 10], [1, 1], 1),  # alike: never below 1
        ([10, 10], [0, 10], 20),  # p = 1/2: 2 (25 + 25) / 400 = 0.25 over 0.25 / 20
        ([10, 10, 10, 10], [0, 10, 0, 10], 40 / 3),  # 4/3 (4 x 25) / 1600 over 0.25 / 40
        ([10, 10], [0, 0], 1),
        ([20], [5], 1),  # one block has no spread
    ],
)
def test_design_effect(sizes, hits, want):
    """Variance of the share over blocks by that of independent observations."""
    got = stats.design_effect(np.array(sizes, float), np.array(hits, float))
    assert got == pytest.approx(want)


def test_clustered_observations_keep_the_error_rate():
    """At the allowed share, hits in clusters of 8, looks at 12 to 60 blocks: few wrong decisions.

    Uncorrected the same looks are wrong in more than a third of the runs.
    """
    rng, runs, wrong, plain = np.random.default_rng(23), 300, 0, 0
    looks = range(12, 61, 4)
    for _ in range(runs):
        hits = 8.0 * (rng.random((60, 5)) < 0.05).sum(axis=1)  # 5 clusters of 8 in each block
        sizes = np.full(60, 40.0)
        n, k = np.cumsum(sizes), np.cumsum(hits)
        for corrected in (True, False):
            decided = any(
                judge.judge_share(
                    n[b - 1], k[b - 1], 0.05, 0.05,
                    stats.design_effect(sizes[:b], hits[:b]) if corrected else 1.0,
                ) != "inconclusive"
                for b in looks
            )  # fmt: skip
            wrong += decided and corrected
            plain += decided and not corrected
    assert wrong <= 0.08 * runs
    assert plain >= 0.33 * runs


@pytest.mark.parametrize(
    ("blocks", "want"),
    [
        # Phi(t_0.975(B - 1) x sqrt(B / (B - 1))): few blocks, wider percentiles
        (5, 0.9990),  # 2.776 x sqrt(5 / 4) = 3.104
        (12, 0.9892),  # 2.201 x sqrt(12 / 11) = 2.299
        (1001, 0.9752),  # 1.962 x sqrt(1001 / 1000) = 1.963
    ],
)
def test_percentiles_to_read_from_few_blocks(blocks, want):
    """Both tails alike, further out the fewer blocks there are."""
    low, high = stats.percentile_levels(blocks)
    assert high == pytest.approx(want, abs=2e-4)
    assert low == pytest.approx(1 - high)
