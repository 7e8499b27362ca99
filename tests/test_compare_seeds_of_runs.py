"""Two runs beside each other: intervals, verdicts, and how often they are wrong."""

from __future__ import annotations

from dataclasses import replace
from math import exp, expm1, inf, log
from typing import TYPE_CHECKING

import numpy as np
import pytest
from knee_model import Model
from stored_statistics import stored

from harness.compare.compare_folders import common_pairs
from harness.metrics.level_figures import Change
from harness.search.comparison import (
    ERROR_SHARE,
    KNEE,
    Z95,
    Comparison,
    Pair,
    Side,
    compare,
    holm,
    knee_side,
    latency_side,
    rate_side,
    share_side,
)
from harness.search.fit import Crossing

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.metrics.level_figures import Difference


def side(point: float, error: float) -> Side:
    """A normal figure."""
    return Side(exp(point), point, lambda z: (point - z * error, point + z * error))


def pair(change: float, error: float, metric: str = "ttft_p95") -> Pair:
    """B is A and `change` (of the log), known to `error`."""
    return Pair(metric, 8, side(log(500), 0), side(log(500) + change, error))


@pytest.mark.parametrize(
    ("z", "weights", "want"),
    [
        # one-sided p of 2.5: 0.0062, of 2.2: 0.0139, of 2: 0.0228; each against 0.05 / those left
        ([2.5, 2.2, 2.0, 0], [1, 1, 1, 1], [True, True, True, False]),  # 4, 3, 2
        ([2.2, 2.0, 0, 0], [1, 1, 1, 1], [False] * 4),  # 0.0139 > 0.0125
        ([2.0, 0, 0, 0], [3, 1, 1, 1], [True, False, False, False]),  # 0.0228 < 0.05 / 2
        ([1.8], [1], [False]),  # 0.0359 < 0.05, but the 95% interval holds no change
        ([], [], []),
    ],
)
def test_holm(z: list[float], weights: list[int], want: list[bool]) -> None:
    """The surest first, until one is not sure enough."""
    assert holm(z, weights) == want


@pytest.mark.parametrize(
    ("change", "error", "tolerance", "want"),
    [
        (0.10, 0.01, 0.05, (Change.worse, True, None)),
        (0.03, 0.01, 0.05, (Change.worse, False, None)),
        (0.06, 0.01, 0.05, (Change.worse, False, None)),  # log 1.05 = 0.0488: 1.1 errors away
        (0.06, 0.01, 0.00, (Change.worse, True, None)),
        (-0.03, 0.01, 0.05, (Change.better, False, None)),
        (0.01, 0.01, 0.05, (Change.no_difference_shown, False, None)),  # at most 0.0296
        (0.01, 0.03, 0.05, (Change.inconclusive, False, 2.3)),  # (1.96 x 0.03 / 0.0388)^2
        (0.04, 0.03, 0.05, (Change.inconclusive, False, 2.2)),  # (1.96 x 0.03 / 0.04)^2
        (0.01, 0.01, 0.00, (Change.inconclusive, False, 3.8)),  # nothing is shown to be equal
        (-0.01, 0.03, 0.05, (Change.inconclusive, False, 1.1)),  # at most 0.0488
        (0.00, 0.01, 0.00, (Change.inconclusive, False, None)),  # no number of requests will do
    ],
)
def test_verdicts(
    change: float, error: float, tolerance: float, want: tuple[Change, bool, float | None]
) -> None:
    """What is said of one latency; and of one throughput that falls by as much."""
    (got,) = compare([pair(change, error)], tolerance, 0.01)
    assert (got.verdict, got.beyond, got.needs_times) == want
    assert (got.a, got.change) == pytest.approx((500, expm1(change)))
    lo = change - Z95 * error
    hi = change + Z95 * error
    assert got.ci95 == pytest.approx((expm1(lo), expm1(hi)))
    if tolerance == 0:  # a loss of 5% is a larger log than a gain
        (got,) = compare([pair(-change, error, "requests_per_s")], tolerance, 0.01)
        assert (got.verdict, got.beyond, got.needs_times) == want


