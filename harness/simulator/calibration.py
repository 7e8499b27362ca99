"""From the records of a run to the simulator's parameters: times of steps and of the front end.

The run's levels are repeated in simulated time, each as long and in the same order, because users
who send requests of one length fall into step at one level and stay so at the next. Least squares
over the logarithms of what clients saw (Levenberg-Marquardt) moves the parameters until the
simulated levels look like the run's. What a run does not determine stays near a typical value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.shapes import STEP_NS
from harness.errors import RunFolderError
from harness.metrics.event_gaps import event_gaps
from harness.metrics.metrics import ttft
from harness.records.record_table import OK, RecordTable
from harness.simulator.closed_loop import ClosedLoop, Traffic
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.engine.config import EngineConfig
    from harness.metrics.evidence import Window


MIN_REQUESTS: Final = 5  # a level with fewer says nothing
NOISE: Final = 0.1  # what a figure of a level of 60 or more requests may be off by itself
ROUNDS: Final = 12
STEP: Final = 0.25  # of a parameter's logarithm, for its slope: smaller ones drown in noise
ENOUGH: Final = 0.02  # a round that gains less than this share is the last


def recorded_traffic(table: RecordTable) -> Traffic:
    """The lengths of the requests that succeeded."""
    outputs = np.diff(np.concatenate([[0], np.cumsum(table.tokens)])[table.offsets])
    pairs = np.stack([table.prompt_tokens, outputs], 1)[table.outcome == OK]
    return Traffic(recorded=tuple(map(tuple, pairs[pairs.min(1) > 0].tolist())))


def figures(table: RecordTable, windows: Sequence[Window]) -> Floats:
    """Mean, p95 TTFT, median, p95 ITL (ms), tokens/s, requests of each window; NaN: too few."""
    first, gaps = ttft(table), event_gaps(table)
    rows = np.full((len(windows), 6), np.nan)
    for row, window in zip(rows, windows, strict=True):
        begin, end = window.settled_ns, window.end_ns
        sent = (table.sent_ns >= begin) & (table.sent_ns <= end) & np.isfinite(first.hi_ns)
        waits = first.ns[sent] / MS
        itl = gaps.ns[(gaps.at_ns >= begin) & (gaps.at_ns <= end)] / MS
        tokens = table.tokens[(table.at_ns >= begin) & (table.at_ns <= end)].sum()
        if len(waits) >= MIN_REQUESTS and len(itl):
            p95 = [np.quantile(one, 0.95, method="higher") for one in (waits, itl)]
            rate = tokens * SECOND / (end - begin)
            row[:] = waits.mean(), p95[0], np.median(itl), p95[1], rate, len(waits)
    return rows


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


def calibrate(config: EngineConfig, table: RecordTable, windows: Sequence[Window]) -> EngineConfig:
    """Fit the times of `config` to a run. Raises RunFolderError where it has too few levels."""
    traffic, want = recorded_traffic(table), figures(table, windows)
    usable = ~np.isnan(want[:, 0])
    if usable.sum() <= 1 or not all(w.users for w in windows) or not traffic.recorded:
        raise RunFolderError(
            f"of the run's levels of users {usable.sum()} have {MIN_REQUESTS} requests or more: "
            "expected at least 2 to calibrate on; try a run of `knee` or `sweep`."
        )
    want = want[usable]
    # A parameter's typical value in ns, from the first level and the highest throughput, and how
    # far a server may be from it: a standard deviation of the logarithm.
    prompt, output = np.mean(traffic.recorded, axis=0)
    gap_ns = want[:, 2].min() * MS
    token_ns = min(want[0, 0] * MS / prompt, SECOND / (want[:, 4].max() / output * prompt))
    typical = np.log([gap_ns, 10_000, 5, token_ns / 2, 5 * MS, 15 * MS, 2.5 * MS, 45_000, 15_000,
                      7, 0.05])  # fmt: skip
    spread = np.array([0.3, 1, 1, 1, 0.7, 0.7, 1, 0.7, 0.7, 0.5, 0.7])
    weight = np.sqrt((want[:, -1:] / 60).clip(max=1)) / NOISE

    def engine(x: Floats) -> EngineConfig:
        step, sequence, kv, token, mixed, eager, request, event, front, turns, jitter = np.exp(x)
        base = min(STEP_NS, 0.9 * step)  # the rest reads weights, while tokens are computed
        graph_tokens = min(2 * config.max_num_seqs, 512)  # what vLLM captures by default
        line = (base, step - base, kv, token, sequence, mixed, eager, graph_tokens)
        return replace(
            config, measured_step=tuple(map(float, line)), front_request_ns=int(request),
            front_event_ns=int(event), front_token_ns=int(front),
            front_turns=max(round(turns), 1), jitter=float(jitter),
        )  # fmt: skip

    def off(x: Floats) -> Floats:
        got = figures(repeat_levels(engine(x), traffic, windows), windows)[usable]
        ratio = (weight * np.nan_to_num(np.log(got / want)[:, :-1], nan=1)).ravel()
        # p95 ITL jumps where prompts just reach 5% of the gaps: no figure may count for all others
        damped = np.sign(ratio) * np.sqrt(8 * (np.sqrt(1 + (ratio / 2) ** 2) - 1))
        return np.concatenate([damped, (x - typical) / spread])

    return engine(_least_squares(off, typical))


def _least_squares(off: Callable[[Floats], Floats], x: Floats) -> Floats:
    # What is simulated is chaotic, so slopes mislead: several moves are tried, and each probe is a
    # move, too. The best of all is kept.
    now, moves = off(x), STEP * np.eye(len(x))
    for _ in range(ROUNDS):
        tried = [(x + move, off(x + move)) for move in (*moves, *-moves)]
        seen = np.stack([there for _, there in tried], 1)
        slopes = (seen[:, : len(x)] - seen[:, len(x) :]) / (2 * STEP)
        square = slopes.T @ slopes
        for damping in (0.03, 0.1, 0.5, 2.0, 8.0, 32.0):
            move = np.linalg.solve(square + damping * np.diag(np.diag(square)), -slopes.T @ now)
            tried.append((x + move.clip(-1, 1), off(x + move.clip(-1, 1))))
        best, then = min(tried, key=lambda one: float(one[1] @ one[1]))
        gain = 1 - float(then @ then) / float(now @ now)
        if gain < ENOUGH:
            break
        x, now = best, then
    return x
