"""Open-loop schedules: when requests are due, and which process sends them. Pure and seeded."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from simulated_gaps import SEEDS, SHAPES, N, kolmogorov, planned
from stored_statistics import stored

from harness.errors import ConfigError
from harness.load.arrivals import Due, Schedule, Stripe, offsets_ns, parse_arrivals
from harness.load.plan import plan, seeded_random
from harness.load.workloads import WORKLOADS
from harness.senders.drive_options import DriveOptions

if TYPE_CHECKING:
    from harness.senders.driver import Driver


@pytest.mark.parametrize("rate_per_s", [0.01, 0.3, 7.0, 20.0, 333.33, 10_000.0])
def test_constant_gaps_differ_by_a_nanosecond_at_most(rate_per_s: float) -> None:
    """And the last request is where it belongs: nothing adds up. The same for 200 seeds."""
    for seed in SEEDS:
        at = planned("constant", rate_per_s, seed)
        gaps = [b - a for a, b in pairwise(at)]
        assert max(gaps) - min(gaps) <= 1
        assert abs(at[-1] - (N - 1) * 1e9 / rate_per_s) <= 1


@pytest.mark.parametrize(("arrivals", "shape"), SHAPES)
def test_gaps_have_the_distribution_asked_for(arrivals: str, shape: float) -> None:
    """Each of 200 seeds gets a p-value for its gaps, and these p-values are uniform themselves.

    Of 200 uniform p-values 10 are below 5%, give or take 3; the p-value of all of them together is
    above 1%, and gaps of another shape are found out by every seed.
    """
    told = stored("gaps")[arrivals, shape]
    p = np.array(told["p"])
    wrong = np.array(told["wrong"])
    assert len(p) == len(SEEDS)
    assert len(wrong) == len(SEEDS)
    assert kolmogorov(p) > 0.01
    assert 2 <= (p < 0.05).sum() <= 20
    assert (wrong < 0.05).all()


@pytest.mark.parametrize("arrivals", ["constant", "poisson", "gamma:2"])
@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_stripes_have_neither_gaps_nor_repeats(arrivals: str, processes: int) -> None:
    """Whatever the number of processes, they send the same requests at the same instants.

    Three levels: 50/s from 1 s, a drain from 3 s, 10/s from 5 s. A level ends where the next
    begins, even for a process that hears of it late.
    """
    schedules = [
        Schedule(0, 50.0, 10**9),
        Schedule(1, 0.0, 3 * 10**9),
        Schedule(1, 10.0, 5 * 10**9),
    ]

    alone = sent(Stripe(arrivals, 5, 0, 1), schedules)
    striped = [
        sent(Stripe(arrivals, 5, worker, processes), schedules) for worker in range(processes)
    ]
    assert sorted(chain(*striped), key=lambda due: (due.level, due.number)) == alone
    for level in (0, 1):
        numbers = [due.number for due in alone if due.level == level]
        assert numbers == list(range(len(numbers)))
    assert {due.number % processes for due in striped[-1]} <= {processes - 1}


def sent(stripe: Stripe, schedules: list[Schedule]) -> list[Due]:
    """What this process sends of them, until 9 s."""
    before = stripe.ahead()  # nothing is known yet
    for schedule in schedules:
        stripe.tell(schedule)
    requests = [] if before is None else [before]
    while (due := stripe.ahead()) is not None and due.at_ns < 9 * 10**9:
        assert stripe.ahead() is due  # until it is taken
        stripe.take()
        requests.append(due)
    return requests


@pytest.mark.parametrize(
    ("text", "good"),
    [("constant", True), (" gamma:0.5 ", True), ("gamma", False), ("gamma:0", False),
     ("gamma:x", False), ("gamma:11", False), ("gamma:nan", False), ("poisson:1", False),
     ("gamma:CV", False), ("", False)],
)  # fmt: skip
def test_what_arrivals_are_called(text: str, good: bool) -> None:
    """Anything else is refused in one sentence."""
    if good:
        assert parse_arrivals(text) == text.strip()
        return
    with pytest.raises(ConfigError, match="expected constant, poisson, data, or gamma:CV"):
        parse_arrivals(text)


def test_a_rate_of_zero_has_no_arrivals() -> None:
    """As in a drain."""
    assert list(offsets_ns("poisson", 0.0, seeded_random("any"))) == []


def test_requests_do_not_depend_on_the_number_of_processes() -> None:
    """Closed: request i of user u. Open: request k of the schedule. With 1, 2 or 5 processes."""
    from harness.senders.driver import Driver  # noqa: PLC0415 - gevent, for this test alone

    options = DriveOptions("http://127.0.0.1:1", "m", WORKLOADS["chat"], seed=3, run_id="r")

    def drivers(processes: int) -> list[Driver]:
        split = replace(options, processes=processes)
        return [Driver(split, worker) for worker in range(processes)]

    planned = {}
    for user in range(10):
        planned[user] = [plan(WORKLOADS["chat"], 3, user, i, run_id="r") for i in range(4)]
    for processes in (1, 2, 5):
        assert closed_loop(drivers(processes)) == planned
    due = Due(1, 7, 0)
    alone = drivers(1)[0]
    spec = alone.due_spec(due)
    assert spec == drivers(5)[2].due_spec(due)  # 7 modulo 5
    assert spec != alone.due_spec(Due(2, 7, 0))
    assert spec.text not in {closed.text for specs in planned.values() for closed in specs}


def closed_loop(drivers: list[Driver]) -> dict[int, list[object]]:
    """The first four requests of each of ten users."""
    of_user = {}
    for _ in range(10 // len(drivers)):
        for driver in drivers:
            of_user[driver.new_user()] = driver
    return {user: [of_user[user].next_spec(user) for _ in range(4)] for user in sorted(of_user)}


def test_a_worker_that_joins_later_has_users_of_its_own() -> None:
    """Locust may grow during a test: the third of two processes repeats nobody's requests."""
    from harness.senders.driver import Driver  # noqa: PLC0415 - gevent, for this test alone

    options = DriveOptions("http://127.0.0.1:1", "m", WORKLOADS["chat"], processes=2)
    drivers = [Driver(options, worker) for worker in range(4)]
    users = [driver.new_user() for _ in range(2) for driver in drivers]
    assert users == [0, 1, 2 << 32, 3 << 32, 2, 3, (2 << 32) + 1, (3 << 32) + 1]
