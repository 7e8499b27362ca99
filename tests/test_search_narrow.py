"""Which level the search holds next where users never pause: what narrows the promise most."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pytest
from measure_tables import evidence
from simulated_knee import search

from harness.core.states import Decision, Purpose, Status
from harness.engine.config import EngineConfig
from harness.metrics.slo import Slo
from harness.search.fit import fit_levels
from harness.search.judge import progress
from harness.search.narrow import Attempt, Belief, Prospect
from harness.search.next_level import Hold, SearchPlan, next_action
from harness.units import SECOND
from lab.closed_loop import Traffic
from lab.engine_configurations import Configuration

if TYPE_CHECKING:
    from harness.search.fit import LevelFit

SLOS = (Slo.parse("ttft_p95=500ms"),)
ALPHA = 0.05 / 8
KNEE = 100
PASSED = Decision.passed
FAILED = Decision.failed


def levels_on_the_way_up() -> list[LevelFit]:
    """16 users with 1% over, 64 with 2%, 128 with 40%; none is decided in a few seconds."""
    held = [evidence(16, (100, 1)), evidence(64, (100, 2)), evidence(128, (100, 40))]
    return fit_levels(held, SLOS, 0.01)


def prospect(passed: int, failed: float, spread: float = 0.05) -> Prospect:
    return Prospect(
        levels_on_the_way_up(),
        Belief(float(KNEE), spread, slope=10.0, above=0.0),
        allowed=0.05,
        alpha=ALPHA,
        precision=0.05,
        least=1,
        most=512,
        passed=passed,
        failed=failed,
    )


def best(passed: int, failed: float, spread: float = 0.05, left_s: float = 600) -> Attempt | None:
    return prospect(passed, failed, spread).best(left_s * SECOND)


@pytest.mark.parametrize(
    ("passed", "failed", "wants", "least", "most"),
    [
        (0, 128, PASSED, 1, 99),
        (64, inf, FAILED, 101, 512),
        (96, 200, FAILED, 101, 199),
        (40, 104, PASSED, 41, 99),
    ],
)
def test_the_end_that_is_not_shown_or_far_away_comes_first(
    passed: int, failed: float, wants: Decision, least: int, most: int
) -> None:
    """And between the ends: a level beyond one of them could narrow nothing."""
    got = best(passed, failed)
    assert got is not None
    assert got.wants == wants
    assert least <= got.count <= most


@pytest.mark.parametrize(
    ("passed", "failed", "left_s"),
    [
        (0, inf, 4),  # nothing is decided so soon
        (97, 101, 600),  # as narrow as the precision: nothing to gain
        (1, 3, 600),  # the likely knee is elsewhere
    ],
)
def test_nothing_is_tried_that_brings_nothing(passed: int, failed: float, left_s: float) -> None:
    """Or that the time does not suffice for."""
    assert best(passed, failed, left_s=left_s) is None


@pytest.mark.parametrize(
    ("passed", "failed", "left_s", "want"),
    [
        # (what is shown, the time left) -> what a level is to show; a request takes a second
        (0, inf, 41, FAILED),
        (0, inf, 39, PASSED),
        (0, 110, 39, PASSED),
        (64, inf, 41, FAILED),
        (64, inf, 39, FAILED),  # there is a promise
    ],
)
def test_late_and_without_a_promise_a_level_is_held_to_pass(
    passed: int, failed: float, left_s: float, want: Decision
) -> None:
    """What fails would leave no time for one that passes."""
    held = [replace(level.evidence, seconds=5.0) for level in levels_on_the_way_up()]
    quick = replace(prospect(passed, failed), levels=fit_levels(held, SLOS, 0.01))
    got = quick.best(left_s * SECOND)
    assert got is not None
    assert got.wants == want


@pytest.mark.parametrize(
    ("spent_s", "want"),
    [(0, Purpose.bisect), (19, Purpose.bisect), (21, Purpose.repeat)],
)
def test_late_and_without_a_promise_nothing_is_held_for_a_look(spent_s: int, want: Purpose) -> None:
    """Between a level that leans to pass and one far above, of 60 s."""
    plan = SearchPlan(SLOS, budget_ns=60 * SECOND)
    counts = {16: (100, 1), 64: (400, 200)}
    held = [replace(evidence(users, of, seconds=5), plain=True) for users, of in counts.items()]
    got = next_action(plan, held, spent_s * SECOND)
    assert isinstance(got, Hold)
    assert got.purpose == want


@pytest.mark.parametrize(
    ("held_s", "want"),
    [(16, 64), (4, None)],  # 14 requests one after another, which take a second each
)
def test_a_level_that_has_nearly_passed_is_held_on(held_s: int, want: int | None) -> None:
    """With 12 s left: what it has shown counts, and so does how long it was held."""
    both = (evidence(64, (130, 0), seconds=held_s), evidence(128, (40, 20)))
    held = [replace(one, lifetime_ns=SECOND, plain=True) for one in both]
    late = replace(prospect(0, 128), levels=fit_levels(held, SLOS, 0.01))
    got = late.to_pass(12 * SECOND)
    assert (got and got.count) == want


def test_the_less_is_known_the_further_away_is_the_level() -> None:
    """A level that may be on the other side of the knee is not decided by holding it."""
    levels = []
    for spread in (0.02, 0.2):
        got = best(64, inf, spread)
        assert got is not None
        levels.append(got.count)
    assert levels == sorted(set(levels))


def test_a_precision_that_is_wider_than_a_promise() -> None:
    """The search goes on until it has one: with 200% it ended without, its budget unspent."""
    case = Configuration("slots", EngineConfig(max_num_seqs=16), Traffic(128, 32, 0.4), SLOS)
    plan = SearchPlan(SLOS, max_users=128, budget_ns=90 * SECOND, precision=2.0, seats=16)
    found, *_ = search(case, 1, plan)
    assert found.status in (Status.found, Status.holds)


@pytest.mark.parametrize("wants", [PASSED, FAILED])
def test_closer_levels_take_longer(wants: Decision) -> None:
    """And one that is beyond the knee for certain never shows it."""
    away = [0.5, 0.7, 0.9] if wants == PASSED else [2.0, 1.5, 1.1]
    needs_ns = [prospect(0, inf).needs_ns(round(KNEE * times), wants) for times in away]
    means_ns = [np.minimum(need_ns, 1e15).mean() for need_ns in needs_ns]
    assert means_ns == sorted(means_ns)
    other_side = round(KNEE / away[0])
    assert np.isinf(prospect(0, inf).needs_ns(other_side, wants)).all()


@pytest.mark.parametrize(
    ("counts", "wants", "want"),
    [
        ([(400, 4)], PASSED, 1.0),  # decided
        ([(400, 4)], FAILED, 0.0),  # on the other side
        ([(400, 80)], FAILED, 1.0),
        ([(400, 80)], PASSED, 0.0),
        ([(0, 0)], PASSED, 0.0),  # nothing observed
        ([(400, 4), (40, 2)], PASSED, 0.0),  # all must be met
        ([(400, 4), (400, 80)], FAILED, 1.0),  # one that is missed is enough
    ],
)
def test_how_far_a_level_has_come(
    counts: list[tuple[float, float]], wants: Decision, want: float
) -> None:
    """From nothing to all of the evidence that decides it."""
    slos = (*SLOS, Slo.parse("itl_p95=50ms"))[: len(counts)]
    got = progress(evidence(8, *counts), slos, ALPHA, wants)
    assert min(max(got, 0.0), 1.0) == pytest.approx(want, abs=0.05)
