"""The search's paths: what it holds next after what it saw, and how it ends."""

import pytest
from measure_tables import evidence

from harness.metrics.slo import Slo
from harness.search.next_level import Done, Hold, SearchPlan, next_action
from harness.units import SECOND

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),), max_users=64, budget_ns=100 * SECOND)
FROM_8 = SearchPlan(PLAN.slos, min_users=8, max_users=64, budget_ns=100 * SECOND)


def good(*users):
    """1 % over at each level: decided good."""
    return [evidence(u, (400, 4)) for u in users]


def bad(*users):
    """20 % over: decided bad."""
    return [evidence(u, (400, 80)) for u in users]


def lean(*users):
    """4 of 40 over: leans to bad, decides nothing."""
    return [evidence(u, (40, 4)) for u in users]


def dead(*users):
    """Every request failed."""
    return [evidence(u, (400, 400), failed=400) for u in users]


@pytest.mark.parametrize(
    ("plan", "seen", "want"),
    [
        (PLAN, [], (1, "up", "lean")),
        (PLAN, good(1, 2, 4), (8, "up", "lean")),  # twice the top
        (SearchPlan(PLAN.slos, max_users=6), good(1, 2, 4), (6, "up", "lean")),  # no further
        (PLAN, good(1, 2) + lean(4), (8, "up", "lean")),  # on until one is decided bad
        (PLAN, good(1, 2, 4) + bad(16), (10, "bisect", "decided")),  # (4 + 16) // 2
        (PLAN, good(4, 10) + bad(16), (13, "bisect", "decided")),
        (PLAN, good(4) + dead(16), (10, "bisect", "decided")),  # failures are bad
        (PLAN, bad(8), (4, "bisect", "decided")),  # nothing good yet: half
        (FROM_8, bad(8), (8, "repeat", "decided")),  # nowhere lower to go
        (PLAN, good(40) + bad(42), (40, "repeat", "decided")),  # 5 % of 40 is 2: narrow enough
        (PLAN, good(40, 40) + bad(42), (42, "repeat", "decided")),  # the end held least often
        (PLAN, good(3, 3) + lean(4) + bad(8), (4, "repeat", "decided")),
        (PLAN, good(64), (64, "repeat", "decided")),  # the highest that may be tried
        # three looks at 4 say 12 of 1,200 over, a later one says 360 of 400: all count, 23 %
        (PLAN, good(2, 4, 4, 4) + bad(8) + [evidence(4, (400, 360))], (3, "bisect", "decided")),
    ],
)
def test_the_next_level(plan, seen, want):
    """Double, then halve, then both ends again."""
    got = next_action(plan, seen, 0)
    assert isinstance(got, Hold)
    assert (got.load.count, got.purpose, got.stop) == want


@pytest.mark.parametrize(
    ("plan", "seen", "spent_s", "want"),
    [
        (PLAN, good(40, 40) + bad(42, 42), 50, Done("found", (40, 42))),
        (PLAN, bad(1, 1), 50, Done("slo_failed_at_min", (0, 1))),
        (PLAN, good(64, 64), 50, Done("not_reached", (64, 64))),
        (PLAN, good(4) + bad(16), 97, Done("found", (4, 16))),  # 3 % of the budget left
        (PLAN, good(1, 2), 97, Done("inconclusive", (2, 64))),  # still climbing: says nothing of 64
        (PLAN, lean(64), 97, Done("inconclusive", (0, 64))),
        (PLAN, [evidence(1, (0, 0))], 97, Done("inconclusive", None)),  # nothing observed
        (PLAN, [], 97, Done("invalid", None)),  # no step that may be used
    ],
)
def test_the_end(plan, seen, spent_s, want):
    """Each end of a search, and the levels on both sides."""
    assert next_action(plan, seen, spent_s * SECOND) == want


@pytest.mark.parametrize(
    ("seen", "spent_s", "want_s"),
    [
        ([], 0, 4),  # a look on the way up: 4 % of 100 s
        (good(4) + bad(16), 0, 5),
        (good(40) + bad(42), 0, 6),
        (good(40) + bad(42), 95, 5),  # what is left
    ],
)
def test_how_long_a_level_is_held(seen, spent_s, want_s):
    """Shares of the budget, and never more than is left."""
    got = next_action(PLAN, seen, spent_s * SECOND)
    assert isinstance(got, Hold)
    assert got.max_ns == want_s * SECOND
