"""Cumulative buckets: what came between two readings, and what they tell of a quantile."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records.histogram import Histogram, histogram_delta, quantile_bounds, sum_histograms

BOUNDS = (0.1, 1.0, 10.0, inf)
EMPTY = Histogram(BOUNDS, (0.0, 0.0, 0.0, 0.0), 0.0)
FIRST = Histogram(BOUNDS, (1.0, 3.0, 3.0, 4.0), 30.0)
LAST = Histogram(BOUNDS, (2.0, 6.0, 7.0, 8.0), 45.5)


@pytest.mark.parametrize(
    ("first", "last", "want"),
    [
        (FIRST, LAST, Histogram(BOUNDS, (1.0, 3.0, 4.0, 4.0), 15.5)),
        (EMPTY, FIRST, FIRST),
        (FIRST, FIRST, EMPTY),
        (LAST, FIRST, None),  # the server started anew
        (FIRST, Histogram(BOUNDS[1:], (6.0, 7.0, 8.0), 45.5), None),  # with other buckets
        (Histogram((), (), 0.0), Histogram((), (), 0.0), Histogram((), (), 0.0)),
    ],
)
def test_what_came_between(first: Histogram, last: Histogram, want: Histogram | None) -> None:
    """Counts and sums of the readings' difference."""
    assert histogram_delta(first, last) == want


def test_several_engines() -> None:
    """Counts add up bound by bound; bounds that one of them lacks are given up."""
    assert sum_histograms([FIRST]) == FIRST
    both = Histogram(BOUNDS, (3.0, 9.0, 10.0, 12.0), 75.5)
    assert sum_histograms([FIRST, LAST]) == both
    coarse = Histogram((1.0, inf), (5.0, 6.0), 2.0)
    with_coarse = Histogram((1.0, inf), (8.0, 10.0), 32.0)
    assert sum_histograms([FIRST, coarse]) == with_coarse


@pytest.mark.parametrize(
    ("histogram", "q", "want"),
    [
        # LAST's eight, by rank from 0: 0 1 | 2 3 4 5 | 6 | 7; 0.5 x 7 = 3.5, so rank 4
        (LAST, 0.5, (0.1, 1.0)),
        (LAST, 0.0, (0.0, 0.1)),
        (LAST, 0.8, (1.0, 10.0)),  # 5.6, so rank 6
        (LAST, 0.95, (10.0, inf)),  # 6.65, so rank 7
        (LAST, 1.0, (10.0, inf)),
        (EMPTY, 0.5, None),
        (Histogram((), (), 0.0), 0.5, None),
    ],
)
def test_a_quantile(histogram: Histogram, q: float, want: tuple[float, float] | None) -> None:
    """The bucket that holds it."""
    assert quantile_bounds(histogram, q) == want


@given(st.lists(st.floats(0, 20), min_size=1, max_size=60), st.floats(0, 1))
def test_the_bounds_enclose_the_quantile(values: list[float], q: float) -> None:
    """Whatever was observed, the upper order statistic of it lies within."""
    counts = tuple(float(sum(v <= bound for v in values)) for bound in BOUNDS)
    bounds = quantile_bounds(Histogram(BOUNDS, counts, sum(values)), q)
    assert bounds is not None
    low, high = bounds
    exact = float(np.quantile(values, q, method="higher"))
    assert low - 1e-9 <= exact <= high + 1e-9


def test_means() -> None:
    """Sum over count; NaN when nothing was counted."""
    assert LAST.mean == 45.5 / 8
    assert isnan(EMPTY.mean)
