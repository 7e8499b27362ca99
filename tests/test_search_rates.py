"""Open loops in simulated time: known knees, stalls with known numbers, growing backlogs."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from open_loop import OpenLoop
from simulated_rate import BACKLOGS, SEEDS, TRAFFIC, held, known_rates, server, window
from stored_statistics import stored

from harness.compare.compare_folders import common_pairs, level_figures
from harness.core.load import REQUESTS_PER_S
from harness.core.states import Decision, Status
from harness.diagnosis.audit import apply_littles_law, audit_sentence
from harness.diagnosis.instrument import instrument_sentence, turnarounds
from harness.engine.config import EngineConfig
from harness.metrics.evidence import gather_evidence
from harness.metrics.metrics import SCHEDULED, e2e, ttft
from harness.metrics.slo import Slo
from harness.metrics.window_summary import window_summary
from harness.search.comparison import compare
from harness.search.next_level import SearchPlan
from harness.units import SECOND
from lab.closed_loop import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.records.record_table import RecordTable

# 2 ms a request: 40/s keep it busy for 8% of the time
FAST = EngineConfig(max_num_seqs=64, jitter=0.0, time_scale=0.1)
STALL = (10 * SECOND, 11 * SECOND)


def late(table: RecordTable, key: str, limit_ns: int) -> int:
    """Requests with a latency above a limit."""
    observe = {"ttft": ttft, "e2e": e2e} | {k: row.observe for k, row in SCHEDULED.items()}
    return int((observe[key](table).ns > limit_ns).sum())


def test_the_senders_stall_shows_from_the_schedule_alone() -> None:
    """40/s, evenly; nothing is sent in the second from 10 s on (SIGSTOP), then all 40 at once.

    Due at 10.000, 10.025, ...: 20 of them more than half a second before 11 s, the last one at
    10.475 s. From the send they take as long as a burst of 40 does, far below half a second.
    """

    def sent_ns(due_ns: int) -> int:
        return STALL[1] if STALL[0] <= due_ns < STALL[1] else due_ns

    loop = OpenLoop(FAST, TRAFFIC, 1, arrivals="constant", sent_ns=sent_ns)
    loop.set_rate(0, 40.0)
    loop.advance(20 * SECOND)
    table = loop.table(0, loop.now_ns)
    half = SECOND // 2
    keys = ("ttft", "e2e", *SCHEDULED)
    got = {key: late(table, key, half) for key in keys}
    # a request due at 10.5 s is not late by more than half a second itself: its answer makes it so
    assert got == {
        "ttft": 21,
        "e2e": 21,
        "schedule_lag": 20,
        "ttft_from_send": 0,
        "e2e_from_send": 0,
    }
    lag = SCHEDULED["schedule_lag"].observe(table).ns
    assert lag.max() == SECOND
    assert (lag > 0).sum() == 40
    figures = window_summary(table, 0, 20 * SECOND)
    assert figures["requests_per_s"] == pytest.approx(40, abs=0.1)
    assert figures["schedule_lag_ms"]["max"] == 1000


@pytest.mark.parametrize(
    ("seconds", "slo", "late"),
    [(20, "ttft_p95=500ms", True), (60, "ttft_p95=500ms", False), (60, "ttft_p99=500ms", True),
     (60, "itl_p99=50ms", False), (20, "e2e_p95=500ms", True), (20, "ttft_p50=500ms", False)],
)  # fmt: skip
def test_a_late_sender_is_no_instrument(seconds: int, slo: str, late: bool) -> None:
    """40 late ones of 800 are 5%, of 2,400 1.7%: a p95 knows the first, a p99 the second."""

    def sent_ns(due_ns: int) -> int:
        return STALL[1] if STALL[0] - SECOND // 10 <= due_ns < STALL[1] else due_ns

    loop = OpenLoop(FAST, TRAFFIC, 1, arrivals="constant", sent_ns=sent_ns)
    loop.set_rate(0, 40.0)
    loop.advance(seconds * SECOND)
    table = loop.table(0, loop.now_ns)
    said = instrument_sentence(table, window(40.0, 0, loop.now_ns), [Slo.parse(slo)])
    assert ("later than they were due" in said) is late
    of_level = turnarounds(table, window(40.0, 0, loop.now_ns))
    assert len(of_level) == 0  # of users alone


@pytest.mark.parametrize(("lost", "said"), [((), ""), ((300, 301), "2 requests"), ((799,), "")])
def test_requests_without_a_record_are_missed(lost: tuple[int, ...], said: str) -> None:
    """Of 800 that were due; the newest may be on their way."""
    loop = OpenLoop(FAST, TRAFFIC, 1, arrivals="constant")
    loop.set_rate(0, 40.0)
    loop.advance(20 * SECOND)
    table = loop.table(0, loop.now_ns)
    table = replace(table, user=np.arange(len(table)))
    kept = table.select(~np.isin(table.user, lost))
    sentence = audit_sentence(kept, window(40.0, 0, loop.now_ns), [])
    assert sentence[: len("2 requests")] == said
    law = apply_littles_law(kept, window(40.0, 0, loop.now_ns))
    assert law.error == pytest.approx(0, abs=0.01)  # 40/s for 20 s: N is 40 R


def stalled(loop: ClosedLoop) -> RecordTable:
    """20 s of load on an engine that does nothing in the second from 10 s on."""
    loop.advance(STALL[0])
    loop.now_ns += SECOND
    loop.advance(20 * SECOND)
    return loop.table(0, loop.now_ns)


@pytest.mark.parametrize("rate_per_s", [10.0, 40.0, 200.0])
def test_the_engines_stall_shows_for_every_request_due_meanwhile(rate_per_s: float) -> None:
    """Half of those due in the stalled second wait for more than half a second, by both clocks."""
    loop = OpenLoop(FAST, TRAFFIC, 1, arrivals="constant")
    loop.set_rate(0, rate_per_s)
    table = stalled(loop)
    want = rate_per_s / 2
    got = [late(table, key, SECOND // 2) for key in ("ttft", "ttft_from_send", "schedule_lag")]
    assert [want <= n <= want + 1 + want / 10 for n in got] == [True, True, False]
    assert got[2] == 0


@pytest.mark.parametrize("users", [1, 4, 16])
def test_a_closed_loop_shows_the_engines_stall_once_for_each_user(users: int) -> None:
    """Users wait for their answers, so nobody sends meanwhile: hundreds a second hide the stall."""
    loop = ClosedLoop(FAST, TRAFFIC, 1)
    loop.set_users(users)
    table = stalled(loop)
    late_requests = late(table, "ttft", SECOND // 2) + late(table, "e2e", SECOND // 2)
    assert 1 <= late_requests <= 2 * users
    assert late(table, "e2e", SECOND // 2) <= users < len(table) / 100


@pytest.mark.parametrize(("share", "arrivals", "least", "most"), BACKLOGS)
def test_above_capacity_the_backlog_grows(
    share: float, arrivals: str, least: int, most: int, figure: Callable[[str], None]
) -> None:
    """Of 20 seeds held for 30 s: how many are unstable. Growth is what the engine cannot serve."""
    backlogs = stored("backlogs")
    told = [said for case, said in backlogs.items() if case[:2] == (share, arrivals)]
    assert len(told) == 20
    found = sum(unstable for unstable, _ in told)
    figure(f"{arrivals} arrivals at {share:.0%} of capacity for 30 s: {found} of 20 unstable")
    assert least <= found <= most
    slopes = [slope for _, slope in told]
    growth = max(1 - 1 / share, 0)
    assert np.median(slopes) == pytest.approx(growth, abs=0.05)


@pytest.mark.parametrize(
    ("slower", "ttft_ms", "beyond"),
    [
        (1.0, "finite", set[str]()),
        (
            1.3,
            "finite",
            {
                "ttft_p50",
                "ttft_p95",
                "itl_p50",
                "itl_p95",
                "tpot_p50",
                "tpot_p95",
                "e2e_p50",
                "e2e_p95",
            },
        ),  # 0.6 of its capacity becomes 0.78
        # 1.2 times its capacity: how late they are says how long the level was held
        (
            2.0,
            "infinite",
            {
                "ttft_p50",
                "ttft_p95",
                "itl_p50",
                "itl_p95",
                "tpot_p50",
                "tpot_p95",
                "e2e_p50",
                "e2e_p95",
            },
        ),
    ],
)
def test_the_same_rate_on_a_slower_engine(slower: float, ttft_ms: str, beyond: set[str]) -> None:
    """Two minutes of Poisson arrivals at one rate: what became worse is named, with its unit."""
    plan = SearchPlan((), unit=REQUESTS_PER_S)
    sides = []
    for factor in (1.0, slower):
        table, level = held(3, 0.6, "poisson", 120, factor)
        sides.append(level_figures(table, [level], plan, searched=False))
    found = compare(common_pairs(*sides, REQUESTS_PER_S), 0.1, 0.01)
    assert {one.metric for one in found if one.beyond} == beyond
    assert {(one.users, one.unit) for one in found} == {(level.load.rate_per_s, "requests/s")}
    (late,) = (one.b for one in found if one.metric == "ttft_p95")
    assert ("finite" if isfinite(late) else "infinite") == ttft_ms


def test_an_unstable_level_fails_before_its_slo_does() -> None:
    """20% above capacity for 30 s: everyone meets a limit of a minute, and yet it is no knee."""
    table, level = held(3, 1.2, "poisson", 30)
    plan = SearchPlan((Slo.parse("ttft_p95=60s"),), unit=REQUESTS_PER_S)
    judged = plan.judge(gather_evidence(table, level, plan.slos))
    assert judged.decision == Decision.failed
    assert judged.reason.split(":")[0] == "unstable"
    stable = plan.judge(gather_evidence(*held(3, 0.5, "poisson", 30), plan.slos))
    assert stable.decision == Decision.passed


def check(answers: dict[int, list[Any]], figure: Callable[[str], None]) -> None:
    """Within 5% of the formula, covered by the interval, and promised rates hold: 95% each."""
    truths = known_rates()
    n = len(answers)
    close = []
    covers = []
    n_found = 0
    promised = {}
    for seed, (status, users, low, high, holds) in answers.items():
        truth = truths[seed]
        close.append(abs((users or 0) / 100 / truth - 1) <= 0.05)
        covers.append(low / 100 <= truth <= high / 100 + 0.01)
        n_found += status == Status.found
        if status in {Status.found, Status.holds}:
            promised[seed] = holds
    kept = [holds / 100 <= truths[s] for s, holds in promised.items()]
    figure(
        f"knee in requests/s within 5% of the truth: {sum(close)} of {n}; interval covers "
        f"{sum(covers)}; found in {n_found}; {sum(kept)} of {len(promised)} promises hold"
    )
    assert sum(close) >= 0.95 * n
    assert sum(covers) >= 0.95 * n
    assert sum(kept) >= 0.95 * len(promised)


def test_the_rate_over_100_engines(figure: Callable[[str], None]) -> None:
    """As `make statistics` has stored them."""
    answers = stored("rates")
    assert set(answers) == set(SEEDS)
    check(answers, figure)


@pytest.mark.parametrize("seed", [0, 7, 23])
def test_the_formula_is_that_of_the_engine(seed: int) -> None:
    """At the knee of the formula a long run has the allowed share over the limit: 20,000 requests.

    Its standard error is about 0.5 percentage points, as neighbors wait together.
    """
    case = server(seed)
    rate = round(case.knee_per_s, 2)
    loop = OpenLoop(case.engine, TRAFFIC, seed + 1000)
    loop.set_rate(0, rate)
    loop.advance(int(20_000 / rate) * SECOND)
    waits = ttft(loop.table(0, loop.now_ns)).ns
    over = (waits > case.slo.limit_ns).mean()
    assert over == pytest.approx(case.slo.allowed, abs=0.015)
    assert case.met(rate + 0.02) < 1 - case.slo.allowed <= case.met(rate - 0.02)
