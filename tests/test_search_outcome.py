"""From steps to the knee and its bottleneck, in simulated counts."""

from dataclasses import replace
from math import inf

import pytest
from measure_tables import SECOND, evidence, record, run_with, table, window

from harness.core.states import Decision, Status
from harness.metrics.level_figures import MaxNumSeqs, ServerFigures
from harness.metrics.result import Level
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.records.samples import ServerSample
from harness.search.explain_knee import bottleneck, result_levels
from harness.search.knee_estimate import KneeEstimate, estimate_knee, slo_results
from harness.search.level_state import HeldLevel
from harness.search.next_level import Done, SearchPlan
from harness.search.replay import RunTokenStats

PLAN = SearchPlan((Slo.parse("ttft_p95=500ms"),))


def step(users: int, over: float, start_s: float, end_s: float) -> HeldLevel:
    """400 requests at `users`, of which `over` are over the limit."""
    measured = evidence(users, (400, over), seconds=end_s - start_s)
    held = replace(measured, window=window(users, start_s, end_s))
    return HeldLevel(held.window, held, PLAN.judge(held))


def test_the_verdict_looks_at_the_longest_step_above_the_knee() -> None:
    """Nine users for 2 s, seen once between two batches, then for 20 s: all seats are taken."""
    passed = step(8, 4, 0, 10)
    failed = step(9, 80, 20, 22)
    failed_again = step(9, 80, 30, 50)
    steps = [passed, failed, failed_again]
    running = {20: 0, 21: 8, **dict.fromkeys(range(30, 50), 8)}
    samples = []
    for at_s, running_now in running.items():
        samples.append(ServerSample(at_s * SECOND, running_now, 1, kv_usage=0.1))
    windows = [step.window for step in steps]
    counted = RunTokenStats(table(), windows, PLAN.slos, samples)
    levels = result_levels(steps, counted, run_with(samples), PLAN)
    assert bottleneck(PLAN.slos, 8, levels, MaxNumSeqs()).bound_by == "batch slots"


BOTH = replace(PLAN, slos=(*PLAN.slos, Slo.parse("itl_p95=50ms")))


@pytest.mark.parametrize(
    ("first_tokens", "want"),
    [
        ((100, 1), (None, 64, 512)),  # the highest level is within both limits, too
        ((100, 60), (42, 32, 63)),
        # the budget was over before a first token came: it says nothing of the knee
        ((0, 0), (None, 32, 512)),
    ],
)
def test_a_level_that_shows_nothing_of_an_slo(
    first_tokens: tuple[int, int], want: tuple[int | None, int, int]
) -> None:
    """32 users are within both limits, and so are the gaps of 64."""
    shown = {32: ((100, 1), (4000, 40)), 64: (first_tokens, (4000, 40))}
    steps = []
    for number, (users, counts) in enumerate(shown.items()):
        held = window(users, 100 * number, 100 * number + 60)
        measured = replace(evidence(users, *counts), window=held)
        steps.append(HeldLevel(held, measured, BOTH.judge(measured)))
    got = estimate_knee(BOTH, steps, Done(Status.inconclusive, None))
    assert (got.count, got.lo, got.hi) == want


