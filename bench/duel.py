"""Our search for the knee and the field's on the same 200 simulated engines: `make duel`.

    python bench/duel.py [A:B]

A:B are places among the seeds of tests/data/true_knees.json that `make seeds` searches (default:
all 200). Every search is a pure function of the levels that it holds, in simulated time: the table
says how often each is right and what it costs in load. Exit code 0 only where the aim is met. With
all seeds it writes results/duel.json and results/duel.md: a quarter of an hour on two cores, or
three minutes while nothing but our search has changed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

HERE: Final = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))
from duel_isotonic import aiperf_smooth_isotonic
from duel_methods import (
    Answer,
    Sampling,
    aiperf_monotonic,
    fixed_ladder,
    guidellm_goodput,
    loadgen_peak,
)
from duel_probes import Seen, Server
from duel_table import Row, Summary, aim, page, summary
from engine_configurations import configuration
from simulated_knee import known_truths, search
from source_hash import source_hash

from harness.measure.search.next_level import SearchPlan
from harness.measure.states import Status
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from duel_methods import Hold

CASES: Final = 200
PROCESSES: Final = 2
NICE: Final = 10
OURS: Final = "vllm-harness"
LEAST_REQUESTS: Final = 10  # of a level that is held at our budget


@dataclass(frozen=True)
class Method:
    """A search, and how long it holds a level where its documents say so."""

    find: Callable[[Hold], Answer]
    sampling: Sampling


# Warm-up and lengths: LoadGen's mlperf.conf (*.Server.min_duration) and test_settings.h
# (min_query_count); aiperf's docs/sweeping/find-max-passing-concurrency.md at 4434c998 and
# docs/environment-variables.md (AIPERF_SEARCH_PLANNER_*); guidellm's
# docs/guides/service_level_objectives.md at b9ae3df4, an example. duel_words.md has more.
# The longest levels come first: those of the others are windows of the same runs.
METHODS: Final = {
    "LoadGen FindPeakPerformance": Method(loadgen_peak, Sampling(seconds=600, requests=100)),
    "aiperf smooth_isotonic": Method(
        aiperf_smooth_isotonic, Sampling(warm_s=60, warm_again_s=30, requests=1000)
    ),
    "guidellm goodput": Method(guidellm_goodput, Sampling(seconds=120, drained=False)),
    "fixed ladder": Method(fixed_ladder, Sampling(warm_s=15, seconds=45)),
    "aiperf monotonic": Method(aiperf_monotonic, Sampling(requests=10, requests_per_user=2)),
}
AT_BUDGET: Final = ", at our budget"
BUDGET_S: Final = SearchPlan(()).budget_ns / SECOND
Rows = dict[str, dict[int, Row]]  # by search and seed


def ours(seed: int) -> Row:
    """The product's search, with its default budget."""
    found, _, levels, loop = search(configuration(seed), seed)
    requests = int(loop.sample().requests_total) + loop.running_users
    conclusive = found.status == Status.found
    seconds = round(loop.now_ns / SECOND, 1)
    return Row(found.users, found.lo, found.hi, conclusive, seconds, requests, len(levels))


def theirs(server: Server, method: Method) -> Row:
    """Another search, and what its levels cost together."""
    trials: Counter[int] = Counter()
    seen: list[Seen] = []

    def hold(users: int) -> Seen:
        trial = trials[users]
        trials[users] += 1
        seen.append(server.hold(users, trial, method.sampling.length(users, trial)))
        return seen[-1]

    answer = method.find(hold)
    return Row(
        answer.users,
        answer.lo,
        answer.hi,
        answer.conclusive,
        round(sum(one.seconds for one in seen), 1),
        sum(one.sent for one in seen),
        len(seen),
    )


