"""The isotonic fit of the criterion over load, and where it crosses the limit."""

from math import log

import numpy as np
import pytest
from measure_tables import evidence

from harness.metrics.evidence import BINS_PER_SIDE
from harness.metrics.slo import Slo
from harness.search.fit import (
    fit_crossing,
    fit_levels,
    isotonic,
    local_crossing,
    zero_crossing,
)
from harness.search.logit_margin import logit_margin
from harness.search.next_level import Done, SearchPlan, next_action

TTFT = Slo.parse("ttft_p95=500ms")
ITL = Slo.parse("itl_p95=50ms")
ONE = (TTFT,)
BOTH = (TTFT, ITL)
LIMIT = log(0.05 / 0.95)  # log-odds of the share allowed


def odds(p: float) -> float:
    """log(p / (1 - p))."""
    return log(p / (1 - p))


@pytest.mark.parametrize(
    ("counts", "failed", "max_errors", "want"),
    [
        # one observation at the allowed share is added: (k + 0.05) / (n + 1)
        ([(99, 4.95)], 0, 0.01, 0),  # 5.00 of 100
        ([(99, 9.95)], 0, 0.01, odds(0.1) - LIMIT),  # 10 of 100
        ([(99, 0)], 0, 0.01, odds(0.0005) - LIMIT),  # 0.05 of 100
        ([(99, 4.95), (99, 9.95)], 0, 0.01, odds(0.1) - LIMIT),  # the worst of the two
        ([(99, 4.95), (0, 0)], 0, 0.01, 0),  # no gaps: the other alone
        ([(0, 0), (99, 9.95)], 0, 0.01, odds(0.1) - LIMIT),
        ([(0, 0), (0, 0)], 0, 0.01, float("nan")),
        ([(99, 4.95)], 40, 0.01, odds(40.01 / 401) - odds(0.01)),  # of 400 requests
        ([(99, 4.95)], 40, 0.2, 0),  # 10 % is fewer than may
        ([(99, 4.95)], 1, 0.01, 0),  # one of 400 is no proof
        ([(99, 4.95)], 1, 0, odds(1.000001 / 401) - odds(1e-6)),  # but none may
        ([(99, 4.95)], 400, 1, 0),  # all may
        ([(0, 0)], 40, 0.01, odds(40.01 / 401) - odds(0.01)),
    ],
)
def test_the_criterion_of_a_level(counts, failed, max_errors, want):
    """Log-odds of the worst share less those allowed; what was not observed has no say."""
    seen = evidence(8, *counts, failed=failed)
    slos = (TTFT, ITL)[: len(counts)]
    got = logit_margin(seen, slos, max_errors)[0]
    assert got.tolist() == pytest.approx([want], abs=1e-12, nan_ok=True)


def test_a_level_whose_failures_are_too_many_is_beyond_the_knee():
    """16 users keep the p95 (3 % over), but 3 % of their requests fail: the knee is below them."""
    met = evidence(8, (400, 4))
    failing = evidence(16, (800, 24), failed=24, ended=800)
    broken = evidence(32, (400, 200), failed=200)
    held = [met, failing, broken]
    plan = SearchPlan(ONE)
    assert next_action(plan, held, plan.budget_ns) == Done("found", (8, 16))
    found = fit_crossing(fit_levels(held, ONE, 0.01), ONE, 0.01)
    assert 8 <= found.lo <= found.count <= found.hi < 16


def test_a_level_without_gaps_counts_by_its_other_slo():
    """One-token answers have no gaps: the search goes by TTFT and leaves no level out."""
    met = evidence(8, (400, 4), (0, 0))
    missed = evidence(16, (400, 80), (0, 0))
    held = [met, missed]
    assert [x.count for x in fit_levels(held, BOTH, 0.01)] == [8, 16]
    found = fit_crossing(fit_levels(held, BOTH, 0.01), BOTH, 0.01)
    assert 8 < found.count < 16


