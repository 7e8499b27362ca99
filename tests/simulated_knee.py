"""The whole search in simulated time: the product's controller against the engine's scheduler.

`python tests/simulated_knee.py` writes data/true_knees.json again (40 minutes on two cores).
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from engine_configurations import Configuration, configuration

from harness.measure.search.next_level import SearchPlan
from harness.simulator.closed_loop import ClosedLoop
from harness.simulator.reference_knee import true_knee
from harness.study.controller import KneeController
from harness.study.knee_estimate import KneeEstimate, estimate_knee
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.study.level_state import HeldLevel

TRUTHS = Path(__file__).parent / "data" / "true_knees.json"
SEEDS = range(480)
HELD_OUT = 240  # the search's constants were chosen while looking at the seeds below it
LEAST, MOST = 4, 400  # knees that the default search range can see and halve


def drive(controller: KneeController, loop: ClosedLoop) -> KneeController:
    """Tick a controller once a simulated second, to its end."""
    tick_ns = 0
    while True:
        tick_ns += SECOND
        loop.advance(tick_ns)
        target = controller.tick(loop.now_ns, loop.running_users, loop.sample())
        if target.done:
            return controller
        if target.users != loop.users:
            loop.set_users(target.users)


def search(
    case: Configuration, seed: int
) -> tuple[KneeEstimate, SearchPlan, list[HeldLevel], ClosedLoop]:
    """`knee` with its default budget."""
    plan = SearchPlan(case.slos, seed=seed)
    loop = ClosedLoop(case.engine, case.traffic, seed)
    ended = drive(KneeController(plan, loop), loop)
    assert ended.result is not None
    return estimate_knee(plan, ended.levels, ended.result), plan, ended.levels, loop


def found(seed: int) -> KneeEstimate:
    """The answer for one seed."""
    return search(configuration(seed), seed)[0]


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
