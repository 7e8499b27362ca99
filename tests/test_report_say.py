"""Numbers carry the digits that their interval leaves them."""

import math

import pytest

from harness.metrics.numbers import Quantity, count_of, percent_text
from harness.metrics.result import Latency
from harness.report.small_print import started_text

INF = math.inf
NAN = math.nan


@pytest.mark.parametrize(
    ("value", "lo", "hi", "want"),
    [
        (412.37, 398.2, 431.9, "412"),  # half-width 16.9: its first digit is 1, so one more place
        (412.37, 371, 455, "410"),  # half-width 42: tens
        (412.37, 412.1, 412.7, "412.4"),  # half-width 0.3
        (20.0513, 20.04, 20.06, "20.05"),  # four digits at most
        (1911.4, 1875, 1950, "1,910"),  # half-width 37: tens
        (914.0, 500, 900, "910"),  # half-width 200: two digits all the same
        (7.12, 3, 15, "7.1"),
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
    assert Quantity(value, lo, hi).digits == want


@pytest.mark.parametrize(
    ("latency", "limit", "want"),
    [
        (Latency(p95=412.37, p95_ci95=(398.2, 431.9)), NAN, "412 ms (398 to 432)"),
        (Latency(p95=412.37), NAN, "412 ms"),
        (Latency(p95=INF, p95_ci95=(430.2, INF)), NAN, "inf (at least 430)"),
        (Latency(p95=47.9, p95_ci95=(42.4, INF)), NAN, "47.9 ms (at least 42.4)"),
        (Latency(p95=494.75, p95_ci95=(480.4, NAN)), NAN, "495 ms (at least 480)"),
        (Latency(), NAN, "–"),  # noqa: RUF001 - the dash that is printed
        # rounded, it would be at its limit or beyond: more digits, until it shows where it is
        (Latency(p95=499.7, p95_ci95=(470, 530)), 500, "499.7 ms (470 to 530)"),
        (Latency(p95=500.2, p95_ci95=(470, 530)), 500, "500.2 ms (470 to 530)"),
        (Latency(p95=446, p95_ci95=(400, 490)), 448, "446 ms (400 to 490)"),
        (Latency(p95=500, p95_ci95=(470, 530)), 500, "500 ms (470 to 530)"),
        (Latency(p95=494.75, p95_ci95=(450, 530)), 500, "490 ms (450 to 530)"),
    ],
)
def test_figures(latency: Latency, limit: float, want: str) -> None:
    """One rule for a p95 wherever it is shown, whatever is known of it."""
    assert str(Quantity.of(latency, "p95", limit)) == want


@pytest.mark.parametrize(
    ("lo", "hi", "want"),
    [
        (90, 110, False),
        (70, 120, False),  # half of the value wide
        (69, 120, True),
        (90, NAN, True),  # no upper end
        (90, INF, True),
        (NAN, NAN, False),  # a figure that has no interval at all, as a throughput
    ],
)
def test_a_weak_figure(lo: float, hi: float, want: bool) -> None:
    """Drawn hollow: its interval has no upper end, or is wider than half of it."""
    assert Quantity(100, lo, hi).weak is want


@pytest.mark.parametrize(("n", "want"), [(0, "0 users"), (1, "1 user"), (1200, "1,200 users")])
def test_count(n: int, want: str) -> None:
    """One of a thing has no plural."""
    assert count_of(n, "user") == want


@pytest.mark.parametrize(
    ("share", "want"),
    [(0.05, "5%"), (0.1, "10%"), (0.025, "2.5%"), (0.001, "0.1%"), (1, "100%"), (1 - 0.95, "5%")],
)
def test_a_share_that_was_chosen(share: float, want: str) -> None:
    """No digits are added to it, also where it is the rest of a quantile."""
    assert percent_text(share) == want


@pytest.mark.parametrize(
    ("started", "want"),
    [
        ("2026-11-25T17:29:56+0000", "25 Nov 2026, 17:29 UTC"),
        ("2026-01-05T07:09:56+0200", "5 Jan 2026, 07:09 UTC+02:00"),
        ("yesterday", "yesterday"),  # a folder of others
        ("", ""),
    ],
)
def test_when_a_run_started(started: str, want: str) -> None:
    """A time as people write it."""
    assert started_text({"clock": {"started": started}}) == want