def test_each_workload_of_a_mix_has_its_own_latencies() -> None:
    """TTFT 10 and 100 ms, gaps of 20 and 50; the last of the long ones breaks off after a token."""
    requests = []
    for n in range(40):
        row, first_ms, gap_ms = (0, 10, 20) if n % 2 == 0 else (1, 100, 50)
        times = [1000 * n + first_ms + gap_ms * k for k in range(4)]
        requests.append(replace(record(n, 1000 * n, times), mix_row=row))
    cut_off = record(39, 39_000, [39_100], 39_200, Outcome.truncated, planned=4)
    requests[39] = replace(cut_off, mix_row=1)
    held = step(8, 4, 0, 60)
    counted = RunTokenStats(table(*requests), [held.window], PLAN.slos, [])
    (level,) = result_levels([held], counted, run_with([]), PLAN, mix=("chat", "rag"))
    got = {}
    for name, row in level.mix.items():
        for key, one in row.items():
            got[name, key] = (one.n, one.n_failed, one.p50, one.p95)
    short_ms, long_ms = pytest.approx(20, rel=1e-3), pytest.approx(50, rel=1e-3)
    assert got == {
        ("chat", "ttft_ms"): (20, 0, 10, 10),
        ("chat", "itl_ms"): (60, 0, short_ms, short_ms),
        ("chat", "e2e_ms"): (20, 0, 70, 70),
        # failed is infinite: 5% of the requests
        ("rag", "ttft_ms"): (20, 1, 100, inf),
        ("rag", "itl_ms"): (60, 3, long_ms, inf),  # 19 x 3 gaps, and three that never came
        ("rag", "e2e_ms"): (20, 1, 250, inf),
    }
    assert level.itl_ms.n == 120


SCRAPED = ServerFigures(samples=4, running_mean=8)


@pytest.mark.parametrize(
    ("levels", "want"),
    [
        # (users, over the limit, scrapes) -> the level that is judged
        ([(8, 0.01, 4), (9, 0.2, 4), (12, 0.9, 4)], 9),
        ([(8, 0.01, 4), (9, 0.02, 4), (12, 0.9, 4)], 12),  # 9 users break nothing
        ([(8, 0.01, 4), (9, 0.02, 4), (12, 0.03, 4)], 9),  # nobody does
        ([(8, 0.01, 4), (9, 0.2, 1), (12, 0.9, 4)], 12),  # a single scrape has no rates
        ([(8, 0.01, 4), (9, 0.2, 1), (12, 0.9, 1)], 9),  # no other one has more
        ([(6, 0.01, 4), (8, 0.01, 4)], 8),  # none above the knee
    ],
)
def test_the_level_that_is_judged(levels: list[tuple[int, float, int]], want: int) -> None:
    """The first above the knee that breaks an SLO, if the server was scraped twice in it."""
    held = [
        Level(
            i,
            users,
            end_ns=10 * SECOND,
            over_share={"ttft_p95": over},
            server=replace(SCRAPED, samples=samples),
        )
        for i, (users, over, samples) in enumerate(levels)
    ]
    found = bottleneck(PLAN.slos, 8, held, MaxNumSeqs())
    assert found.window.startswith(f"{want} users held for 10 s")


@pytest.mark.parametrize(
    ("holds", "count", "lo", "users", "want"),
    [
        (8, 11, 8, [1, 8, 12], 8),  # the promise, although 12 is nearer
        (0, 11, 1, [1, 16], 16),
        (0, 11, 1, [1, 8, 16], 8),  # 3/8 below, 5/11 above
        (0, 11, 1, [16, 8, 1], 8),
        (0, 11, 1, [1, -12, 32], 32),  # 12 is invalid
        (0, 11, 1, [], None),
        (0, None, 8, [4, 8, 9], 8),
        (0, None, 0, [4, 2], 2),
    ],
)
def test_the_level_that_stands_for_the_knee(
    holds: int, count: int | None, lo: int, users: list[int], want: int | None
) -> None:
    """Below 0: an invalid one."""
    estimate = KneeEstimate(Status.inconclusive, count, lo, 32, holds)
    levels = []
    for i, n in enumerate(users):
        decision = Decision.inconclusive if n > 0 else Decision.invalid
        levels.append(Level(i, abs(n), decision=decision))
    (slo,) = slo_results(PLAN, estimate, levels)
    assert slo.users == want


def test_without_levels_nothing_is_named() -> None:
    """A run that was cut off before its first level has no bottleneck."""
    assert bottleneck(PLAN.slos, 8, [], MaxNumSeqs()).bound_by == "undecided"
