"""From the records of a run to the simulator's parameters: times of steps and of the front end.

The run's levels are repeated in simulated time, each as long and in the same order, because users
who send requests of one length fall into step at one level and stay so at the next. Least squares
over the logarithms of what clients saw (Levenberg-Marquardt) moves the parameters until the
simulated levels look as the run's. What a run does not determine stays near a typical value: each
parameter has one, and how far off (as a factor of e) it may be without being an error.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.errors import RunFolderError
from harness.measure.event_gaps import event_gaps
from harness.measure.metrics import ttft
from harness.simulator.closed_loop import ClosedLoop, Traffic
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from harness.engine.config import EngineConfig
    from harness.measure.records.record_table import RecordTable
    from harness.measure.search.evidence import Window

    Floats = NDArray[np.float64]

FIGURES: Final = ("mean TTFT", "p95 TTFT", "median ITL", "p95 ITL", "tokens/s")
MIN_REQUESTS: Final = 5  # a level with fewer says nothing
FULL_WEIGHT: Final = 60  # requests of a level that counts in full
NOISE: Final = 0.1  # what a figure of a level may be off by itself
ROUNDS: Final = 10
DAMPINGS: Final = (0.1, 0.5, 2.0, 8.0, 32.0)
STEP: Final = 0.25  # of a parameter's logarithm, for its slope: smaller ones drown in noise
ENOUGH: Final = 0.02  # a round that gains less than this share is the last


class Parameter(NamedTuple):
    """Its typical value, and how far a server may be from it: a standard deviation of the log."""

    typical: float
    spread: float


@dataclass(frozen=True)
class RecordedTraffic(Traffic):
    """The lengths of a run's requests, in random order."""

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, table: RecordTable) -> RecordedTraffic:
        """Of those that succeeded."""
        whole = table.select((table.outcome == 0) & (table.prompt_tokens > 0))
        rows = zip(whole.prompt_tokens.tolist(), whole.output_tokens.tolist(), strict=True)
        return cls(pairs=tuple((prompt, output) for prompt, output in rows if output > 0))

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endless (prompt, output) pairs."""
        rng = np.random.default_rng([seed, 2])
        while True:
            yield from (self.pairs[i] for i in rng.permutation(len(self.pairs)))


def figures(table: RecordTable, windows: Sequence[Window]) -> Floats:
    """FIGURES of each window, in ms and tokens/s; NaN with too few requests. Last: requests."""
    first, gaps = ttft(table), event_gaps(table)
    rows = []
    for window in windows:
        begin, end = window.settled_ns, window.end_ns
        sent = (table.sent_ns >= begin) & (table.sent_ns <= end) & np.isfinite(first.hi_ns)
        waits, ended = first.ns[sent], gaps.ns[(gaps.at_ns >= begin) & (gaps.at_ns <= end)]
        if len(waits) < MIN_REQUESTS or not len(ended):
            rows.append([np.nan] * len(FIGURES) + [len(waits)])
            continue
        tokens = table.tokens[(table.at_ns >= begin) & (table.at_ns <= end)].sum()
        times = (waits.mean(), _p95(waits), np.median(ended), _p95(ended))
        rows.append([*(t / MS for t in times), tokens * SECOND / (end - begin), len(waits)])
    return np.array(rows, np.float64)


def _p95(values: NDArray[np.float64] | NDArray[np.int64]) -> float:
    return float(np.quantile(values, 0.95, method="higher"))


def repeat_levels(
    config: EngineConfig, traffic: Traffic, windows: Sequence[Window], seed: int = 1
) -> RecordTable:
    """The records of a simulated run with these levels, at the same instants."""
    began = windows[0].chosen_ns
    loop = ClosedLoop(config, traffic, seed)
    for window in windows:
        loop.advance(window.chosen_ns - began)
        loop.set_users(window.users)
    loop.advance(windows[-1].end_ns - began + SECOND)
    table = loop.table(0, loop.now_ns)
    times = {name: getattr(table, name) + began for name in ("sent_ns", "done_ns", "at_ns")}
    return replace(table, **times, not_before_ns=times["at_ns"])


def parameters(seen: Floats, pairs: Sequence[tuple[int, int]]) -> dict[str, Parameter]:
    """What is fitted, in ns. A run's first level and its highest throughput say the magnitude."""
    known = seen[~np.isnan(seen[:, 0])]
    prompt, output = np.mean(pairs, axis=0)
    ttft_ns, gap_ns = known[0, 0] * MS, known[0, 2] * MS
    fastest_ns = SECOND / (np.max(known[:, 4]) / output * prompt)  # per prompt token
    return {
        "base": Parameter(0.9 * gap_ns, 0.3),
        "sequence": Parameter(10_000, 1),
        "kv_token": Parameter(5, 1),
        "token": Parameter(0.7 * min(ttft_ns / prompt, fastest_ns), 0.7),
        "mixed": Parameter(3 * gap_ns, 0.7),
        "eager": Parameter(8 * gap_ns, 0.7),
        "delay": Parameter(2 * MS, 1),
        "front_request": Parameter(2.5 * MS, 1),
        "front_event": Parameter(45_000, 0.7),
        "front_token": Parameter(15_000, 0.7),
        "front_turns": Parameter(7, 0.5),
        "jitter": Parameter(0.05, 0.7),
    }


