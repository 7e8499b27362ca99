"""The knee at three limits from one simulated search: what was asked for, half of it and twice.

`PYTHONPATH=. python tests/simulated_limits.py` writes data/true_knees_of_limits.json again (an hour
on two cores); `make statistics` writes the answers.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from simulated_knee import known_truths, search_users

from harness.metrics.evidence import EvidenceCounter
from harness.metrics.scan import scan
from harness.search.controller import KneeController
from harness.search.knee_curve import at_limit, evidence_at, knee_at
from harness.search.next_level import SearchPlan
from lab.closed_loop import ClosedLoop
from lab.engine_configurations import configuration
from lab.reference_knee import true_knee

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.metrics.evidence import Evidence
    from harness.search.level_state import HeldLevel

TRUTHS = Path(__file__).parent / "data" / "true_knees_of_limits.json"
N_SEEDS = 50  # the first of the held-out ones
STEPS = (-56, 0, 56)  # of the grid of ratios: 1/2.01, 1 and 2.01 times the limit


def truth(seed: int) -> list[int]:
    """The true knee at each limit; 0: one user is too many, 512: or more."""
    case = configuration(seed)
    (slo,) = case.slos
    return [
        true_knee(case.engine, case.traffic, (at_limit(slo, n),)).users
        if n
        else known_truths()[seed]
        for n in STEPS
    ]


def known() -> dict[int, list[int]]:
    """The true knees of each seed."""
    return {int(seed): users for seed, users in json.loads(TRUTHS.read_text()).items()}


def cases() -> Iterator[tuple[int]]:
    """Each seed."""
    return ((seed,) for seed in known())


def found_at_limits(seed: int) -> list[list[int] | None]:
    """(knee, ends of its band) at each limit, from one search; None: its levels do not reach it."""
    case = configuration(seed)
    (slo,), plan = case.slos, SearchPlan(case.slos, seed=seed)
    loop = ClosedLoop(case.engine, case.traffic, seed)
    seen: list[list[Evidence]] = []

    def on_level(level: HeldLevel) -> None:
        window = level.window
        table = loop.table(window.settled_ns, window.end_ns)
        counted = EvidenceCounter(table, window, (slo,))
        scan(table, [counted])
        seen.append([evidence_at(table, window, counted, slo, n) for n in STEPS])

    held = search_users(KneeController(plan, loop, on_level=on_level), loop).levels
    each = zip(STEPS, zip(*seen, strict=True), strict=True)
    knees = [knee_at(plan, at_limit(slo, n), held, evidences) for n, evidences in each]
    return [one and [one.count or 0, one.lo, one.hi] for one in knees]


if __name__ == "__main__":
    seeds = list(known_truths())[:N_SEEDS]
    with ProcessPoolExecutor() as pool:
        users = dict(zip(map(str, seeds), pool.map(truth, seeds), strict=True))
    TRUTHS.write_text(json.dumps(users).replace("], ", "],\n") + "\n")
    sys.stdout.write(f"{TRUTHS}: {len(users)} configurations\n")