@pytest.mark.parametrize(
    ("knee_z", "figure_z", "want"),
    [
        (2.0, 0, (True, False)),  # 0.0228 < 0.05 / 2
        (1.9, 3.4, (False, False)),  # 0.00034 > 0.05 / 200
        (1.9, 3.6, (False, True)),  # 0.00016
        (2.0, 3.4, (True, True)),  # once the knee is shown, its half is theirs: 0.05 / 100
        (2.0, 3.2, (True, False)),
    ],
)
def test_half_of_alpha_is_the_knees(
    knee_z: float, figure_z: float, want: tuple[bool, bool]
) -> None:
    """A knee beside 100 other figures."""
    knee = pair(-knee_z, 1, KNEE)
    figure = pair(figure_z, 1)
    unchanged = [pair(0, 1)] * 99
    found = compare([knee, figure, *unchanged], 0, 0.01)
    assert tuple(d.verdict is Change.worse for d in found[:2]) == want


VALUES = np.arange(1.0, 401) * 1e6  # 1 to 400 ms
IN_TURN = np.arange(400) % 8  # eight blocks, all alike


@pytest.mark.parametrize(
    ("q", "values", "blocks", "ms", "within"),
    [
        # standard error of the share: sqrt(0.5 x 0.5 / 400) = 0.025; t of 7 degrees at 95%: 2.36
        (0.5, VALUES, IN_TURN, 201, (176.4, 223.6)),
        (0.95, VALUES, IN_TURN, 381, (369.7, 390.3)),
        (0.99, VALUES, IN_TURN, 397, (391.3, inf)),  # 0.99 + 2.36 x 0.005 is above 1
        (0.95, np.where(VALUES > 350e6, inf, VALUES), IN_TURN, inf, (inf, inf)),  # 12.5% failed
        (0.95, np.where(VALUES > 375e6, inf, VALUES), IN_TURN, inf, (369.7, inf)),  # 6.25%
        (0.5, VALUES, np.arange(400) // 134, 201, (0, inf)),  # three blocks know no spread
        (0.5, VALUES, np.arange(400) // 50, 201, (1, inf)),  # 8 blocks, each unlike the last
    ],
)
def test_a_quantile_and_its_interval(
    q: float, values: np.ndarray, blocks: np.ndarray, ms: float, within: tuple[float, float]
) -> None:
    """The upper order statistic, as numpy has it, between two others."""
    got = latency_side(q, values, blocks)
    lo, hi = np.exp(got.bounds(Z95)) / 1e6
    assert got.value == ms == np.quantile(values, q, method="higher") / 1e6
    assert (lo, hi) == pytest.approx(within, abs=1.01) or (lo <= within[0] and hi == within[1])


@pytest.mark.parametrize(
    ("amounts", "users", "error"),
    [
        ([90, 110] * 4, 1, 0.0378),  # sqrt(8 / 7 x 8) x 10 / 800
        ([100] * 8, 1, 0.0005),  # one user's token more or less: 1 / sqrt(6) / 800
        ([100] * 8, 100, 0.0510),  # in lockstep
        ([80, 90, 100, 110, 120, 110, 100, 90], 1, 0.0655),  # neighbors alike: 1200 + 2 x 600
    ],
)
def test_a_rate_and_its_error(amounts: list[int], users: int, error: float) -> None:
    """100 a block of a second, as sure as the blocks are alike."""
    got = rate_side(np.array(amounts), np.ones(8), users, 1)
    lo, hi = got.bounds(1.0)
    assert got.value == pytest.approx(100)
    assert (hi - lo) / 2 / 1.08 == pytest.approx(error, rel=0.02)  # t of 7 degrees for z = 1


@pytest.mark.parametrize(
    ("hits", "n", "want"),
    [(0, 100, (0, 0.0370)), (5, 100, (0.0215, 0.1118)), (100, 100, (0.9630, 1))],
)
def test_a_share_of_failures(hits: int, n: int, want: tuple[float, float]) -> None:
    """Wilson's interval, as the textbooks have it."""
    assert share_side(hits, n).bounds(Z95) == pytest.approx(want, abs=1e-4)


def failures(hits: int, n: int) -> Difference:
    """None of 400 failed in A."""
    a = share_side(0, 400)
    b = share_side(hits, n)
    (found,) = compare([Pair(ERROR_SHARE, 8, a, b)], 0.05, 0.01)
    return found


@pytest.mark.parametrize(
    ("hits", "n", "want"),
    [
        (0, 1000, (Change.no_difference_shown, False)),  # A within 0.96%, B within 0.38%
        (0, 100, (Change.inconclusive, False)),  # B may have 3.7%
        (6, 400, (Change.worse, False)),  # 1.5%, but a point more is not shown
        (20, 400, (Change.worse, True)),
        (8, 12, (Change.worse, True)),  # broken off: one burst, and it counts
    ],
)
def test_failures_are_compared_in_points(hits: int, n: int, want: tuple[Change, bool]) -> None:
    """The tolerance is what may fail, where that is less."""
    got = failures(hits, n)
    assert (got.verdict, got.beyond) == want
    assert got.change == hits / n


CROSS = Crossing(100, 97, 103, np.array([97.0] * 15 + [100] * 370 + [103] * 15), (98, 102))


@pytest.mark.parametrize(
    ("other", "verdict", "beyond"),
    [
        (CROSS, Change.inconclusive, False),  # at most 4.8% lower; the bracket's width counts
        (replace(CROSS, count=90, draws=CROSS.draws * 0.9, between=(88, 92)), Change.worse, True),
        # nothing above 94 was held, and 94 passes: it may be anything above
        (
            replace(CROSS, count=inf, draws=np.full(400, inf), between=(94, inf)),
            Change.inconclusive,
            False,
        ),
        (
            replace(CROSS, count=inf, draws=np.full(400, inf), between=(128, inf)),
            Change.better,
            False,
        ),
        # not even 64 users pass
        (replace(CROSS, count=0, draws=np.zeros(400), between=(0, 64)), Change.worse, True),
        (
            replace(CROSS, count=0, draws=np.zeros(400), between=(0, 128)),
            Change.inconclusive,
            False,
        ),
    ],
)
def test_knees(other: Crossing, verdict: Change, *, beyond: bool) -> None:
    """Also one that lies beyond what was held."""
    (got,) = compare([Pair(KNEE, 0, knee_side(CROSS), knee_side(other))], 0.045, 0.01)
    assert got.verdict == verdict
    assert got.beyond == beyond
    assert got.b == other.count


@pytest.mark.parametrize(
    ("extra", "want"),
    [
        ([], 6),
        ([pair(0, 0.01)], 0),
        ([pair(1, 0.01)], 99),
    ],
)
def test_nothing_known_is_no_green(extra: list[Pair], want: int) -> None:
    """Three requests a side: no figure has an interval, and the exit code says so."""
    few = latency_side(0.5, VALUES[:3], IN_TURN[:3])
    pairs = [Pair("ttft_p50", 8, few, few), *extra]
    found = Comparison("a", "b", 0.05, {}, compare(pairs, 0.05, 0.01))
    assert found.exit_code == want
    assert found.differences[0].ci95 == (-1, inf)


def test_pairs_of_a_model(figure: Callable[[str], None]) -> None:
    """Nothing changed, and a knee 10% lower: as `make statistics` has stored it."""
    told = stored("pairs").values()
    assert len(told) == 25
    alarms = sum(one["alarm"] for one in told)
    worse = sum(one["worse"] for one in told)
    beyond = sum(one["beyond"] for one in told)
    figure(
        f"compare, 25 pairs of a model: {alarms} false alarms; a knee 10% lower is worse in "
        f"{worse}, by more than 5% in {beyond}"
    )
    assert alarms <= 4  # of a true 5%, 95% of such tests have no more
    assert worse >= 23  # 90%
    assert beyond >= 20


@pytest.mark.parametrize(
    ("other", "metrics"),
    [
        (Model(100, ttft=1.4), {"ttft_p50", "ttft_p95", "e2e_p50", "e2e_p95"}),
        (Model(100, itl=1.3), {"itl_p50", "itl_p95", "tpot_p50", "e2e_p50"}),
        (Model(100, fail=0.08), {ERROR_SHARE}),
    ],
)
def test_what_changed_is_named(other: Model, metrics: set[str]) -> None:
    """One level of 2,000 requests, without a search: each change shows where it belongs."""
    a = Model(100).held(1, (64, 2000), searched=False)
    b = other.held(2, (64, 2000), searched=False)
    found = compare(common_pairs(a, b), 0.05, 0.01)
    beyond = {difference.metric for difference in found if difference.beyond}
    assert metrics <= beyond
    assert all(difference.verdict is not Change.better for difference in found)