def engine_of(config: EngineConfig, fitted: dict[str, float]) -> EngineConfig:
    """The same engine with these times. vLLM captures CUDA graphs up to 512 tokens by default."""
    graph_tokens = min(2 * config.max_num_seqs, 512)
    step = (fitted[name] for name in ("kv_token", "token", "sequence", "mixed", "eager"))
    return replace(
        config,
        measured_step=(fitted["base"], 0.0, *step, graph_tokens),
        front_end_ns=int(fitted["delay"]),
        front_request_ns=int(fitted["front_request"]),
        front_event_ns=int(fitted["front_event"]),
        front_token_ns=int(fitted["front_token"]),
        front_turns=max(round(fitted["front_turns"]), 1),
        jitter=fitted["jitter"],
    )


def calibrate(
    config: EngineConfig,
    table: RecordTable,
    windows: Sequence[Window],
    scored: Sequence[int] | None = None,
) -> EngineConfig:
    """Fit the times of `config` to the run; `scored`: only to these of its levels.

    Raises RunFolderError for a run without closed-loop levels with enough requests.
    """
    traffic = RecordedTraffic.of(table)
    want = figures(table, windows) if windows else np.empty((0, 6))
    usable = ~np.isnan(want[:, 0]) if traffic.pairs else np.zeros(len(want), bool)
    if scored is not None:
        usable &= np.isin(np.arange(len(want)), scored)
    if usable.sum() < 2 or not all(window.users for window in windows):  # noqa: PLR2004
        raise RunFolderError(
            f"the run has {usable.sum()} levels of users with at least {MIN_REQUESTS} requests: "
            "expected 2 or more to calibrate on; try a run of `knee` or `sweep`."
        )
    rows = parameters(want[usable], traffic.pairs)
    typical = np.log([row.typical for row in rows.values()])
    spread = np.array([row.spread for row in rows.values()])
    weight = np.sqrt((want[usable, -1:] / FULL_WEIGHT).clip(max=1)) / NOISE

    def engine(x: Floats) -> EngineConfig:
        return engine_of(config, dict(zip(rows, np.exp(x).tolist(), strict=True)))

    def off(x: Floats) -> Floats:
        got = figures(repeat_levels(engine(x), traffic, windows), windows)[usable]
        ratio = weight * np.log(got / want[usable])[:, : len(FIGURES)]
        ratio = np.nan_to_num(ratio, nan=1 / NOISE).ravel()
        # p95 ITL jumps where prompts just reach 5% of the gaps: no figure may count for all others
        damped = np.sign(ratio) * np.sqrt(8 * (np.sqrt(1 + (ratio / 2) ** 2) - 1))
        return np.concatenate([damped, (x - typical) / spread])

    return engine(_least_squares(off, typical))


def _least_squares(off: Callable[[Floats], Floats], x: Floats) -> Floats:
    # What is simulated is chaotic, so slopes mislead: several moves are tried, and each probe is a
    # move, too. The best of all is kept.
    now = off(x)
    for _ in range(ROUNDS):
        tried = [(x + move, off(x + move)) for move in STEP * np.eye(len(x))]
        slopes = np.stack([(there - now) / STEP for _, there in tried], 1)
        square = slopes.T @ slopes
        for damping in DAMPINGS:
            move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slopes.T @ now)
            tried.append((x + move.clip(-1, 1), off(x + move.clip(-1, 1))))
        best, then = min(tried, key=lambda one: float(one[1] @ one[1]))
        gain = 1 - float(then @ then) / float(now @ now)
        if gain > 0:
            x, now = best, then
        if gain < ENOUGH:
            break
    return x
