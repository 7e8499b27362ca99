"""The controller in simulated time: searches without an SLO, targets that fail hard, bad bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from simulated_knee import drive as tick_to_the_end
from simulated_knee import search

from harness.core.load import Users
from harness.core.states import Decision, Purpose, Status, StopRule
from harness.engine.config import EngineConfig
from harness.metrics.metrics import failed_requests
from harness.metrics.slo import Slo
from harness.records.record_table import OPEN, OUTCOME_CODE, RecordTable
from harness.search.controller import KneeController
from harness.search.held_levels import in_turn
from harness.search.knee_estimate import estimate_knee
from harness.search.level_state import HeldLevel
from harness.search.next_level import Done, Hold, SearchPlan, next_action
from harness.search.power import plateau_knee, power_knee
from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.engine_configurations import Configuration

SEATS = Configuration(
    "slots", EngineConfig(max_num_seqs=24), Traffic(128, 64, 0.3), (Slo.parse("ttft_p95=300ms"),)
)


def drive(
    plan: SearchPlan,
    loop: ClosedLoop,
    records: object = None,
    controller: KneeController | None = None,
) -> KneeController:
    """Tick a controller to its end."""
    return tick_to_the_end(controller or KneeController(plan, records or loop), loop)


def test_the_power_knee_of_a_slot_bound_engine_is_its_seats() -> None:
    """X^2 / N peaks where the seats are full: more users add waiting and no throughput."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 3)
    controller = drive(SearchPlan((), max_users=128, budget_ns=300 * SECOND), loop)
    assert controller.result is not None
    used = [step.evidence for step in controller.levels]
    power = power_knee(used)
    plateau = plateau_knee(used)
    assert power is not None
    assert plateau is not None
    assert controller.result.status == "found"
    assert power.users == pytest.approx(24, abs=3)
    assert plateau.users == pytest.approx(24, abs=3)


@pytest.mark.parametrize(
    ("slo", "max_users", "want_status"),
    [
        ("ttft_p95=1ms", 64, "slo_failed_at_min"),
        ("ttft_p95=100s", 16, "not_reached"),
        ("ttft_p95=300ms", 128, "found"),
    ],
)
def test_statuses(slo: str, max_users: int, want_status: str) -> None:
    """An SLO that nothing meets, one that everything meets, and one in between."""
    plan = SearchPlan((Slo.parse(slo),), max_users=max_users, budget_ns=300 * SECOND)
    controller = drive(plan, ClosedLoop(SEATS.engine, SEATS.traffic, 5))
    assert controller.result is not None
    assert controller.result.status == want_status


class Failing:
    """Records of a loop in which every request fails while more than `limit` users run."""

    def __init__(self, loop: ClosedLoop, limit: int) -> None:
        """`limit` 0: everything fails."""
        self.loop = loop
        self.limit = limit

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, those of them that failed)."""
        table = self.table(from_ns, horizon_ns)
        ended = (table.outcome != OPEN) & (table.done_ns >= from_ns)
        return int(ended.sum()), int((ended & failed_requests(table)).sum())

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """The loop's, with ended requests as failures."""
        table = self.loop.table(from_ns, horizon_ns)
        if self.loop.running_users <= self.limit:
            return table
        ended = table.outcome == OUTCOME_CODE["ok"]
        return replace(table, outcome=np.where(ended, OUTCOME_CODE["status"], table.outcome))


def test_a_target_that_always_fails_hard_ends_the_run() -> None:
    """Errors at the lowest level: within half a minute, not after the whole budget."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 7)
    plan = SearchPlan(SEATS.slos, budget_ns=600 * SECOND)
    controller = drive(plan, loop, Failing(loop, 0))
    assert controller.result is not None
    assert controller.result.status == "target_failed"
    assert loop.now_ns < 30 * SECOND


def test_so_many_requests_that_all_fail_are_enough() -> None:
    """Twelve were asked for: no ten seconds of failures are waited for."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 7)
    records = Failing(loop, 0)
    hold = Hold(Users(16), Purpose.hold, StopRule.requests, max_requests=12)
    plan = SearchPlan((), budget_ns=600 * SECOND)
    controller = drive(plan, loop, records, KneeController(plan, records, choose=in_turn([hold])))
    assert controller.result is not None
    assert controller.result.status == "target_failed"
    assert loop.now_ns < 8 * SECOND


HOLDS = [
    Hold(Users(4), Purpose.hold, StopRule.time, max_ns=SECOND),
    Hold(Users(8), Purpose.hold, StopRule.requests, max_requests=500),
]


@pytest.mark.parametrize(
    ("done", "want"), [(0, HOLDS[0]), (1, HOLDS[1]), (2, Done(Status.measured, None))]
)
def test_given_levels_are_a_function_of_the_steps(done: int, want: Hold | Done) -> None:
    """Asked again with the same steps the answer is the same."""
    plan, step = SearchPlan(()), HeldLevel(*[None] * 3, invalid="it does not matter")  # type: ignore[arg-type]
    choose = in_turn(HOLDS)
    for _ in range(3):
        assert choose(plan, [step] * done, 0) == want