def test_a_replicate_that_misses_a_criterion_takes_the_datas():
    """TTFT seen in one block of eight: the draws without that block do not fall to the ITL's."""
    level = evidence(8, (400, 80), (400, 0))
    level.grids[0][1:] = 0  # 50 in the first block, 10 over
    weights = np.eye(8)  # each draw has one block
    got = logit_margin(level, BOTH, 0.01, weights)[0]
    want = odds((10 + 0.05) / 51) - LIMIT
    assert got == pytest.approx([want] * 8)


@pytest.mark.parametrize(
    ("values", "weights", "want"),
    [
        ([1, 2, 3], [1, 1, 1], [1, 2, 3]),
        ([1, 3, 2, 4], [1, 1, 1, 1], [1, 2.5, 2.5, 4]),
        ([1, 3, 2, 4], [1, 1, 3, 1], [1, 2.25, 2.25, 4]),  # (3 + 3 x 2) / 4
        ([3, 2, 1], [1, 1, 1], [2, 2, 2]),
        ([1, 2, 0], [1, 1, 1], [1, 1, 1]),  # pools back: (2 + 0) / 2 = 1 is no violation
        ([1, 2, -3], [1, 1, 1], [0, 0, 0]),  # (2 - 3) / 2 = -0.5 is: (1 - 1) / 3
        ([5], [2], [5]),
        ([], [], []),
    ],
)
def test_isotonic(values, weights, want):
    """Neighbours that violate the order share their weighted mean."""
    fitted = isotonic(np.array(values, float), np.array(weights, float))
    assert fitted.tolist() == want


@pytest.mark.parametrize(
    ("fitted", "want"),
    [
        ([-1, 1, 2], 12),  # half way from 8 to 16
        ([-1, -1, 3], 20),  # a quarter of the way from 16 to 32
        ([-1, 0, 1], 16),  # exactly the share allowed is kept
        ([-2, -1, 0], float("inf")),
        ([1, 2, 3], 0),
    ],
)
def test_inversion(fitted, want):
    """Straight lines between the levels, read where they cross 0."""
    levels = np.array([8.0, 16, 32])
    assert zero_crossing(levels, np.array(fitted, float)) == want


@pytest.mark.parametrize(
    ("users", "slope", "want"),
    [
        ([16, 18, 20, 22, 25], 3, 20),
        ([16, 18, 20, 22, 25], -3, float("nan")),  # latency falls: no line through that
        ([16, 20, 25], 3, float("nan")),  # two parameters and one level left
        ([4, 8, 20, 40], 3, float("nan")),  # only 20 is within half a log of 20
        ([20.5, 21, 22, 25], 3, float("nan")),  # would cross below what was held
    ],
)
def test_a_line_through_the_levels_near_the_limit(users, slope, want):
    """Levels on a line in log(users) that crosses at 20 give 20."""
    at = np.array(users, float)
    values = (slope * np.log(at / 20))[:, None]
    got = local_crossing(at, values, np.ones(len(at)), 20)
    assert got.tolist() == pytest.approx([want], nan_ok=True)


def test_the_crossing_covers_a_planted_knee():
    """Log-odds that rise by 2 a doubling and cross at 20 users: of 100 intervals 90 hold 20."""
    rng = np.random.default_rng(5)
    levels = [14, 17, 20, 24, 28]
    covered = 0
    for seed in range(100):
        held = []
        for users in levels:
            share = 1 / (1 + np.exp(-(LIMIT + 2 * np.log2(users / 20))))
            level = evidence(users, (1600, 0), blocks=16)
            hits = rng.binomial(100, share, 16)
            level.grids[0][:, BINS_PER_SIDE] = 100 - hits
            level.grids[0][:, BINS_PER_SIDE + 1] = hits
            held.append(level)
        found = fit_crossing(fit_levels(held, ONE, 0.01), ONE, 0.01, seed)
        assert found.lo <= found.count <= found.hi
        covered += found.lo <= 20 <= found.hi
    assert covered >= 90
