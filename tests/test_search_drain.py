"""A level's first repeat is held from empty to empty, where that is cheap and can be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from measure_tables import run_with

from harness.core.load import Users
from harness.core.states import StopRule
from harness.engine.config import EngineConfig
from harness.metrics.slo import Slo
from harness.records.samples import ServerSample
from harness.search.controller import KneeController
from harness.search.explain_knee import result_levels
from harness.search.level_state import Drain, should_drain
from harness.search.next_level import Hold, SearchPlan
from harness.search.replay import RunTokenStats
from harness.units import MS, SECOND
from lab import closed_loop as simulate
from lab.closed_loop import ClosedLoop, Traffic

if TYPE_CHECKING:
    from harness.metrics.result import Level

IDLE = ServerSample(0, running=0, waiting=0, took_ns=2 * MS)
SLOS = (Slo.parse("ttft_p95=300ms"),)


def searched(monkeypatch: pytest.MonkeyPatch, others: int = 0) -> list[Level]:
    """The steps of a search on 8 seats; `others`: requests of somebody else, always running."""
    monkeypatch.setattr(simulate, "KEEP_ENDED_NS", 10**18)  # the table of the whole run is wanted
    plan = SearchPlan(SLOS, max_users=32, budget_ns=700 * SECOND)
    loop = ClosedLoop(EngineConfig(max_num_seqs=8), Traffic(128, 48, 0.3), 3, observe=True)
    controller = KneeController(plan, loop)
    samples = [loop.sample()]
    done = False
    while not done:
        loop.advance(loop.now_ns + SECOND)
        samples.append(replace(loop.sample(), running=loop.sample().running + others))
        target = controller.tick(loop.now_ns, loop.running_users, samples[-1])
        done = target.done
        if target.users != loop.users:
            loop.set_users(target.users)
    assert controller.result is not None
    assert controller.result.status == "found"
    for _ in range(30):
        loop.advance(loop.now_ns + SECOND)
        samples.append(loop.sample())
    windows = [step.window for step in controller.levels]
    counted = RunTokenStats(loop.table(0, loop.now_ns), windows, plan.slos, samples)
    return result_levels(controller.levels, counted, run_with(samples), plan)


def test_the_first_repeat_of_each_level_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two empty scrapes, client and server have counted the same requests."""
    levels = searched(monkeypatch)
    seen = set()
    for step in levels:
        split = step.ttft_split
        if step.purpose == "repeat" and step.users not in seen:
            seen.add(step.users)
            assert split.exact is True
            assert split.n == split.queue_n
            assert split.n > step.ttft_ms.n  # those of ramp and warm-up too
            assert split.from_ns < step.settled_ns
            assert split.to_ns > step.end_ns
    assert len(seen) > 1


def test_a_server_that_is_never_empty_is_not_waited_for_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody else's request runs all the time: the search goes on, and nothing is exact."""
    levels = searched(monkeypatch, others=1)
    assert [s.users for s in levels if s.purpose == "repeat"] != []
    assert not any(s.ttft_split.exact for s in levels if s.purpose == "repeat")


@pytest.mark.parametrize(
    ("purpose", "life_s", "server", "plain", "want"),
    [
        ("repeat", 0.75, IDLE, True, True),
        ("repeat", 0.8, IDLE, True, False),  # over a 48th of 36 s
        ("repeat", 1.5, IDLE, False, True),
        ("repeat", 1.6, IDLE, False, False),  # over a 24th
        ("repeat", 0.75, replace(IDLE, running=9.0), True, True),
        ("repeat", 0.0, IDLE, True, False),  # not known
        ("repeat", 0.75, None, True, False),
        ("repeat", 0.75, ServerSample(0), True, False),  # it does not say what runs
        ("bisect", 0.75, IDLE, True, False),
        ("hold", 0.75, IDLE, True, False),
    ],
)
def test_where_it_is_worth_it(
    purpose: str, life_s: float, server: ServerSample | None, *, plain: bool, want: bool
) -> None:
    """A repeated level, short requests, a server whose metrics show when it is empty."""
    hold = Hold(Users(8), purpose, StopRule.decided, 36 * SECOND)
    assert should_drain(hold, life_s * SECOND, server, plain=plain) is want


def test_when_it_is_over() -> None:
    """A scrape begun after the last user went, of a server where nothing runs or waits."""
    drain = Drain(0, 6.0 * SECOND)
    ticks = [  # second, users, at which instant the server was scraped, its running, over?
        (1, 3, 0.9, 3, False),
        (2, 0, 1.9, 0, False),  # an old scrape
        (3, 0, 2.05, 0, False),  # too near: the server counts a little late
        (4, 0, 3.9, 1, False),  # its last request has not ended
        (5, 0, 4.9, 0, True),
    ]
    for second, users, at_s, running, want in ticks:
        server = replace(IDLE, at_ns=int(at_s * SECOND), running=float(running))
        assert drain.over(second * SECOND, users, server) is want
    assert drain.late(11 * SECOND) is False
    assert drain.late(12 * SECOND) is True