@pytest.mark.parametrize("slos", [(), SEATS.slos])
def test_given_levels_end_at_the_one_that_fails_hard(slos: tuple[Slo, ...]) -> None:
    """Nothing is searched, so nothing goes down: what was held before is kept."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 7)
    records = Failing(loop, 8)
    holds = [replace(HOLDS[0], load=Users(n), max_ns=20 * SECOND) for n in (4, 16, 32)]
    choose = in_turn(holds)
    controller = KneeController(SearchPlan(slos, budget_ns=600 * SECOND), records, choose=choose)
    drive(controller.plan, loop, records, controller)
    assert controller.result is not None
    assert controller.result.status == "target_failed"
    first, second = controller.levels
    assert first.window.load.count == 4
    assert first.judgement.decision == Decision.held
    assert second.window.load.count == 16
    assert second.judgement.decision == Decision.failed


def test_a_search_without_an_slo_goes_down_from_a_hard_failure() -> None:
    """Above eight users everything fails: the power search ends with an answer, whatever it is."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 7)
    records = Failing(loop, 8)
    controller = drive(SearchPlan((), max_users=64, budget_ns=300 * SECOND), loop, records)
    assert controller.result is not None
    users = [step.window.load.count for step in controller.levels]
    down = [s.window.load.count for s in controller.levels if s.window.purpose == "down"]
    assert max(users) > 8
    assert min(down) <= 8


class FailsOnce(Failing):
    """The first request fails; for a while it is all that ended."""

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """The loop's, with request 0 as a failure."""
        table = self.loop.table(from_ns, horizon_ns)
        bad = (table.number == 0) & (table.outcome == OUTCOME_CODE["ok"])
        return replace(table, outcome=np.where(bad, OUTCOME_CODE["status"], table.outcome))


def test_one_failure_is_not_a_hard_failure() -> None:
    """Answers of many seconds: for a while the one that failed is the only one that ended."""
    loop = ClosedLoop(SEATS.engine, Traffic(128, 1500, 0.0), 7)
    plan = SearchPlan(SEATS.slos, max_users=4, budget_ns=200 * SECOND)
    controller = drive(plan, loop, FailsOnce(loop, 0))
    assert controller.result is not None
    assert controller.result.status != "invalid"


def test_a_target_that_may_always_fail_misses_its_slo() -> None:
    """`--max-errors 100%`: failures are no reason by themselves, but no answer is in time."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 7)
    plan = SearchPlan(SEATS.slos, max_users=8, budget_ns=200 * SECOND, max_errors=1.0)
    controller = drive(plan, loop, Failing(loop, 0))
    assert controller.result is not None
    assert controller.result.status == "slo_failed_at_min"


@pytest.mark.parametrize("slos", [(), SEATS.slos])
def test_a_search_whose_every_step_is_invalid_ends_with_the_budget(slos: tuple[Slo, ...]) -> None:
    """Somebody else uses the server all the time: invalid, with or without an SLO."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 13)
    controller = KneeController(
        SearchPlan(slos, budget_ns=60 * SECOND), loop, audit=lambda _window, _table: "not alone"
    )
    while not controller.tick(loop.now_ns, loop.running_users).done:
        assert loop.now_ns < 70 * SECOND
        loop.set_users(1)
        loop.advance(loop.now_ns + SECOND)
    assert controller.result is not None
    assert controller.result.status == "invalid"
    assert {step.window.load.count for step in controller.levels} == {1}


def test_a_level_that_fails_hard_is_bad_at_once_and_the_load_goes_down() -> None:
    """Above eight users everything fails: the step ends as bad and a lower level follows."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 9)
    plan = SearchPlan(SEATS.slos, budget_ns=200 * SECOND)
    controller = drive(plan, loop, Failing(loop, 8))
    hard = [s for s in controller.levels if "more than half" in s.judgement.reason]
    assert hard
    after = controller.levels[controller.levels.index(hard[0]) + 1]
    assert hard[0].judgement.decision == "fail"
    assert after.window.purpose == "down"
    assert after.window.load.count < hard[0].window.load.count
    assert controller.result is not None  # it answered again below: only too much for it
    found = estimate_knee(plan, controller.levels, controller.result)
    assert (found.status, found.holds, found.fails_by) == ("found", 8, 9)  # to one user


def test_the_search_is_a_function_of_what_it_saw() -> None:
    """The same plan and evidence give the same next level, and the same run the same steps."""
    first, plan, levels, _ = search(SEATS, 11)
    again, _, _, _ = search(SEATS, 11)
    assert first == again
    used = [step.evidence for step in levels]
    for n in range(len(used)):
        spent = levels[n].window.chosen_ns - levels[0].window.chosen_ns
        action = next_action(plan, used[:n], spent)
        assert isinstance(action, Hold)
        assert action.load.count == levels[n].window.load.count


@pytest.mark.parametrize(
    ("slos", "above", "want"),
    [
        (SEATS.slos, 0, (0, 128)),  # no level could be used
        (SEATS.slos, 12, (0, 128)),  # those up to 8 were left undecided on the way up
        ((), 0, (1, 128)),
        ((), 12, (1, 128)),
    ],
)
def test_a_level_that_is_invalid_twice_ends_the_search(
    slos: tuple[Slo, ...], above: int, want: tuple[int, int]
) -> None:
    """Above `above` users the audit refuses every step: invalid, not a search without end."""
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 5)
    plan = SearchPlan(slos, max_users=128, budget_ns=300 * SECOND)
    controller = KneeController(
        plan, loop, audit=lambda window, _: "too vague" if window.load.count > above else ""
    )
    drive(plan, loop, controller=controller)
    assert controller.result is not None
    invalid = [s.window.load.count for s in controller.levels if s.invalid]
    repeated = 16 if above else 1
    assert invalid == [repeated] * 2
    found = estimate_knee(plan, controller.levels, controller.result)
    assert found.status == "invalid"
    assert found.count is None
    assert (found.lo, found.hi) == want
