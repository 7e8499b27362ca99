"""Numbers carry the digits that their interval leaves them."""

import math
from typing import Any

import pytest

from harness.measure.result import Latency
from harness.report.say import Figure, count, say

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("value", "lo", "hi", "want"),
    [
        (412.37, 398.2, 431.9, "412"),  # half-width 16.9: its first digit is 1, so one more place
        (412.37, 371, 455, "410"),  # half-width 42: tens
        (412.37, 412.1, 412.7, "412.4"),  # half-width 0.3
        (20.0513, 20.04, 20.06, "20.051"),  # half-width 0.01: leads with 1
        (1911.4, 1875, 1950, "1,910"),  # half-width 37: tens
        (1911.4, 900, 2900, "1,900"),  # half-width 1000: leads with 1, hundreds
        (0.0123, 0.011, 0.0136, "0.0123"),
        (412.37, NAN, NAN, "412"),  # three digits
        (4.1237, NAN, NAN, "4.12"),
        (41237.0, NAN, NAN, "41,237"),  # never fewer than it has in front of the point
        (412.37, 412.37, 412.37, "412"),  # an interval without width says nothing about digits
        (0, NAN, NAN, "0.00"),
        (-0.0001, -0.1, 0.1, "0.00"),  # no minus zero
        (INF, 400, INF, "inf"),
        (500, 400, INF, "500"),
        (NAN, 1, 2, "–"),  # noqa: RUF001 - the dash that is printed
        (123456789.123, 123456789.1, 123456789.2, "123,457,000"),  # six digits at most
    ],
)
def test_say(value: float, lo: float, hi: float, want: str) -> None:
    """The half-width's first digit is the last that is printed."""
    assert say(value, lo, hi) == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ({"p95": 412.37, "p95_ci95": (398.2, 431.9)}, "412 ms (398 to 432)"),
        ({"p95": 412.37}, "412 ms"),
        ({"p95": INF, "p95_ci95": (430.2, INF)}, "inf (430 to inf)"),
        ({"p95": 412.37, "p95_ci95": (398.2, NAN)}, "412 ms (at least 398)"),
        ({}, "–"),  # noqa: RUF001 - the dash that is printed
    ],
)
def test_figures_of_a_latency(data: dict[str, Any], want: str) -> None:
    """A figure comes with its interval, whatever is missing."""
    assert str(Figure.of(Latency(**data), "p95")) == want


@pytest.mark.parametrize(("n", "want"), [(0, "0 users"), (1, "1 user"), (1200, "1,200 users")])
def test_count(n: int, want: str) -> None:
    """One of a thing has no plural."""
    assert count(n, "user") == want
