"""Recovery from records whose recovery is known; over repeats; the metastable boundary."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import pytest
from measure_tables import record, table
from recovery_repeats import Boundary, metastable_boundary, recovery_over

from harness.drill.recovery import Overload, Recovery, Sliding, recovery
from harness.errors import ConfigError
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.records.record_table import RecordTable

SLO = Slo.parse("ttft_p95=500ms")
# 20 requests a second: a baseline of 60 s, an overload of 10 s, 60 s that are watched
OVERLOAD = Overload(0, 60 * SECOND, 70 * SECOND, 130 * SECOND)
PER_S = 20


def run(slow: Callable[[float, int], bool], outcome: Outcome = Outcome.ok) -> RecordTable:
    """TTFT is 100 to 149 ms in turn, or 900 ms; `slow`: of the second since the overload's end."""
    rows = []
    for number in range(130 * PER_S):
        sent_ms = number * 1000 / PER_S
        bad = sent_ms >= 60_000 and slow(sent_ms / 1000 - 70, number)
        ttft_ms = 900 if bad else 100 + number * 37 % 50
        events = [] if bad and outcome is not Outcome.ok else [sent_ms + ttft_ms]
        done = sent_ms + ttft_ms
        rows.append(
            record(number, sent_ms, events, done, outcome if bad else Outcome.ok, planned=1)
        )
    return table(*rows)


# what is slow -> seconds to recover, goodput lost: 20 requests for each slow second up to then
CASES = {
    "nothing": (lambda _s, _n: False, 0.0, 0),
    "the overload alone": (lambda s, _n: s < 0, 0.0, 200),
    "12 s more": (lambda s, _n: s < 12, 12.0, 20 * 22),
    "a lull of 8 s": (lambda s, _n: s < 5 or 13 <= s < 30, 30.0, 20 * (10 + 5 + 17)),
    "4% for good": (lambda s, n: s < 5 or n % 25 == 0, 5.0, 20 * 15),
    "8% for good": (lambda s, n: s < 5 or n % 12 == 0, inf, 20 * 15 + 91),
    "all for good": (lambda _s, _n: True, inf, 20 * 70),
    "too late to be sure": (lambda s, _n: s < 45, inf, 20 * 55),
}


@pytest.mark.parametrize("outcome", [Outcome.ok, Outcome.status])
@pytest.mark.parametrize(("slow", "seconds", "lost"), CASES.values(), ids=CASES)
def test_seconds_to_recover(
    slow: Callable[[float, int], bool], seconds: float, lost: float, outcome: Outcome
) -> None:
    """From the overload's end to the first window from which on all are as before."""
    got = recovery(run(slow, outcome), SLO, OVERLOAD)
    assert got.seconds == seconds
    assert got.good_lost == pytest.approx(lost, abs=1)
    assert got.watched_s == 60.0


@pytest.mark.parametrize("slow_s", [0, 3, 6])
def test_a_short_watch_has_narrower_windows(slow_s: int) -> None:
    """14 s after the overload: windows of 4 s, back for 4 s; with 10 s nothing could be back."""
    got = recovery(run(lambda s, _n: s < slow_s), SLO, OVERLOAD._replace(until_ns=84 * SECOND))
    assert got.seconds == slow_s
    assert got.watched_s == 14.0


@pytest.mark.parametrize("watched_s", [-1, 0, 1.9])
def test_a_watch_that_shows_nothing(watched_s: float) -> None:
    """As of a drill that was interrupted right after its overload."""
    until_ns = 70 * SECOND + round(watched_s * SECOND)
    with pytest.raises(ConfigError, match=r"after the overload: expected at least 2 s"):
        recovery(run(lambda _s, _n: False), SLO, OVERLOAD._replace(until_ns=until_ns))


def test_the_former_interval() -> None:
    """It holds the baseline's p95, and is wider for narrower windows."""
    ends = [
        recovery(run(lambda _s, _n: False), SLO, OVERLOAD, Sliding(width * SECOND)).former_ms
        for width in (20, 5)
    ]
    assert [low <= 147 <= high for low, high in ends] == [True, True]
    assert ends[0][0] > ends[1][0]


BAD_BASELINES = {
    "too short": Overload(51 * SECOND, 60 * SECOND, 70 * SECOND, 130 * SECOND),
    "failed": Overload(60 * SECOND, 75 * SECOND, 80 * SECOND, 130 * SECOND),
    "empty": Overload(200 * SECOND, 210 * SECOND, 220 * SECOND, 300 * SECOND),
}


@pytest.mark.parametrize("overload", BAD_BASELINES.values(), ids=BAD_BASELINES)
def test_a_baseline_that_says_nothing(overload: Overload) -> None:
    """It needs ten requests above its p95, and fewer failures than that."""
    with pytest.raises(ConfigError, match="a longer baseline or a lower rate"):
        recovery(run(lambda s, _n: s < 5, Outcome.status), SLO, overload)


def test_a_baseline_that_is_not_at_rest() -> None:
    """As one is that an earlier overload is not over in: what comes next would be back at once."""
    with pytest.raises(ConfigError, match="misses ttft_p95=120ms itself"):
        recovery(run(lambda _s, _n: False), Slo.parse("ttft_p95=120ms"), OVERLOAD)


def one(seconds: float, lost: float = 0.0) -> Recovery:
    """A repeat."""
    return Recovery(seconds, 60.0, (100.0, 150.0), lost)


def test_over_repeats() -> None:
    """Median and mean with their intervals; what never came back counts as longest."""
    seconds = [21.0, 20, 22, 19, 23, 18, 24, 17, 25, 16, 20.5]
    got = recovery_over([one(s, lost=10 * s) for s in seconds])
    assert got.repeats == 11
    assert got.censored == 0
    assert got.median_s == 20.5
    assert got.median_s_ci95 == (16, 24)  # ranks 0 and 9 of 11: 99.4% of the binomial
    assert got.mean_s == pytest.approx(20.5)
    assert got.mean_s_ci95 == pytest.approx((18.6, 22.4), abs=0.1)  # t = 2.23, s = 2.87
    assert got.good_lost_ci95 == pytest.approx((186, 224), abs=1)
    some = recovery_over([one(s) for s in [*seconds[:9], inf, inf]])
    assert some.censored == 2
    assert some.median_s == 22
    assert some.median_s_ci95 == (17, inf)
    assert some.mean_s is None
    assert some.mean_s_ci95 is None


# from which factor on how many of ten come back -> the bracket
BOUNDARIES = {
    "between": (lambda f: 10 if f < 0.6 else 3, (0.5, 0.625)),
    "a majority decides": (lambda f: 10 - round(10 * f), (0.375, 0.5)),
    "below the range": (lambda _f: 0, (None, 0.0)),
    "above the range": (lambda _f: 10, (1.0, None)),
}


@pytest.mark.parametrize(("back", "bracket"), BOUNDARIES.values(), ids=BOUNDARIES)
def test_metastable_boundary(
    back: Callable[[float], int], bracket: tuple[float | None, float | None]
) -> None:
    """Bisection between a factor after which servers come back, and one after which they do not."""

    def repeat(factor: float) -> list[Recovery]:
        return [one(5.0 if number < back(factor) else inf) for number in range(10)]

    got = metastable_boundary(repeat, 0.0, 1.0, 0.125)
    assert got == Boundary(*bracket, tried=got.tried)
    assert got.tried == {factor: back(factor) / 10 for factor in got.tried}
