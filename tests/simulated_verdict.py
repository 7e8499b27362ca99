"""The verdict on seeded configurations in simulated time, against what doubling resources does.

`PYTHONPATH=. python tests/simulated_verdict.py` writes data/bottlenecks.json, the truths, again
(5 minutes on two cores). Then: `make statistics docs`.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from knee_movement import movements
from planted_bottlenecks import RESOURCES, bottleneck

from harness.core.load import Users
from harness.core.states import Purpose
from harness.diagnosis.bottleneck import UNDECIDED
from harness.metrics.evidence import Window, gather_evidence
from harness.metrics.latency_figures import in_window
from harness.metrics.metrics import ttft
from harness.metrics.result import Latency, Level
from harness.search.explain_knee import bottleneck as bottleneck_of
from harness.search.explain_knee import with_observations
from harness.server.max_num_seqs import max_num_seqs
from harness.units import MS, SECOND
from lab.closed_loop import ClosedLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.metrics.result import Bottleneck
    from harness.records.samples import GpuSample, ServerSample

TRUTHS = Path(__file__).parent / "data" / "bottlenecks.json"
CONFIDENT = 0.8
HELD_OUT = 4000  # the rules' constants were chosen while looking at seeds below it
CASES = 200
LEAST, MOST = 4, 300  # knees that are looked at,
BINDS = 0.2  # where doubling something moves them by that much (log): by 22 % at least
BATCH = 16


def truth(seed: int) -> dict[str, Any] | None:
    """`{"knee": users, "moved": {resource: log}}`; None: no such knee, or nothing moves it."""
    users, moved = movements(bottleneck(seed), LEAST, MOST)
    if max(moved.values(), default=0.0) < BINDS:
        return None
    return {"knee": round(users, 2), "moved": {k: round(v, 3) for k, v in moved.items()}}


def truths(first: int, wanted: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first so many seeds from `first` on that have one."""
    found = 0
    with ProcessPoolExecutor() as pool:
        for start in count(first, BATCH):
            seeds = range(start, start + BATCH)
            for seed, one in zip(seeds, pool.map(truth, seeds), strict=True):
                if one is not None and found < wanted:
                    found += 1
                    yield seed, one
            if found == wanted:
                return


RIVAL = 0.5  # of the movement: then the runner-up, or no name, is right too


def answers(one: dict[str, Any]) -> set[str]:
    """What may be said of a configuration: the resource that moves the knee most, or nearly."""
    (first, most), (second, next_most) = sorted(one["moved"].items(), key=lambda x: -x[1])[:2]
    return {first} | ({second, UNDECIDED} if next_most > RIVAL * most else set())


SHARES = (0.05, 0.85, 1.12)  # of the knee: what the search holds far below, below, just above
HELD_S = 25
WARM_S = 60  # at most, until each user has ended two requests


def conclusion(seed: int, knee: float) -> Bottleneck:
    """The verdict after three levels around a knee that is known."""
    case = bottleneck(seed)
    loop = ClosedLoop(case.engine, case.traffic, seed, observe=True)
    samples: list[ServerSample] = []
    gpus: list[GpuSample] = []
    levels: list[Level] = []
    for share in SHARES:
        least = int(knee) + 1 if share > 1 else 1
        window = hold(loop, max(int(share * knee), least), samples, gpus)
        table = loop.table(window.settled_ns, window.end_ns)
        evidence = gather_evidence(table, window, case.slos)
        whole = (window.settled_ns, window.end_ns)
        first = in_window(ttft(table), table, "ttft", *whole).ns
        first = first[first < np.inf]
        mean_ms = float(first.mean()) / MS if len(first) else math.nan
        counts = [evidence.over(i) for i in range(len(case.slos))]
        over = {
            slo.name: float(hits.sum() / max(sizes.sum(), 1))
            for slo, (sizes, hits) in zip(case.slos, counts, strict=True)
        }
        level = Level(
            0,
            window.load.count,
            settled_ns=whole[0],
            end_ns=whole[1],
            latencies={"ttft_ms": Latency(mean=mean_ms)},
            over_share=over,
        )
        levels.append(with_observations(level, window, table, case.slos, samples, gpus=gpus))
    return bottleneck_of(case.slos, int(knee), levels, max_num_seqs({}, samples))


