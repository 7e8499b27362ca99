"""Requests by name: which names have a row of their own."""

from __future__ import annotations

import numpy as np
import pytest

from harness.search.replay import MOST_NAMES, names_apart

MANY = MOST_NAMES + 3
# name i has MANY - i requests: the first ones are the most frequent
RANKED = [number for number in range(MANY) for _ in range(MANY - number)]


@pytest.mark.parametrize(
    ("names", "want"),
    [
        ([], []),
        ([-1, -1], []),  # none has a name
        ([-1, 0, -1], [[-1], [0]]),  # those without one are together
        ([0, 1, 1, 0, 1], [[1], [0]]),
        (RANKED[::-1], [*([n] for n in range(MOST_NAMES)), [*range(MOST_NAMES, MANY)]]),
    ],
)
def test_names_apart(names: list[int], want: list[list[int]]) -> None:
    """The most frequent first; beyond twenty they are one group, so that no request is lost."""
    assert names_apart(np.array(names, np.int64)) == want