def at_budget(method: Method, row: Row, budget_s: float) -> Method:
    """The same search with levels so long that as many as it held take this budget in all.

    The warm-up keeps its share of a level.
    """
    level_s = budget_s / row.levels
    warm_s = level_s * min(method.sampling.warm_s * row.levels / row.seconds, 0.5)
    fitted = Sampling(
        warm_s, warm_s, level_s - warm_s, LEAST_REQUESTS, drained=method.sampling.drained
    )
    return replace(method, sampling=fitted)


def others(seed: int, budget_s: float) -> dict[str, Row]:
    """The field's searches on one engine: each as documented, and at this budget."""
    server, rows = Server(configuration(seed), seed), {}
    for name, method in METHODS.items():
        rows[name] = theirs(server, method)
        rows[name + AT_BUDGET] = theirs(server, at_budget(method, rows[name], budget_s))
    return rows


class Kept:
    """results/duel.json: the others' rows, valid while their code is the same, and our baseline."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.source = source_hash("duel", "others", str(BUDGET_S))

    @property
    def baseline(self) -> dict[int, float]:
        """Seconds of load that our search took when the duel was first run: they stay."""
        return {int(seed): seconds for seed, seconds in self._found.get("baseline", {}).items()}

    def others(self) -> dict[int, dict[str, Row]]:
        """By seed; nothing if another code has found them."""
        rows: dict[int, dict[str, Row]] = {}
        if self._found.get("source") == self.source:
            for name, of in self._found["rows"].items():
                for seed, row in of.items() if name != OURS else ():
                    rows.setdefault(int(seed), {})[name] = Row(*row)
        return rows

    def write(self, rows: Rows, table: dict[str, Summary]) -> None:
        """Also after each seed: a run that was stopped continues where it was."""
        took = {seed: row.seconds for seed, row in rows[OURS].items()}
        kept = {
            "source": self.source,
            "baseline": took | self.baseline,
            "table": table,
            "fields": [field.name for field in fields(Row)],
            "rows": {name: {s: astuple(row) for s, row in of.items()} for name, of in rows.items()},
        }
        self.path.write_text(json.dumps(kept).replace("], ", "],\n") + "\n")


def match(seed: int, known: dict[str, Row] | None) -> dict[str, Row]:
    """Every search on one engine; the others' rows may be known."""
    return {OURS: ours(seed)} | (known or others(seed, BUDGET_S))


def main(places: str) -> int:
    """Run the seeds, print the table, and say whether the aim is met."""
    truths = dict(list(known_truths().items())[:CASES])
    if not (asked := re.fullmatch(r"(\d*):(\d*)", places or ":")):
        sys.exit(f"SEEDS is {places}: expected A:B; try make duel SEEDS=0:60.")
    seeds = list(truths)[slice(*(int(place) if place else None for place in asked.groups()))]
    if not seeds:
        sys.exit(f"SEEDS is {places}: there are {CASES} engines, 0 to {CASES - 1}; try 0:60.")
    kept = Kept(HERE / "results/duel.json")
    known = kept.others()
    rows: Rows = {}
    with ProcessPoolExecutor(PROCESSES, initializer=os.nice, initargs=(NICE,)) as pool:
        matches = pool.map(match, seeds, [known.get(seed) for seed in seeds])
        for seed, found in zip(seeds, matches, strict=True):
            for name, row in found.items():
                rows.setdefault(name, {})[seed] = row
            sys.stderr.write(f"seed {seed}: true knee {truths[seed]}, ours {found[OURS].users}\n")
            if len(seeds) == CASES:
                kept.write(rows, {})
    table = {name: summary(found, truths) for name, found in rows.items()}
    before_s = [kept.baseline.get(seed, row.seconds) for seed, row in rows[OURS].items()]
    aims = aim(table, OURS, before_s)
    text = page(table, aims)
    sys.stdout.write(text)
    if len(seeds) == CASES:
        kept.write(rows, table)
        kept.path.with_suffix(".md").write_text(text)
    return 0 if all(met for _, met in aims) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
