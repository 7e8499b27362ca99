"""Recovery of two engines behind a balancer, in simulated time: how it is measured, and figures.

docs/recovery.md has its tables, of what `make statistics` has stored.
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from recovery_repeats import metastable_boundary, recovery_over
from simulated_fleet import Client, Phase, Simulated, SimulatedDrill, Stream, simulate

from harness.drill.recovery import Overload, Recovery, recovery
from harness.metrics.metrics import ttft
from harness.metrics.slo import Slo
from harness.metrics.statistics import mean_interval, quantile
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

SEEDS: Final = range(1, 11)
SLO: Final = Slo.parse("ttft_p95=200ms")
KNEE_PER_S: Final = 90.0  # the mean that `knees` finds, rounded
BASELINE: Final = 0.7  # of the knee
OVERLOAD: Final = 2.0
WARM_S, BASELINE_S, OVERLOAD_S, WATCHED_S = 10.0, 120.0, 30.0, 180.0
TIMEOUT_S: Final = 10.0  # clients wait so long for a whole answer
QUEUE: Final = 10  # requests: what a replica takes up within the SLO's 200 ms at 45/s
BACKLOG: Final = 50  # requests: far more wait in the overload, and ten at most in the baseline
CASES: Final = [(factor, queue) for queue in (0, QUEUE) for factor in (0.0, 0.5, 1.0)]
KNEES: Final = [(0.0, 0, False), (0.0, 0, True), (0.5, 0, True), (1.0, 0, True), (1.0, QUEUE, True)]
RANGES: Final = {0: (0.0, 1.0), QUEUE: (1.0, 2.0)}  # of retry factors, by the limit on the queue
WIDTH: Final = 0.125
RATES: Final = (0.2, 1.2, 0.02)  # of the knee: from, to, to a bracket of this width


def fleet(client: Client, queue: int, *phases: tuple[str, float, float]) -> SimulatedDrill:
    """Phases as (name, seconds, share of the knee)."""
    loads = (Phase(name, s, (Stream(share * KNEE_PER_S),)) for name, s, share in phases)
    return SimulatedDrill(tuple(loads), client=client, max_queued=queue, drain_s=TIMEOUT_S)


def client(factor: float) -> Client:
    """Clients who give up, and send this many requests in place of one."""
    return Client(request_timeout_s=TIMEOUT_S, retry_factor=factor)


def overloaded(
    factor: float, queue: int, seed: int, overload: float = OVERLOAD, watched_s: float = WATCHED_S
) -> Simulated:
    """A baseline, an overload, the baseline again."""
    before = ("warm-up", WARM_S, BASELINE), ("baseline", BASELINE_S, BASELINE)
    after = ("overload", OVERLOAD_S, overload), ("after", watched_s, BASELINE)
    return simulate(fleet(client(factor), queue, *before, *after), seed)


def measured(run: Simulated) -> Recovery:
    """The recovery as the product measures it, from the records."""
    begin, end = run.phases["overload"]
    overload = Overload(run.phases["baseline"][0], begin, end, run.phases["after"][1])
    return recovery(run.table, SLO, overload)


def recovered(factor: float, queue: int, seed: int) -> Recovery:
    """One repeat."""
    return measured(overloaded(factor, queue, seed))


def repeat(factor: float, queue: int, seed: int) -> list[Any]:
    """Of one repeat: seconds to recover, the former interval, goodput lost, when its queue ends.

    Seconds are since the overload's end; None: never, or there is no queue any more.
    """
    run = overloaded(factor, queue, seed)
    got, end_ns = measured(run), run.phases["overload"][1]
    queued = [s.at_ns for s in run.samples if s.at_ns >= end_ns and s.waiting >= BACKLOG]
    queue_s = (queued[-1] - end_ns) / SECOND if queued else None
    return [rounded(one) for one in (got.seconds, got.former_ms, got.good_lost, queue_s)]


def repeat_cases() -> Iterator[tuple[float, int, int]]:
    """Each retry factor and queue with each seed."""
    return ((*case, seed) for case in CASES for seed in SEEDS)


def at_once(seed: int) -> float:
    """Seconds to recover where the "overload" is the baseline's load."""
    return measured(overloaded(0.0, 0, seed, overload=BASELINE, watched_s=60.0)).seconds


def at_once_cases() -> Iterator[tuple[int]]:
    """Three seeds."""
    return ((seed,) for seed in (101, 102, 103))


