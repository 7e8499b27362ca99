"""The whole search in simulated time: the product's controller against the engine's scheduler.

`PYTHONPATH=. python tests/simulated_knee.py` writes data/true_knees.json again (40 minutes on two
cores).
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from math import inf, isinf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.states import Decision, Status
from harness.engine.config import EngineConfig
from harness.metrics.slo import Slo
from harness.search.controller import KneeController
from harness.search.fit import fit_levels
from harness.search.knee_estimate import KneeEstimate, estimate_knee
from harness.search.level_state import valid_evidence
from harness.search.next_level import Done, SearchPlan, decided_ends
from harness.units import SECOND
from lab.closed_loop import ClosedLoop, Traffic
from lab.duel import BUDGET_S
from lab.engine_configurations import Configuration, configuration
from lab.reference_knee import true_knee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.search.level_state import HeldLevel

TRUTHS = Path(__file__).parent / "data" / "true_knees.json"
SEEDS = range(480)
HELD_OUT = 240  # the search's constants were chosen while looking at the seeds below it
ASK_NS = SECOND // 4  # as senders.session.ASKS_PER_S
SENT_NS = SECOND // 10  # on their way from a worker
FIRST_SLOS = Slo.parse("ttft_p95=500ms"), Slo.parse("itl_p95=50ms")
CASES = 200
STOPS = (20, 60, 150)  # request lifetimes near the knee, after the way up
SHORT_BUDGETS_S = (60, 150)
LEAST, MOST = 4, 400  # knees that the default search range can see and halve


def drive(
    controller: KneeController,
    loop: ClosedLoop,
    every_ns: int = SECOND,
    known: Callable[[int], int] | None = None,
) -> KneeController:
    """Tick a controller to its end, as often; `known`: instant -> what is known by then."""
    tick_ns = 0
    while True:
        tick_ns += every_ns
        loop.advance(tick_ns)
        known_ns = known(loop.now_ns) if known else None
        target = controller.tick(loop.now_ns, loop.running_users, loop.sample(), known_ns)
        if target.done:
            return controller
        if target.users != loop.users:
            loop.set_users(target.users)


def search_users(controller: KneeController, loop: ClosedLoop) -> KneeController:
    """As in real time where users never pause: records come by whole seconds, a little later."""
    return drive(controller, loop, ASK_NS, lambda now_ns: (now_ns - SENT_NS) // SECOND * SECOND)


def search(
    case: Configuration, seed: int, plan: SearchPlan | None = None
) -> tuple[KneeEstimate, SearchPlan, list[HeldLevel], ClosedLoop]:
    """`knee` with its default budget, or another plan."""
    plan = plan or SearchPlan(case.slos, seed=seed, seats=kv_seats(case))
    loop = ClosedLoop(case.engine, case.traffic, seed)
    ended = search_users(KneeController(plan, loop), loop)
    assert ended.result is not None
    return estimate_knee(plan, ended.levels, ended.result), plan, ended.levels, loop


def kv_seats(case: Configuration) -> int:
    """Mean requests that the KV cache holds, which servers show; their slots they mostly do not."""
    engine = case.engine
    tokens = case.traffic.prompt_tokens + case.traffic.output_tokens
    return engine.blocks * engine.block_size // tokens


def answer(seed: int) -> list[Any]:
    """The search's status, knee, ends of its interval and promise; what it cost.

    The cost: seconds of load, requests, levels. Then its first promise, after how many seconds, and
    the ends that it had shown at each of STOPS and at its end.
    """
    found, plan, levels, loop = search(configuration(seed), seed)
    requests = int(loop.sample().requests_total) + loop.running_users
    cost = round(loop.now_ns / SECOND, 1), requests, len(levels)
    first = first_promise(plan, levels)
    stops = ends_at_stops(plan, levels, known_truths()[seed])
    return [found.status, found.count, found.lo, found.hi, found.holds, *cost, *first, stops]


def ends_at_stops(plan: SearchPlan, levels: list[HeldLevel], true: int) -> list[list[int | None]]:
    """What was shown to hold, or 0, and to fail, or None, where it was stopped after the way up."""
    life_ns = min(
        levels, key=lambda held: abs(log(held.window.load.count / true))
    ).evidence.lifetime_ns
    ends = []
    up_ns = inf
    for ended in range(1, len(levels) + 1):
        fitted = fit_levels(valid_evidence(levels[:ended]), plan.slos, plan.max_errors)
        judged_ns = levels[ended - 1].window.judged_ns
        if fitted and plan.leans(fitted[-1].evidence) == Decision.failed:
            up_ns = min(up_ns, judged_ns)
        holds, fails_by = decided_ends(plan, fitted)
        ends.append((judged_ns, [holds, None if isinf(fails_by) else int(fails_by)]))
    stops = []
    for lifetimes in STOPS:
        stop_ns = up_ns + lifetimes * life_ns
        until_then = [shown for judged_ns, shown in ends if judged_ns <= stop_ns]
        stops.append(until_then[-1] if until_then else [0, None])
    return [*stops, ends[-1][1]]


def first_promise(
    plan: SearchPlan, levels: list[HeldLevel]
) -> tuple[int, float] | tuple[None, None]:
    """What a search that was stopped as early as possible would have promised, and when (s)."""
    for ended, level in enumerate(levels, 1):
        found = estimate_knee(plan, levels[:ended], Done(Status.inconclusive, None))
        if found.holds:
            return found.holds, round(level.window.judged_ns / SECOND, 1)
    return None, None


def cases() -> Iterator[tuple[int]]:
    """The first 200 held-out seeds."""
    return ((seed,) for seed in list(known_truths())[:CASES])


def duel_cases() -> Iterator[tuple[int, float]]:
    """The same with our search's default budget: on these the searches of others are asked."""
    return ((seed, BUDGET_S) for (seed,) in cases())


