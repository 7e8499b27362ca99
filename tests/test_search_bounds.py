"""How often a searcher who knew the knee would show both ends in time: what can be had at all.

As `make statistics` has stored it (simulated_bounds.py); docs/how-good.md has the table, decision
30 what follows from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from simulated_bounds import AIMS, FAILS, PASSES
from stored_statistics import stored

if TYPE_CHECKING:
    from collections.abc import Callable

# By aim: searches that show both ends, with the search's test; with the best one; and with the best
# one if no level needed a warm-up. What is less than 95% no searcher reaches within 3% too high.
SHOWN: Final = {0.25: (187, 191, 193), 0.12: (181, 186, 186)}
CASES: Final = 200


def decided_s(hold: list[Any], *, best: bool, warms_up: bool) -> float | None:
    """Seconds until a level is decided; None: not in time."""
    _, settled_s, by_search_s, by_best_s = hold
    tests = (by_search_s, by_best_s) if best else (by_search_s,)
    shown = [held_s for held_s in tests if held_s is not None]
    if not shown:
        return None
    return float(min(shown) + settled_s * warms_up)


def is_in_time(low: list[Any], high: list[Any], lifetimes: int, **how: bool) -> bool:
    """Whether both ends are decided, one after the other, within lifetimes of the knee."""
    passes_s = decided_s(low, **how)
    fails_s = decided_s(high, **how)
    if passes_s is None or fails_s is None:
        return False
    life_s = (low[0] * high[0]) ** 0.5  # the knee lies in the middle
    return bool(passes_s + fails_s <= lifetimes * life_s)


@pytest.mark.parametrize("reach", AIMS)
def test_what_a_searcher_who_knew_the_knee_would_show(
    reach: float, figure: Callable[[str], None]
) -> None:
    """More than any search can show that has to find the knee first."""
    answers = stored("bounds")
    seeds = {seed for seed, *_ in answers}
    assert len(seeds) == CASES
    counts = []
    for best, warms_up in ((False, True), (True, True), (True, False)):
        shown = [
            is_in_time(
                answers[seed, reach, str(PASSES)],
                answers[seed, reach, str(FAILS)],
                AIMS[reach],
                best=best,
                warms_up=warms_up,
            )
            for seed in seeds
        ]
        counts.append(sum(shown))
    tests, best_test, no_warm_up = (count / CASES for count in counts)
    figure(
        f"both ends within {reach:.0%} of the knee after {AIMS[reach]} lifetimes, by who knows it: "
        f"{tests:.1%} with the search's test, {best_test:.1%} with the best one, {no_warm_up:.1%} "
        "without warm-up, too"
    )
    assert tuple(counts) == SHOWN[reach]
