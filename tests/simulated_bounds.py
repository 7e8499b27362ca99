"""What a searcher who knew the knee could show: the best pair of levels, held until it is decided.

Both ends have to be within a share of the true knee. The farthest such levels are the ones that are
decided soonest, so a searcher who knows the knee holds these two and nothing else. Each is held
from an empty server, in simulated time, and asked at each look which test has decided by then.
"""

from __future__ import annotations

from itertools import product
from math import ceil, floor, log
from typing import TYPE_CHECKING, Any, Final

from simulated_knee import CASES, known_truths

from harness.core.load import Users
from harness.core.states import Decision, Purpose
from harness.metrics.evidence import Evidence, Window, gather_evidence
from harness.search.busy_users import TURNOVERS
from harness.search.controller import GOOD_LIFETIMES, MIN_LIFETIMES
from harness.search.level_state import SCRAPED_NS
from harness.search.next_level import SearchPlan
from harness.units import SECOND
from lab.closed_loop import ClosedLoop
from lab.engine_configurations import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.engine_configurations import Configuration

PASSES, FAILS = Decision.passed, Decision.failed
SIDES: Final = (PASSES, FAILS)
# Both ends so near, in parts of the knee, within so many lifetimes: the aims of a search.
AIMS: Final = {0.25: 60, 0.12: 150}
WRONG: Final = 0.03  # promises that may be too high: all of it is spent on one level
LOOKS: Final = 1.08  # the next look comes when a level has been held for so many times as long
FIRST_LOOK_NS: Final = SECOND
OWN_DRAWS: Final = 5_000_000  # neither those of the searches nor those of the true knees


def end_of(true: int, reach: float, side: Decision) -> int:
    """The farthest level that is near enough to the knee, as the searches are judged."""
    away = reach * true + 1
    return max(ceil(true - away), 1) if side == PASSES else floor(true + away)


def answer(seed: int, reach: float, side: Decision) -> list[Any]:
    """Seconds: of a lifetime; until it has settled; then until it is decided, None: not in time.

    Decided by the search's test with all its rules, and by the highest likelihood ratio that any
    share can have, with the design effect of the whole hold, after no least time.
    """
    case = configuration(seed)
    users = end_of(known_truths()[seed], reach, side)
    loop = ClosedLoop(case.engine, case.traffic, OWN_DRAWS + seed)
    loop.set_users(users)
    settled_ns = settle(loop)
    looks = held(case, loop, settled_ns, side, AIMS[reach])
    plan = SearchPlan(case.slos)
    by_search = [is_decided(plan, look, side) for look in looks]
    # As if the variance were known beforehand: that of the whole hold.
    effect = looks[-1].effect(0, case.slos[0].allowed)
    by_best = [shows_by_best(plan, look, side, effect) for look in looks]
    seconds = [first_s(looks, test) for test in (by_search, by_best)]
    life_s = looks[-1].lifetime_ns / SECOND
    return [round(life_s, 3), round(settled_ns / SECOND, 1), *seconds]


def settle(loop: ClosedLoop) -> int:
    """Until two requests per user have ended: when that was."""
    while loop.sample().requests_total < TURNOVERS * loop.users:
        loop.advance(loop.now_ns + SECOND // 4)
    return loop.now_ns


def held(
    case: Configuration, loop: ClosedLoop, settled_ns: int, side: Decision, lifetimes: int
) -> list[Evidence]:
    """What was known at each look, until the search's test has decided, or for `lifetimes`."""
    plan = SearchPlan(case.slos)
    looks: list[Evidence] = []
    length_ns = FIRST_LOOK_NS
    while True:
        loop.advance(settled_ns + length_ns)
        now = loop.now_ns
        window = Window(
            index=0,
            load=Users(loop.users),
            purpose=Purpose.repeat,
            chosen_ns=0,
            start_ns=0,
            settled_ns=settled_ns,
            end_ns=now,
            judged_ns=now,
        )
        looks.append(gather_evidence(loop.table(settled_ns, now), window, case.slos))
        is_over = now - settled_ns >= lifetimes * looks[-1].lifetime_ns
        if is_over or is_decided(plan, looks[-1], side):
            return looks
        length_ns = int(length_ns * LOOKS)


def is_decided(plan: SearchPlan, look: Evidence, side: Decision) -> bool:
    """By the search's own test, after as long a hold as the search demands."""
    least_ns = GOOD_LIFETIMES * look.lifetime_ns
    if side == FAILS:
        least_ns = max(MIN_LIFETIMES * look.lifetime_ns, SCRAPED_NS)
    return look.seconds * SECOND >= least_ns and plan.judge(look).decision == side


def shows_by_best(plan: SearchPlan, look: Evidence, side: Decision, effect: float) -> bool:
    """Whether the share that was seen, as if it had been known before, decides at WRONG."""
    allowed = plan.slos[0].allowed
    n, k = counted(look)
    return is_on(side, n, k, allowed) and log_best(n, k, allowed) / effect >= -log(WRONG)


def counted(look: Evidence) -> tuple[float, float]:
    """(observations, those of them over the limit)."""
    sizes, hits = look.over(0)
    return float(sizes.sum()), float(hits.sum())


def is_on(side: Decision, n: float, k: float, allowed: float) -> bool:
    """Whether a share is on the side of the limit that is to be shown."""
    return k < allowed * n if side == PASSES else k > allowed * n


def log_best(n: float, k: float, allowed: float) -> float:
    """The highest log likelihood ratio that any share has against the one allowed."""
    share = k / n
    over = k * log(share / allowed) if k else 0.0
    under = (n - k) * log((1 - share) / (1 - allowed)) if k < n else 0.0
    return over + under


def first_s(looks: list[Evidence], decided: list[bool]) -> float | None:
    """Seconds of the hold at the first look that decides."""
    for look, is_shown in zip(looks, decided, strict=True):
        if is_shown:
            return round(look.seconds, 1)
    return None


def cases() -> Iterator[tuple[int, float, str]]:
    """Both ends of both aims, of the engines of the statistic *knees*."""
    seeds = list(known_truths())[:CASES]
    return ((seed, reach, str(side)) for seed, reach, side in product(seeds, AIMS, SIDES))
