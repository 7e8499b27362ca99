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
        (50, 0, 0.05, "undecided"),
        (90, 0, 0.05, "good"),
        (125, 0, 0.05 / 8, "undecided"),
        (126, 0, 0.05 / 8, "good"),  # the figure in the module's text
        (126, 6, 0.05 / 8, "undecided"),  # 4.8 %
        (3, 3, 0.05 / 8, "undecided"),
        (5, 5, 0.05 / 8, "bad"),
        (1000, 100, 0.05 / 8, "bad"),
        (1000, 20, 0.05 / 8, "good"),
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
            judge.judge_share(n, row[n - 1], 0.05, alpha) != "undecided"
            for n in range(5, looks + 1, 5)
        )
    assert wrong <= alpha * runs
