"""What each token of a prompt costs in TTFT, and of a context in ITL: over settings of `vary`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.metrics.latency_figures import in_window
from harness.metrics.metrics import ttft
from harness.metrics.result import read_result
from harness.metrics.scan import EventChunk, scan
from harness.metrics.statistics import mean_interval
from harness.records.folder_reader import read_run
from harness.search.comparison import Coefficient, Setting
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Floats
    from harness.metrics.result import Level


THOUSAND: Final = 1e3  # tokens: the unit of lengths here; and ns of a microsecond
TTFT_TERMS: Final = {
    "TTFT without a prompt, ms": "the fixed cost of a request, and waiting for other users",
    "TTFT per 1,000 prompt tokens, ms": "linear: compute of the prefill",
    "TTFT per (1,000 prompt tokens)², ms": "quadratic: attention to the tokens before",
}
ITL_TERMS: Final = {
    "ITL without a context, µs": "a step of decoding",
    "ITL per 1,000 tokens of context, µs": "reading a longer KV cache; with several users also "
    "prefills of the others between tokens",
}


class GapsByPosition:
    """A visitor: the gaps of a level by the tokens before them in their context."""

    def __init__(self, level: Level) -> None:
        self.start_ns, self.end_ns = level.settled_ns, level.end_ns
        self.sums: Floats = np.zeros((2, 3))

    def add(self, piece: EventChunk) -> None:
        chunk, end = piece.chunk, piece.ends
        row, before = chunk.request_of_event[end], np.cumsum(chunk.tokens) - chunk.tokens
        prompt = chunk.prompt_tokens[row]
        at = prompt + before[end] - before[chunk.offsets[row]]
        here = (piece.end_ns >= self.start_ns) & (piece.end_ns <= self.end_ns) & (prompt >= 0)
        self.sums += sums_of(at[here] / THOUSAND, piece.gap_ns[here] / THOUSAND, 2)


def context_costs(settings: Sequence[Setting]) -> list[Coefficient]:
    """At the lowest load that all held, if only `prompt-tokens` differs; [] without such a load."""
    shown = [one for one in settings if one.figures]
    if any(
        one.server or not "".join(one.client).startswith("--prompt-tokens=") or one.client[1:]
        for one in settings
    ):
        return []
    results = {folder: read_result(Path(folder)) for one in shown for folder in one.runs}
    levels = {folder: found.used for folder, found in results.items() if found and found.used}
    loads = [{level.load for level in of} for of in levels.values()]
    if not (common := reduce(set.__and__, loads) if loads else set()):
        return []
    load, prompts, gaps = min(common), [], []
    for folder, used in levels.items():
        run, windows = read_run(folder), [level for level in used if level.load == load]
        table, seen = run.table, ttft(run.table)
        each = [in_window(seen, table, "ttft", w.settled_ns, w.end_ns) for w in windows]
        row, ns = (np.concatenate([getattr(one, x) for one in each]) for x in ("row", "ns"))
        row, ns = (x[np.isfinite(ns) & (table.prompt_tokens[row] >= 0)] for x in (row, ns))
        terms = min(len(shown), len(TTFT_TERMS))
        prompts.append(sums_of(table.prompt_tokens[row] / THOUSAND, ns / MS, terms))
        scan(run, walkers := [GapsByPosition(level) for level in windows])
        gaps.append(np.sum([one.sums for one in walkers], axis=0))
    again = all(sum(folder in levels for folder in one.runs) > 1 for one in shown)
    return [
        Coefficient(name, *found, meaning, float(load))
        for sums, terms_of in ((prompts, TTFT_TERMS), (gaps, ITL_TERMS))
        for (name, meaning), found in zip(
            terms_of.items(), fit(np.array(sums), again=again), strict=False
        )
    ]


def sums_of(x: Floats, y: Floats, terms: int) -> Floats:
    """The normal equations of a polynomial: what least squares need of any number of points."""
    powers = np.vander(x, terms, increasing=True)
    return np.column_stack([powers.T @ powers, powers.T @ y])


def fit(runs: Floats, *, again: bool) -> list[tuple[float, tuple[float, float]]]:
    """Each coefficient with its interval: a jackknife over the runs, if each setting has two."""
    whole = runs.sum(axis=0)
    each = [whole, *(whole - runs if again else [])]
    if any(np.linalg.matrix_rank(sums[:, :-1]) < len(whole) for sums in each):
        return []  # all of one length
    found = np.array([np.linalg.solve(sums[:, :-1], sums[:, -1]) for sums in each])
    out = []
    for value, *without in found.T.tolist():
        parts = [len(runs) * value - (len(runs) - 1) * one for one in without]
        low, high = mean_interval(parts) if again else (nan, nan)
        out.append((value, (value - (high - low) / 2, value + (high - low) / 2)))
    return out
