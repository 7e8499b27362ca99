"""Our search for the knee and the field's on the same 200 simulated engines.

Every search is a pure function of what it has seen, in simulated time: the tables say how often
each is right and what it costs in load. `make statistics NAMES="duel duel_continuous"` asks the
others (half an hour on two cores, only after their code or the engine has changed), `NAMES=knees`
ours; then `make docs` writes results/duel.md and a paragraph of docs/how-good.md. A test says which
parts of the aim are met.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness.core.states import Status
from harness.search.next_level import SearchPlan
from harness.units import SECOND
from lab.duel_adaptive import Settings, adaptive_row
from lab.duel_isotonic import aiperf_smooth_isotonic
from lab.duel_methods import (
    Answer,
    Sampling,
    aiperf_monotonic,
    fixed_ladder,
    guidellm_goodput,
    loadgen_peak,
)
from lab.duel_probes import Seen, Server
from lab.duel_table import ContinuousRow, Engines, Row, aim, headline, page, summary
from lab.engine_configurations import configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lab.duel_methods import Hold
    from lab.engine_configurations import Configuration

    # By seed and budget: the fields of a row, by search.
    Answers = Mapping[tuple[int, float], dict[str, list[Any]]]

# Seconds of load that our search took, engine by engine, when the duel was first run: they stay.
BASELINE: Final = Path(__file__).parent / "results" / "duel_baseline.json"
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
NEAREST: Final = "aiperf adaptive_scale"
# In one continuous load. The steps of 5% are ours: by default no step is below ten users.
ADAPTIVE: Final = {
    NEAREST: Settings(),
    NEAREST + ", steps of 5%": Settings(step_percent=5),
}
Rows = dict[str, dict[int, Row]]  # by search and seed
ContinuousRows = dict[str, dict[int, ContinuousRow]]


def ours(said: list[Any]) -> ContinuousRow:
    """The product's search with its default budget, of what the statistic `knees` says."""
    status, users, lo, hi, _, seconds, requests, levels, first, first_s, *_ = said
    found = status == Status.found
    return ContinuousRow(users, lo, hi, found, seconds, requests, levels, first, first_s)


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


def answer(seed: int, budget_s: float) -> dict[str, list[Any]]:
    """The same as `make statistics` stores it: the fields of a row, by search."""
    return {name: list(astuple(row)) for name, row in others(seed, budget_s).items()}


def continuous(case: Configuration, seed: int, budget_s: float) -> dict[str, ContinuousRow]:
    """The searches in one load on any engine: each as documented, and at this budget."""
    rows = {}
    for name, settings in ADAPTIVE.items():
        row = adaptive_row(case, seed, settings)
        rows[name] = row
        fitted = settings.within(budget_s, row.levels)
        rows[name + AT_BUDGET] = adaptive_row(case, seed, fitted)
    return rows


def continuous_answer(seed: int, budget_s: float) -> dict[str, list[Any]]:
    """On an engine of the duel, as `make statistics` stores it."""
    rows = continuous(configuration(seed), seed, budget_s)
    return {name: list(astuple(row)) for name, row in rows.items()}


def rows_in_one_load(knees: Mapping[int, list[Any]], answers: Answers) -> ContinuousRows:
    """Of the stored answers: ours are those of the statistic `knees`."""
    rows: ContinuousRows = {OURS: {seed: ours(said) for seed, said in knees.items()}}
    for (seed, _), found in answers.items():
        for name, row in found.items():
            rows.setdefault(name, {})[seed] = ContinuousRow(*row)
    return rows


def all_rows(one_load: ContinuousRows, duels: Answers) -> Rows:
    """These, and of the stored answers those of searches that hold one level at a time."""
    rows: Rows = {name: {**found} for name, found in one_load.items()}
    for (seed, _), found in duels.items():
        for name, row in found.items():
            rows.setdefault(name, {})[seed] = Row(*row)
    return rows


def engine_set(
    name: str,
    rows: ContinuousRows,
    truths: Mapping[int, int],
    case_of: Callable[[int], Configuration] = configuration,
) -> Engines:
    """Engines by their seeds, with what the searches in one load found on them."""
    slos = {seed: case_of(seed).slos[0] for seed in rows[OURS]}
    return Engines(name, rows, truths, {seed: slo.metric for seed, slo in slos.items()})


@dataclass(frozen=True)
class Published:
    """A page, each part of the aim and whether it is met, and the paragraph of docs/how-good.md."""

    page: str
    aims: list[tuple[str, bool]]
    headline: str


def published(
    knees: Mapping[int, list[Any]],
    duels: Answers,
    continuous_answers: Answers,
    truths: Mapping[int, int],
    *more: Engines,
) -> Published:
    """Of the stored answers; `more`: other sets of engines, for the searches in one load."""
    one_load = rows_in_one_load(knees, continuous_answers)
    engines = engine_set("the same engines", one_load, truths)
    table = {name: summary(found, truths) for name, found in all_rows(one_load, duels).items()}
    aims = aim(table, OURS, list(json.loads(BASELINE.read_text()).values()))
    return Published(
        page(table, aims, (engines, *more)), aims, headline(table, engines, OURS, NEAREST)
    )
