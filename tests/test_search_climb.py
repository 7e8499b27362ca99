"""How far the search goes up from a level, where users never pause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from measure_tables import evidence

from harness.core.states import Purpose
from harness.metrics.evidence import RATIO_BINS, ratio_bin
from harness.metrics.slo import Slo
from harness.search.next_level import Hold, SearchPlan, next_action
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.metrics.evidence import Evidence

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),))


def held(users: int, ratio: float) -> Evidence:
    """A level whose latencies are all at so many times the limit."""
    grid = np.zeros((8, RATIO_BINS))
    grid[:, ratio_bin(np.array([ratio]))] = 3
    return replace(evidence(users), grids=(grid,), plain=True)


@pytest.mark.parametrize(
    ("levels", "want"),
    [
        ({1: 0.01, 16: 0.05}, 64),
        ({1: 0.01, 32: 0.05}, 64),  # from 32 users on twice as many
        ({4: 0.05, 16: 0.1}, 64),
        ({4: 0.05, 16: 0.3}, 32),  # it rises as fast as the users: in half the way that is left
        ({4: 0.1, 16: 0.1}, 64),
        ({4: 0.69, 16: 0.7}, 44),  # near the limit, but it hardly rises
        ({128: 0.1, 256: 0.2}, 512),
        ({256: 0.1, 400: 0.2}, 512),  # not above the highest level
    ],
)
def test_the_next_level_on_the_way_up(levels: dict[int, float], want: int) -> None:
    assert climb(PLAN, levels) == want


@pytest.mark.parametrize(
    ("seats", "ratio", "want"),
    [
        (0, 0.01, 4),
        (0, 0.5, 3),
        (0, 0.9, 2),
        (1000, 0.01, 16),
        (1000, 0.25, 7),
        (1000, 0.9, 2),
        (20, 0.01, 10),
        (4, 0.01, 4),
    ],
)
def test_the_second_level_is_one_that_the_server_can_easily_run(
    seats: int, ratio: float, want: int
) -> None:
    """Half of what it can run at once, 16 at most, and less where one user is near a limit."""
    assert climb(replace(PLAN, seats=seats), {1: ratio}) == want


@pytest.mark.parametrize(
    ("top", "left_s", "want"),
    [
        # a request takes a second
        (16, 26, (Purpose.up, 64)),
        (16, 24, (Purpose.repeat, 19)),
        (16, 16, (Purpose.repeat, 16)),
        (16, 15, (Purpose.up, 64)),  # none can pass any more: that takes 14 lifetimes and a warm-up
        (2, 24, (Purpose.up, 8)),  # two users send too few requests for that
    ],
)
def test_late_and_without_a_promise_the_climb_ends(
    top: int, left_s: int, want: tuple[Purpose, int]
) -> None:
    """A level that passes is worth more than to know that a higher one would."""
    plan = replace(PLAN, budget_ns=60 * SECOND)
    n_requests = 24
    levels = [held(1, 0.01), replace(held(top, 0.05), seconds=n_requests / top)]
    got = next_action(plan, levels, (60 - left_s) * SECOND)
    assert isinstance(got, Hold)
    assert (got.purpose, got.load.count) == want


def climb(plan: SearchPlan, levels: dict[int, float]) -> int:
    got = next_action(plan, [held(*level) for level in levels.items()], 0)
    assert isinstance(got, Hold)
    assert got.purpose == Purpose.up
    return got.load.count
