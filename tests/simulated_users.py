"""The search over users with think time and over sessions, in simulated time, as simulated_knee.py.

`PYTHONPATH=. python tests/simulated_users.py [SECONDS]` adds true knees to
data/true_knees_of_users.json until the time is up or all are there (half an hour on two cores).
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from planned_users import PlannedUsers
from simulated_knee import drive

from harness.load.lengths import Lengths
from harness.load.workloads import Conversation, Workload
from harness.search.controller import KneeController
from harness.search.knee_estimate import KneeEstimate, estimate_knee
from harness.search.next_level import SearchPlan
from harness.units import SECOND
from lab.engine_configurations import configuration
from lab.reference_knee import LONGEST_NS, true_knee

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab.engine_configurations import Configuration

TRUTHS = Path(__file__).parent / "data" / "true_knees_of_users.json"
SEEDS: Final = range(1000, 1400)
LEAST, MOST = 4, 120  # knees that the search can see and halve, and whose truth takes seconds
SHORT_NS: Final = 120 * SECOND
CONTEXT: Final = 8192
CASES: Final = 100  # of each kind
# The budget of a search: ten minutes are too few to see how often the prompts of sessions pile up.
BUDGET_NS: Final = {"thinking": 600 * SECOND, "talking": 1800 * SECOND}


def thinking(seed: int) -> tuple[Configuration, Workload]:
    """The configuration of this seed, with pauses of 0.5 to 4 s between independent requests."""
    case, rng = configuration(seed), np.random.default_rng([20_261, seed])
    prompt, output = case.traffic.prompt_tokens, case.traffic.output_tokens
    cv = case.traffic.variation
    think = Lengths("lognormal", int(rng.choice([500, 1000, 2000, 4000])), 0.5)
    lengths = Lengths("lognormal", prompt, cv), Lengths("lognormal", output, cv)
    return case, Workload("think", "", "chat", *lengths, max_model_len=4096, think_ms=think)


def talking(seed: int) -> tuple[Configuration, Workload]:
    """The same engine; sessions of 3 to 10 turns on average whose prompts grow, with pauses.

    Half have a system message, and one in four keeps four turns of history only.
    """
    case, workload = thinking(seed)
    rng = np.random.default_rng([20_262, seed])
    talk = Conversation(
        Lengths("lognormal", int(rng.choice([3, 5, 8, 10])), 0.5),
        str(rng.choice(["full", "full", "full", "last:4"])),
    )
    # Blocks of 64 tokens, four times those of independent requests, are a quarter of the work.
    blocks = max(case.engine.num_gpu_blocks, CONTEXT // 64) * (case.engine.num_gpu_blocks > 0)
    engine = replace(case.engine, max_model_len=CONTEXT, block_size=64, num_gpu_blocks=blocks)
    workload = replace(
        workload,
        prompt=replace(workload.prompt, mean=max(workload.prompt.mean // 2, 32)),
        system_tokens=int(rng.choice([0, 512])),
        max_model_len=CONTEXT,
        conversation=talk,
    )
    return replace(case, engine=engine), workload


KINDS: Final = {"thinking": thinking, "talking": talking}


def found(kind: str, seed: int) -> KneeEstimate:
    """`knee` with its default budget; of sessions, with half an hour."""
    case, workload = KINDS[kind](seed)
    plan = SearchPlan(case.slos, seed=seed, budget_ns=BUDGET_NS[kind])
    loop = PlannedUsers(case.engine, workload, seed)
    ended = drive(KneeController(plan, loop), loop)
    assert ended.result is not None
    return estimate_knee(plan, ended.levels, ended.result)


def told(answer: KneeEstimate) -> list[Any]:
    """Its status, knee, the ends of its interval and what is promised."""
    return [answer.status, answer.count, answer.lo, answer.hi, answer.holds]


def answer_thinking(seed: int) -> list[Any]:
    """Over users with think time."""
    return told(found("thinking", seed))


def answer_talking(seed: int) -> list[Any]:
    """Over sessions."""
    return told(found("talking", seed))


def thinking_cases() -> Iterator[tuple[int]]:
    """Those whose knee is in range."""
    return ((seed,) for seed in known_truths("thinking"))


def talking_cases() -> Iterator[tuple[int]]:
    """Those whose knee is in range."""
    return ((seed,) for seed in known_truths("talking"))


def truth(kind: str, seed: int) -> int:
    """The true knee of one seed, from long runs on other draws."""
    case, workload = KINDS[kind](seed)
    start, users = partial(PlannedUsers, case.engine, workload), 0
    for longest_ns in (SHORT_NS, LONGEST_NS):  # the first says whether it is in range
        users = true_knee(
            case.engine,
            case.traffic,
            case.slos,
            max_users=MOST + 8,
            longest_ns=longest_ns,
            start=start,
        ).users
        if not LEAST <= users <= MOST:
            break
    return users


def in_range(of_kind: dict[str, int]) -> dict[int, int]:
    """Seed -> true knee, of the first hundred that the default range can see."""
    seen = [(int(seed), users) for seed, users in of_kind.items() if LEAST <= users <= MOST]
    return dict(seen[:CASES])


def known_truths(kind: str) -> dict[int, int]:
    """The same, as they are stored."""
    return in_range(json.loads(TRUTHS.read_text())[kind]) if TRUTHS.exists() else {}


def main(seconds: float) -> None:
    """Compute what is missing, a few seeds at a time."""
    until = time.monotonic() + seconds
    known = json.loads(TRUTHS.read_text()) if TRUTHS.exists() else {kind: {} for kind in KINDS}
    with ProcessPoolExecutor(2) as pool:
        while lacking := [kind for kind in KINDS if len(in_range(known[kind])) < CASES]:
            kind = min(lacking, key=lambda kind: len(known[kind]))
            some = [seed for seed in SEEDS if str(seed) not in known[kind]][:4]
            if not some or time.monotonic() > until:
                break
            found = pool.map(partial(truth, kind), some)
            known[kind] |= zip(map(str, some), found, strict=True)
            TRUTHS.write_text(json.dumps(known, indent=0) + "\n")
    told = (f"{kind}: {len(in_range(known[kind]))} of {len(known[kind])}" for kind in KINDS)
    sys.stdout.write(f"in range: {', '.join(told)}\n")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else float("inf"))