def with_budget(seed: int, budget_s: int) -> list[int | None]:
    """What a search with a shorter budget has shown to hold, or 0, and to fail, or None."""
    case = configuration(seed)
    plan = SearchPlan(case.slos, budget_ns=budget_s * SECOND, seed=seed, seats=kv_seats(case))
    _, plan, levels, _ = search(case, seed, plan)
    fitted = fit_levels(valid_evidence(levels), plan.slos, plan.max_errors)
    holds, fails_by = decided_ends(plan, fitted)
    return [holds, None if isinf(fails_by) else int(fails_by)]


def budget_cases() -> Iterator[tuple[int, int]]:
    """The same seeds; that of the default budget is in the statistic *knees*."""
    return ((seed, budget_s) for (seed,) in cases() for budget_s in SHORT_BUDGETS_S)


def ends_by_budget(
    knees: dict[int, list[Any]], budgets: dict[tuple[int, int], list[int | None]]
) -> dict[int, list[list[int | None]]]:
    """Budget in seconds -> the ends that each of its searches has shown at its end."""
    ends = {
        budget_s: [shown for (_, of_s), shown in budgets.items() if of_s == budget_s]
        for budget_s in SHORT_BUDGETS_S
    }
    return ends | {BUDGET_S: [answer[-1][-1] for answer in knees.values()]}


def first_command(seed: int) -> list[Any]:
    """The status of `make knee`, its ends, its seconds of load and those to its first promise."""
    case = Configuration("slots", EngineConfig(max_num_seqs=16), Traffic(128, 32, 0.4), FIRST_SLOS)
    plan = SearchPlan(case.slos, max_users=128, budget_ns=90 * SECOND, seed=seed, seats=16)
    found, plan, levels, loop = search(case, seed, plan)
    _, first_s = first_promise(plan, levels)
    return [found.status, found.holds, found.fails_by, loop.now_ns / SECOND, first_s]


def first_cases() -> Iterator[tuple[int]]:
    """Twenty seeds."""
    return ((seed,) for seed in range(20))


def truth(seed: int) -> int:
    """The true knee of one seed, from long runs on other draws."""
    case = configuration(seed)
    return true_knee(case.engine, case.traffic, case.slos).users


def known_truths() -> dict[int, int]:
    """Held-out seed -> true knee, of those the default range can see."""
    every = {int(seed): users for seed, users in json.loads(TRUTHS.read_text()).items()}
    return {s: users for s, users in every.items() if s >= HELD_OUT and LEAST <= users <= MOST}


if __name__ == "__main__":
    with ProcessPoolExecutor() as pool:
        users = dict(zip(map(str, SEEDS), pool.map(truth, SEEDS), strict=True))
    TRUTHS.write_text(json.dumps(users, indent=0) + "\n")
    sys.stdout.write(f"{TRUTHS}: {len(users)} configurations\n")