def highest(meets: Callable[[float], bool]) -> float:
    """The highest share of the knee at which a run meets the SLO, by bisection."""
    low, high, width = RATES
    while high - low > width:
        middle = (low + high) / 2
        low, high = (middle, high) if meets(middle) else (low, middle)
    return round(low * KNEE_PER_S, 2)


def knee(factor: float, queue: int, after: bool, seed: int) -> float:
    """The highest rate at which the SLO is met: from rest, or one minute after an overload."""

    def meets(share: float) -> bool:
        overload = [("overload", OVERLOAD_S, OVERLOAD)] if after else []
        phases = (*overload, ("settling", 60.0, share), ("measured", 60.0, share))
        run = simulate(fleet(client(factor), queue, *phases), seed)
        begin, end = run.phases["measured"]
        sent = (run.table.sent_ns >= begin) & (run.table.sent_ns < end)
        return quantile(np.sort(ttft(run.table).ns[sent]), SLO.q) <= SLO.limit_ns

    return highest(meets)


def knee_cases() -> Iterator[tuple[float, int, bool, int]]:
    """Each of KNEES with each seed."""
    return ((*case, seed) for case in KNEES for seed in SEEDS)


def boundary(queue: int) -> dict[str, Any]:
    """Between which retry factors a server no longer comes back, and what share did at each."""

    def repeats(factor: float) -> list[Recovery]:
        return [recovered(factor, queue, seed) for seed in SEEDS]

    return asdict(metastable_boundary(repeats, *RANGES[queue], WIDTH))


def boundary_cases() -> Iterator[tuple[int]]:
    """Each limit on the queue."""
    return ((queue,) for queue in RANGES)


def summary(repeats: Sequence[Recovery]) -> dict[str, Any]:
    """As JSON, which has no infinity: null."""
    found = asdict(recovery_over(repeats))
    return {name: rounded(value) for name, value in found.items()}


def rounded(value: Any) -> Any:
    """As JSON; None for what is not finite."""
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return round(value, 3) if value is not None and isfinite(value) else None


def repeats_of(stored: dict[str, Any]) -> list[Recovery]:
    """The repeats that are stored, for the summary to be made of them again."""
    return [
        Recovery(inf if seconds is None else seconds, WATCHED_S, tuple(former), lost)
        for seconds, former, lost in stored["each"]
    ]


def tables(kept: dict[str, Any]) -> Iterator[str]:
    """The rows of docs/recovery.md."""

    def between(ends: Sequence[float], digits: int) -> str:
        return " to ".join(f"{end:,.{digits}f}" for end in ends)

    for one in kept["recovery"]:
        back = one["repeats"] - one["censored"]
        time = (
            f"{one['median_s']:.1f} s | {between(one['median_s_ci95'], 1)} s" if back else "- | -"
        )
        most = "" if back == one["repeats"] else "at least "
        yield (
            f"| {one['max_queued'] or 'none'} | {one['retry_factor']:g} "
            f"| {back} of {one['repeats']} "
            f"| {time} | {most}{one['good_lost']:,.0f} | {between(one['good_lost_ci95'], 0)} |"
        )
    for one in kept.get("knee", ()):
        when = "after the overload" if one["after"] else "from rest"
        yield (
            f"| {one['max_queued'] or 'none'} | {one['retry_factor']:g} | {when} | "
            f"{one['mean_per_s']:.1f}/s | {between(one['ci95'], 1)}/s |"
        )
    for one in kept.get("boundary", ()):
        tried = ", ".join(f"{float(f):g}: {s:.0%}" for f, s in sorted(one["tried"].items()))
        yield f"| {one['max_queued'] or 'none'} | {one['comes_back']} to {one['never']} | {tried} |"


def together(
    repeats: dict[tuple[float, int, int], list[Any]],
    knees: dict[tuple[float, int, bool, int], float],
    boundaries: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    """What the statistics of recovery show, as `tables` takes it."""
    out: dict[str, Any] = {"knee": [], "recovery": [], "boundary": []}
    for factor, queue, after in KNEES:
        each = [knees[factor, queue, after, seed] for seed in SEEDS]
        figures = {"mean_per_s": float(np.mean(each)), "ci95": mean_interval(each)}
        names = {"retry_factor": factor, "max_queued": queue, "after": after}
        out["knee"].append(names | {k: rounded(v) for k, v in figures.items()} | {"each": each})
    for factor, queue in CASES:
        some = {"each": [repeats[factor, queue, seed][:3] for seed in SEEDS]}
        names = {"retry_factor": factor, "max_queued": queue}
        out["recovery"].append(names | summary(repeats_of(some)) | some)
    out["boundary"] = [{"max_queued": queue} | found for queue, found in boundaries.items()]
    return out
