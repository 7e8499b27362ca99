"""What the rules name against the resource whose doubling moves the simulated knee most.

Simulated time and fixed seeds, as `make statistics` has stored them. The rules
read what /metrics, the host and a GPU would show; the truths in data/ are simulated_verdict.py's,
from other draws; three are computed again. The rules' constants were chosen on seeds below
HELD_OUT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from planted_bottlenecks import RESOURCES
from simulated_truths import SEEDS
from simulated_verdict import (
    CASES,
    CONFIDENT,
    HELD_OUT,
    calibration,
    known,
    tally,
    wilson,
)
from stored_statistics import stored

from harness.diagnosis.bottleneck import RULES

if TYPE_CHECKING:
    from collections.abc import Callable

KNOWN = known()


def check(told: dict[int, list[Any]], figure: Callable[[str], None]) -> None:
    """Right in 90 %; sure of itself in 60 % of these, and never when it is wrong."""
    n = len(told)
    found = tally({seed: KNOWN[seed] for seed in told}, told)
    figure(
        f"verdict right in {found['right'] / n:.1%} of {n} configurations; of these "
        f"{found['right_and_sure'] / found['right']:.0%} at {CONFIDENT} or more; wrong and so "
        f"sure: {len(found['wrong_and_sure'])}"
    )
    for true, named in found["table"].items():
        figure(f"most moved by {true}: named {', '.join(f'{k} {n}' for k, n in named.items())}")
    assert found["right"] >= 0.9 * n
    assert found["right_and_sure"] >= 0.6 * found["right"]
    assert found["wrong_and_sure"] == []


def test_the_verdict_over_200_configurations(figure: Callable[[str], None]) -> None:
    """As `make statistics` has stored them, and docs/verdict.md shows them."""
    assert len(KNOWN) == CASES
    assert min(KNOWN) >= HELD_OUT
    told = {seed: said for (seed, _), said in stored("verdicts").items()}
    assert set(told) == set(KNOWN)
    check(told, figure)
    for stated, n, right, low, high in calibration(KNOWN, told):
        figure(f"stated {stated:.2f}: right in {right} of {n} ({low:.0%} to {high:.0%})")
        assert high >= stated  # never surer than the cases show
    sums = {seed: round(sum(causes.values()), 6) for seed, (_, _, causes) in told.items()}
    assert sums == dict.fromkeys(told, 1)


@pytest.mark.parametrize(
    ("right", "n", "want"), [(0, 10, (0, 0.278)), (10, 10, (0.722, 1)), (50, 100, (0.404, 0.596))]
)
def test_wilsons_interval(right: int, n: int, want: tuple[float, float]) -> None:
    """As the tables have it."""
    assert wilson(right, n) == pytest.approx(want, abs=1e-3)


@pytest.mark.parametrize("seed", SEEDS["verdict"])
def test_the_stored_truths_are_those_of_this_engine(seed: int) -> None:
    """A change of the engine that moves a knee is noticed."""
    assert stored("truths")["verdict", seed] == KNOWN[seed]


def test_every_resource_can_be_named() -> None:
    """What can be doubled has a rule of its name."""
    assert set(RESOURCES) - set(RULES) == set()
