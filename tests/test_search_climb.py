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
        ({16: 0.05}, 64),  # nothing is known of how it rises
        ({16: 0.45}, 64),
        ({16: 0.7}, 44),
        ({16: 0.9}, 32),
        ({32: 0.05}, 64),  # from 32 users on twice as many
        ({4: 0.05, 16: 0.1}, 64),
        ({4: 0.05, 16: 0.3}, 32),  # it rises as fast as the users: in half the way that is left
        ({4: 0.1, 16: 0.1}, 64),
        ({128: 0.1, 256: 0.2}, 512),
        ({256: 0.1, 400: 0.2}, 512),  # not above the highest level
    ],
)
def test_the_next_level_on_the_way_up(levels: dict[int, float], want: int) -> None:
    got = next_action(PLAN, [held(*level) for level in levels.items()], 0)
    assert isinstance(got, Hold)
    assert (got.load.count, got.purpose) == (want, Purpose.up)


@pytest.mark.parametrize(
    ("seats", "least", "most", "want"),
    [
        (0, 1, 512, 1),
        (16, 1, 512, 8),
        (1000, 1, 512, 16),
        (1, 1, 512, 1),
        (16, 10, 512, 10),
        (16, 1, 6, 6),
    ],
)
def test_the_first_level(seats: int, least: int, most: int, want: int) -> None:
    plan = replace(PLAN, seats=seats, min_users=least, max_users=most)
    got = next_action(plan, [], 0)
    assert isinstance(got, Hold)
    assert got.load.count == want
