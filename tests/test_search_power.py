"""Knees without an SLO: where power peaks and where throughput levels off."""

import pytest
from measure_tables import evidence

from harness.metrics.slo import Slo
from harness.search.next_level import Done, Hold, SearchPlan, next_action
from harness.search.power import next_power_action, plateau_knee, power_knee
from harness.units import SECOND

POWER = SearchPlan((), budget_ns=100 * SECOND)
LATENCY = SearchPlan((Slo.parse("ttft_p95=500ms"),), budget_ns=100 * SECOND)


@pytest.mark.parametrize(("search", "plan"), [(next_power_action, POWER), (next_action, LATENCY)])
def test_a_search_whose_every_step_is_invalid_ends_as_invalid(search, plan):
    """The lowest level is held again while there is budget; then nothing may be believed."""
    again = search(plan, [], 50 * SECOND)
    assert isinstance(again, Hold)
    assert again.load.count == 1
    assert again.purpose == "up"
    assert search(plan, [], 100 * SECOND) == Done("invalid", None)


def levels(**tokens_per_s):
    """`u8=60`: 60 tokens a second at 8 users."""
    return [evidence(int(k[1:]), tokens=60 * rate) for k, rate in tokens_per_s.items()]


# X^2 / N: 100, 200, 400, 450, 256
SEEN = levels(u1=10, u2=20, u4=40, u8=60, u16=64)
GROWING = levels(u1=10, u2=20, u4=40)


@pytest.mark.parametrize(
    ("seen", "spent_s", "want"),
    [
        (SEEN[:3], 0, (8, "up")),
        (SEEN[:4], 0, (16, "up")),  # 8 is best so far
        (SEEN, 0, (12, "bisect")),  # 256 is under 0.7 x 450; 16 - 8 is wider than 8 - 4
        (SEEN + levels(u12=62), 0, (10, "bisect")),  # 62^2 / 12 = 320
        (SEEN + levels(u9=60, u7=50), 0, None),
        (SEEN, 100, None),
    ],
)
def test_the_next_level_for_power(seen, spent_s, want):
    """Double until power has fallen well below its peak, then narrow the wider side."""
    got = next_power_action(POWER, seen, spent_s * SECOND)
    if isinstance(got, Done):
        assert got.status == (want or "found")
    else:
        assert (got.load.count, got.purpose) == (want or "found")


@pytest.mark.parametrize(
    ("seen", "spent_s", "want"),
    [
        (GROWING + levels(u3=30), 0, Done("not_reached", (3, 4))),  # 4 may not be passed
        (GROWING[:2], 100, Done("inconclusive", None)),
    ],
)
def test_a_power_that_only_grows(seen, spent_s, want):
    """No knee below --max-users; or the budget ended on the way up."""
    plan = SearchPlan((), max_users=4, budget_ns=100 * SECOND)
    assert next_power_action(plan, seen, spent_s * SECOND) == want


@pytest.mark.parametrize(
    ("seen", "want_power", "want_plateau"),
    [
        # even blocks leave the resamples nothing: the interval is the neighbouring levels
        (SEEN, (8, (4, 16), 450), (8, (5, 8), 60)),  # 0.9 x 64 = 57.6
        # two steps of one level are one: (60 + 64) / 2
        (levels(u8=60) + levels(u8=64), (8, (8, 8), 480.5), (8, (8, 8), 62)),
        # throughput is fitted as never falling: 64 and 60 count as 62; 0.9 x 62 = 55.8
        (levels(u4=59, u8=64, u16=60), (4, (4, 8), 870.25), (4, (4, 4), 59)),
    ],
)
def test_power_and_plateau(seen, want_power, want_plateau):
    """Users, interval and figure of both."""
    power = power_knee(seen)
    plateau = plateau_knee(seen)
    assert power is not None
    assert plateau is not None
    assert (power.users, power.ci95, power.power) == want_power
    assert (plateau.users, plateau.ci95, plateau.output_tokens_per_s) == want_plateau


def test_without_a_step_there_is_neither():
    """Nothing measured: no knee."""
    assert power_knee([]) is None
    assert plateau_knee([]) is None
