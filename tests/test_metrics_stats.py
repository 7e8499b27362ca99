"""Quantiles that admit failures; intervals that admit autocorrelation."""

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_intervals import SERIES, interval
from stored_statistics import stored

from harness.metrics import statistics as stats
from harness.metrics.latency_figures import SampleFigures
from harness.metrics.metrics import Observations
from harness.search import judge

INF = float("inf")


@pytest.mark.parametrize(
    ("values", "q", "want"),
    [
        ([1, 2, 3, 4], 0.5, 3),  # place 1.5: the upper one
        ([1, 2, 3, 4, 5], 0.5, 3),
        ([10, 20], 0.95, 20),
        ([1, 2, 3, INF], 0.5, 3),
        ([1, 2, INF, INF], 0.5, INF),
        ([1, 2, 3, INF, INF], 0.5, 3),  # place 2 exactly
        ([INF], 0.95, INF),
    ],
)
def test_quantile(values, q, want):
    """The upper order statistic of the two that a place lies between."""
    assert stats.quantile(np.array(values, float), q) == want


@given(
    st.lists(st.floats(0, 1e9) | st.just(INF), min_size=1, max_size=50),
    st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999]),
)
def test_quantile_is_numpys_upper_one(values, q):
    """As `numpy.quantile` with `method="higher"` has it, and pandas likewise; failures included."""
    got = stats.quantile(np.sort(np.array(values)), q)
    assert got == np.quantile(values, q, method="higher")


@pytest.mark.parametrize(
    ("n", "q", "effect", "blocks", "want"),
    [
        # n q -+ t sqrt(n effect q (1 - q)) from 1, outwards; t of 23 degrees of freedom is 2.07
        (100, 0.5, 1, 24, (38, 60)),  # 50 -+ 10.3
        (1000, 0.95, 1, 24, (934, 964)),  # 950 -+ 14.3
        (1000, 0.95, 4, 24, (920, 978)),  # 950 -+ 28.5
        (1000, 0.95, 1, 5, (929, 969)),  # t of 4 is 2.78: 950 -+ 19.1
        (60, 0.95, 1, 24, (52, None)),  # 57 -+ 3.5: above all 60
        (1, 0.5, 1, 1, (0, None)),
    ],
)
def test_ranks_of_an_interval(n, q, effect, blocks, want):
    """Order statistics, counted from 0."""
    assert stats.interval_ranks(n, q, effect, blocks) == want


@pytest.mark.parametrize(
    ("p", "df", "want"),
    [(0.975, 4, 2.776), (0.975, 11, 2.201), (0.95, 6, 1.943), (0.975, 1000, 1.962)],
)
def test_t_quantile(p, df, want):
    """The series is within 1 % of the printed tables."""
    assert stats.t_quantile(p, df) == pytest.approx(want, rel=0.01)


@pytest.mark.parametrize(("memory", "n", "batch", "blocks"), SERIES)
def test_intervals_cover(memory, n, batch, blocks):
    """Of 200 series, 93% at least, for a p50, p95 and p99; the p50's and p95's are not too wide."""
    hits, widths = stored("intervals")[memory, n, batch, blocks]
    assert {q: count for q, count in hits.items() if count < 0.93 * 200} == {}
    # in 1.96 standard errors to both sides, with so many independent values as there are
    independent = n * (1 - memory) / (1 + memory)
    for q in (0.5, 0.95):
        density = NormalDist().pdf(NormalDist().inv_cdf(q))
        standard_error = (q * (1 - q) / independent) ** 0.5 / density
        plain = 2 * 1.96 * standard_error
        assert widths[str(q)] < 2.5 * plain, q


def test_an_interval_that_takes_gaps_for_independent_does_not_cover():
    """What blocks are for: of shared gaps in any order, 60% at most."""
    rng = np.random.default_rng(7)
    hits = 0
    runs = 100
    for _ in range(runs):
        gaps = np.repeat(rng.standard_normal(400), 32)
        blocks = rng.permutation(len(gaps)) // 640
        found = interval(gaps, blocks, 0.95)
        hits += found.lo <= 1.6448536 <= found.hi
    assert hits <= 0.60 * runs


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
    runs = 1000
    looks = 400
    alpha = 0.05
    k = np.cumsum(rng.random((runs, looks)) < 0.05, axis=1)
    wrong = 0
    for row in k:
        for n in range(5, looks + 1, 5):
            if judge.judge_share(n, row[n - 1], 0.05, alpha) != "inconclusive":
                wrong += 1
                break
    assert wrong <= alpha * runs


@pytest.mark.parametrize(
    ("cluster", "want"),
    [(1, 1), (10, 10)],  # ten equal neighbors are one observation
)
def test_effect_of_values_that_agree(cluster, want):
    """Observations that always agree count once."""
    rng = np.random.default_rng(3)
    values = np.repeat(rng.random(2000 // cluster), cluster)
    rows = np.arange(2000)
    observations = Observations(values, values, values, rows, rows)
    sample = SampleFigures(observations, rows // 40)
    assert sample.effect(0.8) == pytest.approx(want, rel=0.45)


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
    sizes = np.array(sizes, float)
    hits = np.array(hits, float)
    assert stats.design_effect(sizes, hits) == pytest.approx(want)


def is_ever_decided(sizes, hits, looks, corrected):
    """Whether one of the looks, each after so many blocks, decides about a share of 5 %."""
    n = np.cumsum(sizes)
    k = np.cumsum(hits)
    for blocks in looks:
        effect = stats.design_effect(sizes[:blocks], hits[:blocks]) if corrected else 1.0
        decided = judge.judge_share(n[blocks - 1], k[blocks - 1], 0.05, 0.05, effect)
        if decided != "inconclusive":
            return True
    return False


def test_clustered_observations_keep_the_error_rate():
    """At the allowed share, hits in clusters of 8, looks at 12 to 60 blocks: few wrong decisions.

    Uncorrected the same looks are wrong in more than a third of the runs.
    """
    rng = np.random.default_rng(23)
    runs = 300
    wrong = 0
    plain = 0
    looks = range(12, 61, 4)
    sizes = np.full(60, 40.0)
    for _ in range(runs):
        hits = 8.0 * (rng.random((60, 5)) < 0.05).sum(axis=1)  # 5 clusters of 8 in each block
        wrong += is_ever_decided(sizes, hits, looks, corrected=True)
        plain += is_ever_decided(sizes, hits, looks, corrected=False)
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