def answer(seed: int, knee: float) -> list[Any]:
    """What is named around the true knee, how surely, and the probability of every cause."""
    told = conclusion(seed, knee)
    return [told.bound_by, told.confidence, {one.name: one.probability for one in told.causes}]


def cases() -> Iterator[tuple[int, float]]:
    """Each seed with its true knee."""
    return ((seed, one["knee"]) for seed, one in known().items())


def hold(
    loop: ClosedLoop, users: int, samples: list[ServerSample], gpus: list[GpuSample]
) -> Window:
    """Hold a level, read server and GPU once a second; its window."""
    loop.set_users(users)
    began, before = loop.now_ns, loop.sample().requests_total
    settled = 0
    while not settled or loop.now_ns - settled < HELD_S * SECOND:
        loop.advance(loop.now_ns // SECOND * SECOND + SECOND)
        samples.append(loop.sample())
        gpus.append(loop.gpu_sample())
        turned = samples[-1].requests_total - before >= 2 * users
        if not settled and (turned or loop.now_ns - began >= WARM_S * SECOND):
            settled = loop.now_ns
    return Window(0, Users(users), Purpose.hold, began, began, settled, loop.now_ns, loop.now_ns)


def known() -> dict[int, dict[str, Any]]:
    """Seed -> its truth, of the held-out ones."""
    return {int(seed): one for seed, one in json.loads(TRUTHS.read_text()).items()}


def tally(truths: dict[int, dict[str, Any]], told: dict[int, list[Any]]) -> dict[str, Any]:
    """How often a verdict (name, confidence) is right and sure; truth -> name -> how often."""
    right = {seed for seed, one in truths.items() if told[seed][0] in answers(one)}
    sure = {seed for seed in truths if told[seed][1] >= CONFIDENT}
    table: dict[str, Counter[str]] = {name: Counter() for name in RESOURCES}
    for seed, one in truths.items():
        table[max(one["moved"], key=one["moved"].get)][told[seed][0]] += 1
    return {
        "cases": len(truths),
        "right": len(right),
        "right_and_sure": len(right & sure),
        "wrong_and_sure": sorted(sure - right),
        "table": {name: dict(sorted(named.items())) for name, named in table.items()},
    }


BANDS = (0.0, 0.5, 0.7, 0.8, 0.9, 1.01)  # of the probability of what is named
Z95 = 1.96


def calibration(
    truths: dict[int, dict[str, Any]], told: dict[int, list[Any]]
) -> list[tuple[float, int, int, float, float]]:
    """By BANDS: (mean probability stated, cases, of these right, 95% interval of that share)."""
    rows = []
    for low, high in pairwise(BANDS):
        here = [s for s in truths if told[s][0] != UNDECIDED and low <= told[s][1] < high]
        if here:
            right = sum(told[seed][0] in answers(truths[seed]) for seed in here)
            stated = math.fsum(told[seed][1] for seed in here) / len(here)
            rows.append((stated, len(here), right, *wilson(right, len(here))))
    return rows


def wilson(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95% interval of a share."""
    share, z2 = right / n, Z95**2 / n
    middle = share + z2 / 2
    half = Z95 * math.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return (middle - half) / (1 + z2), (middle + half) / (1 + z2)


if __name__ == "__main__":
    every = {str(seed): one for seed, one in truths(HELD_OUT, CASES)}
    TRUTHS.write_text(json.dumps(every, indent=0) + "\n")
    sys.stdout.write(f"{TRUTHS}: {len(every)} configurations\n")
