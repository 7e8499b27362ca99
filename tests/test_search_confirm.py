"""`knee --confirm` and `--repeat`: the promise held again, from both sides; the spread."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from typing import TYPE_CHECKING

import pytest
from simulated_knee import drive

from harness.core.states import Decision, Purpose, Status, Verdict
from harness.engine.config import EngineConfig
from harness.metrics.result import Knee, Level, Result
from harness.metrics.slo import Slo
from harness.search.confirm import confirmed, confirming, searched, spread
from harness.search.controller import KneeController
from harness.search.knee_estimate import estimate_knee
from harness.search.next_level import Done, Hold, SearchPlan
from harness.search.replay import LoggedLevel, RunTokenStats, replay
from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.engine_configurations import Configuration
from lab.simulated_records import SimulatedRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.search.level_state import HeldLevel

    Choice = Callable[[SearchPlan, Sequence[HeldLevel], int], Hold | Done]

SEATS = Configuration(
    "slots", EngineConfig(max_num_seqs=24), Traffic(128, 64, 0.3), (Slo.parse("ttft_p95=300ms"),)
)
CONFIRM_NS = 120 * SECOND


class Slowed(ClosedLoop):
    """A server whose front end becomes slower."""

    def slow(self, more_ns: int) -> None:
        self._front_ns += more_ns


def slower_after(held: int, loop: Slowed) -> Choice:
    """A search that confirms; once so many confirming levels are over, the server slows down."""
    choose = confirming(CONFIRM_NS)

    def watched(plan: SearchPlan, levels: Sequence[HeldLevel], spent_ns: int) -> Hold | Done:
        action = choose(plan, levels, spent_ns)
        confirms = isinstance(action, Hold) and action.purpose == Purpose.hold
        if confirms and len(levels) - len(searched(levels)) == held:
            loop.slow(300 * MS)
        return action

    return watched


def check_turns(plan: SearchPlan, ended: KneeController) -> None:
    """After the search: half as many users, the promise, what failed, and the promise again."""
    assert ended.result is not None
    search = searched(ended.levels)
    found = estimate_knee(plan, search, ended.result)
    assert found.fails_by is not None
    turns = []
    for level in ended.levels[len(search) :]:
        window = level.window
        quarter_minutes = (window.end_ns - window.settled_ns) // (15 * SECOND)
        turns.append((window.load.count, quarter_minutes))
    assert turns == [(found.holds // 2, 1), (found.holds, 4), (found.fails_by, 1), (found.holds, 4)]


@pytest.mark.parametrize(
    ("after", "want", "said"),
    [
        (99, Verdict.met, "no hysteresis is shown"),
        (0, Verdict.missed, "no hysteresis is shown"),  # slower before both
        (3, Verdict.missed, "hysteresis is shown: ttft_p95=300ms"),  # by the overload
    ],
)
def test_the_promise_is_held_twice(
    after: int, want: Verdict, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After half as many users, and after the level that failed; the answer stays as it was."""
    monkeypatch.setattr(SimulatedRecords, "forget", lambda _self, before_ns: before_ns)
    plan = SearchPlan(SEATS.slos, seed=4)
    loop = Slowed(SEATS.engine, SEATS.traffic, 4)
    ended = drive(KneeController(plan, loop, choose=slower_after(after, loop)), loop)
    assert ended.result is not None
    assert ended.result.status == Status.found
    check_turns(plan, ended)
    table = loop.table(0, loop.now_ns)
    windows = [level.window for level in ended.levels]
    counted = RunTokenStats(table, windows, plan.slos)
    logged = [LoggedLevel(x.window, x.invalid, x.judgement.decision) for x in ended.levels]
    again = replay(plan, logged, counted)
    (gate,) = confirmed(plan, counted, again.levels)
    assert gate.verdict == want
    assert gate.sentence.endswith(f"{said}.")
    last = replace(again.levels[-1], invalid="late")
    (gate,) = confirmed(plan, counted, [*again.levels[:-1], last])
    without_the_last = Verdict.missed if after == 0 else Verdict.inconclusive
    assert gate.verdict == without_the_last
    assert "no hysteresis is shown" in gate.sentence
    assert again.differences == []
    assert again.done == ended.result
    confirmation = again.levels[len(searched(ended.levels)) :]
    assert {level.judgement.decision for level in confirmation} == {Decision.held}
    assert {level.window.purpose for level in confirmation} == {Purpose.hold}


@pytest.mark.parametrize(
    ("plan", "status", "turns"),
    [
        # no level failed: the promise is not held after more users than the search may use
        (SearchPlan(SEATS.slos, seed=2, max_users=6), Status.not_reached, [3, 6, 6, 6]),
        # 18 users passed, 37 failed: no failing level nearby
        (
            SearchPlan(SEATS.slos, seed=2, budget_ns=60 * SECOND, precision=0.5),
            Status.holds,
            [9, 18, 37, 18],
        ),
        # nothing is promised, and there is no gate to say 0
        (SearchPlan(SEATS.slos, seed=2, budget_ns=20 * SECOND), Status.inconclusive, []),
    ],
)
def test_only_what_is_promised(
    plan: SearchPlan, status: Status, turns: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing beyond --max-users."""
    monkeypatch.setattr(SimulatedRecords, "forget", lambda _self, before_ns: before_ns)
    loop = ClosedLoop(SEATS.engine, SEATS.traffic, 2)
    ended = drive(KneeController(plan, loop, choose=confirming(CONFIRM_NS)), loop)
    assert ended.result is not None
    own = searched(ended.levels)
    assert estimate_knee(plan, own, ended.result).status == status
    after = [level.window.load.count for level in ended.levels[len(own) :]]
    assert after == turns


def test_the_spread_of_searches() -> None:
    """Of 34, 36 and 35: 35, and a standard deviation of 1; what found nothing counts as a cost."""
    levels = (Level(0, 4, chosen_ns=0, judged_ns=30 * SECOND),)
    found = [Result(status=Status.found, knee=Knee(holds=n), levels=levels) for n in (34, 36, 35)]
    lost = Result(status=Status.inconclusive, knee=Knee(), levels=levels)
    of = spread([*found, lost])
    assert of["promises"] == [34, 36, 35]
    assert of["searches"] == 4
    assert of["load_s"] == 120
    assert of["mean"] == 35
    assert of["deviation"] == 1
    assert of["headline"].startswith(
        "3 of 4 searches found a knee and promise 34 to 36 users: mean 35,"
    )
    none = spread([lost])
    assert isnan(none["mean"])
    assert none["headline"].startswith("0 of 1 searches found a knee. They took 30 s of load")
