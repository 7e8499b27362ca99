"""How often `compare` errs: pairs of whole searches in simulated time, on the engine's scheduler.

    PYTHONPATH=. python bench/compare_seeds.py [PAIRS] [LOAD-SEED]

For each engine configuration of tests/data whose true knee lies between 20 and 200 users: A, the
same again with another load (a false alarm is whatever is called worse at tolerance 0), and a B
whose knee is 10% lower: where N users are asked for, the engine has N / 0.9, so all that A shows at
N / 0.9 users B shows at N. Writes results/compare.md; 200 pairs take about half an hour of CPU.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.compare.compare_folders import common_pairs, level_figures
from harness.metrics.level_figures import Change
from harness.search.comparison import KNEE, compare
from harness.search.controller import KneeController
from harness.search.knee_estimate import estimate_knee
from harness.search.next_level import SearchPlan
from harness.units import SECOND
from lab.closed_loop import ClosedLoop
from lab.engine_configurations import Configuration, configuration
from lab.simulated_records import SimulatedRecords

if TYPE_CHECKING:
    from harness.compare.compare_folders import Sides
    from harness.metrics.level_figures import Difference

HERE = Path(__file__).parent
TRUTHS = HERE.parent / "tests/data/true_knees.json"
LEAST, MOST = 20, 200
LOWER = 0.9
NARROW = 0.05  # of the knee: its interval
LAST_NS = 300 * SECOND


class Remembered(SimulatedRecords):
    """Forgets nothing, so that the whole run is one table in the end."""

    def forget(self, before_ns: int) -> None:
        """Do not."""


class Crowded:
    """A loop in which `share` of a user more stands behind each user."""

    def __init__(self, loop: ClosedLoop, share: float) -> None:
        self.loop, self.share, self.users = loop, share, 0

    @property
    def running_users(self) -> int:
        """As many as were asked for, and those that are more than there should be."""
        more = self.loop.running_users - self.loop.users
        return self.users + round(more * self.share)

    def set_users(self, users: int) -> None:
        """Start or retire users."""
        self.users = users
        self.loop.set_users(round(users / self.share))


@dataclass(frozen=True)
class Searched:
    """One search: what compare takes, and whether the knee's own interval is narrow."""

    sides: Sides
    users: int | None
    narrow: bool


def search(case: Configuration, seed: int, share: float = 1.0) -> Searched:
    """`knee` with its default budget, ticked once a simulated second, then the load's end."""
    plan = SearchPlan(case.slos, seed=seed)
    loop = ClosedLoop(case.engine, case.traffic, seed)
    loop._played = Remembered()
    crowd, controller, tick_ns = Crowded(loop, share), KneeController(plan, loop), 0
    while controller.result is None:
        tick_ns += SECOND
        loop.advance(tick_ns)
        target = controller.tick(loop.now_ns, crowd.running_users, loop.sample())
        if target.users != crowd.users:
            crowd.set_users(target.users)
    found = estimate_knee(plan, controller.levels, controller.result)
    crowd.set_users(0)
    until_ns = loop.now_ns + LAST_NS
    while loop.running_users and loop.now_ns < until_ns:
        loop.advance(loop.now_ns + SECOND)
    table = loop.table(0, loop.now_ns)
    sides = level_figures(table, [step.window for step in controller.levels], plan, searched=True)
    narrow = found.count is not None and found.hi - found.lo <= NARROW * found.count
    return Searched(sides, found.count, narrow)


def told(difference: Difference) -> str:
    """`ttft_p50 at 29 users: +11.6%`."""
    where = f" at {difference.users} users" if difference.users else ""
    return f"{difference.metric}{where}: {difference.change:+.1%}"


def main() -> None:
    """Run the pairs, write the table."""
    count, load = (*map(int, sys.argv[1:3]), *(200, 100_000)[len(sys.argv) - 1 :])
    truths = {int(seed): users for seed, users in json.loads(TRUTHS.read_text()).items()}
    seeds = [s for s in sorted(truths, reverse=True) if LEAST <= truths[s] <= MOST][:count]
    n: Counter[str] = Counter()
    alarms, compared = [], 0
    for seed in seeds:
        case = configuration(seed)
        a = search(case, load + seed)
        same, low = search(case, 2 * load + seed), search(case, 3 * load + seed, LOWER)
        pairs = common_pairs(a.sides, same.sides)
        compared += len(pairs)
        found = compare(pairs, 0, 0.01)
        worse = [d for d in found if d.verdict == Change.worse]
        n["alarm"] += bool(worse)
        n["alarm of the knee"] += any(d.metric == KNEE for d in worse)
        n["better"] += any(d.verdict == Change.better for d in found)
        beyond = [d for d in compare(pairs, 0.05, 0.01) if d.beyond]
        n["alarm at 5%"] += bool(beyond)
        alarms += [f"{case.kind}, seed {seed}: {told(d)}" for d in [*worse, *beyond]]
        groups = ["all", "narrow" if a.narrow and low.narrow else "wide", case.kind]
        pairs = common_pairs(a.sides, low.sides)
        at_0, at_5 = (compare(pairs, tolerance, 0.01) for tolerance in (0, 0.05))
        for group in groups:
            n[group] += 1
            n[f"{group} worse"] += any(d.metric == KNEE and d.verdict == Change.worse for d in at_0)
            n[f"{group} beyond"] += any(d.metric == KNEE and d.beyond for d in at_5)
            n[f"{group} red"] += any(d.beyond for d in at_5)
        sys.stderr.write(f"{seed} {case.kind} {a.users} {same.users} {low.users} {dict(n)}\n")
        sys.stderr.write("".join(f"  {line}\n" for line in alarms))
    text = [
        "# `compare` on pairs of simulated searches",
        "",
        (
            f"`PYTHONPATH=. python bench/compare_seeds.py {count} {load}`: {len(seeds)} engine "
            f"configurations with true knees of {LEAST} to {MOST} users, three searches each (600 "
            "simulated seconds at most). A pair has "
            f"{compared / len(seeds):.0f} figures, on average."
        ),
        "",
        "| Nothing changed (A/A) | pairs |",
        "|---|---:|",
        f"| anything called *worse* at tolerance 0 | {n['alarm']} of {len(seeds)} |",
        f"| of these, the knee | {n['alarm of the knee']} |",
        f"| anything called *better* | {n['better']} |",
        f"| anything worse by more than 5% (exit code 99) | {n['alarm at 5%']} |",
        "",
        "| A knee 10% lower | pairs | knee *worse* | knee worse by more than 5% | exit code 99 |",
        "|---|---:|---:|---:|---:|",
    ]
    names = {"all": "all", "narrow": "both knees' intervals at most 5% wide", "wide": "a wider one"}
    for group, name in (names | {k: k for k in ("slots", "kv", "prefill", "decode")}).items():
        shares = (f"{n[f'{group} {x}'] / max(n[group], 1):.1%}" for x in ("worse", "beyond", "red"))
        text.append(f"| {name} | {n[group]} | {' | '.join(shares)} |")
    text += ["", "False alarms:", "", *(f"- {line}" for line in alarms or ["none"]), ""]
    (HERE / "results/compare.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
