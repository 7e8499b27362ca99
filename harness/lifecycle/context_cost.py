"""What each token of a prompt costs in TTFT, and of a context in ITL: over settings of `vary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between
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
    from harness.records.folder_reader import Run
    from harness.records.record_table import RecordTable

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
        self.start_ns = level.settled_ns
        self.end_ns = level.end_ns
        self.sums: Floats = np.zeros((2, 3))

    def add(self, piece: EventChunk) -> None:
        chunk = piece.chunk
        request = chunk.request_of_event[piece.ends]
        prompt_tokens = chunk.prompt_tokens[request]
        tokens_before = np.cumsum(chunk.tokens) - chunk.tokens
        # The sum runs on over the requests of a chunk: each begins at what those before it had.
        output_tokens = tokens_before[piece.ends] - tokens_before[chunk.offsets[request]]
        context_tokens = prompt_tokens + output_tokens
        is_in_window = between(piece.end_ns, self.start_ns, self.end_ns)
        counts = is_in_window & (prompt_tokens >= 0)
        context_thousands = context_tokens[counts] / THOUSAND
        gap_us = piece.gap_ns[counts] / THOUSAND
        self.sums += sums_of(context_thousands, gap_us, 2)


def context_costs(settings: Sequence[Setting]) -> list[Coefficient]:
    """At the lowest load that all held, if only `prompt-tokens` differs; [] without such a load."""
    if not all(_sets_only_prompt_tokens(setting) for setting in settings):
        return []
    measured = [setting for setting in settings if setting.figures]
    levels = _used_levels(measured)
    # At a load that every run held, no setting waits longer than another by its own knee.
    load = _lowest_common_load(levels)
    if load is None:
        return []
    ttft_sums: list[Floats] = []
    gap_sums: list[Floats] = []
    for folder, used in levels.items():
        run = read_run(folder)
        windows = [level for level in used if level.load == load]
        # There are as many lengths as settings: they determine no polynomial of more terms.
        n_terms = min(len(measured), len(TTFT_TERMS))
        ttft_sums.append(_sums_of_ttft(run.table, windows, n_terms))
        gap_sums.append(_sums_of_gaps(run, windows))
    # Where each setting was measured twice, runs show their spread.
    n_usable = [sum(folder in levels for folder in setting.runs) for setting in measured]
    again = min(n_usable) > 1
    return [
        *_coefficients(TTFT_TERMS, ttft_sums, load, again=again),
        *_coefficients(ITL_TERMS, gap_sums, load, again=again),
    ]


def _sets_only_prompt_tokens(setting: Setting) -> bool:
    if setting.server or len(setting.client) != 1:
        return False
    return setting.client[0].startswith("--prompt-tokens=")


def _used_levels(settings: Sequence[Setting]) -> dict[str, Sequence[Level]]:
    """By run folder, the levels that its result used; a folder without any is left out."""
    levels: dict[str, Sequence[Level]] = {}
    for setting in settings:
        for folder in setting.runs:
            result = read_result(Path(folder))
            used = result.used if result else []
            if used:
                levels[folder] = used
    return levels


def _lowest_common_load(levels: Mapping[str, Sequence[Level]]) -> float | None:
    """None where no load was held in every folder."""
    loads = [{level.load for level in used} for used in levels.values()]
    if not loads:
        return None
    return min(set.intersection(*loads), default=None)


def _sums_of_ttft(table: RecordTable, windows: Sequence[Level], n_terms: int) -> Floats:
    """One run's normal equations of TTFT over prompt length."""
    all_ttfts = ttft(table)
    of_windows = []
    for level in windows:
        own = in_window(all_ttfts, table, "ttft", level.settled_ns, level.end_ns)
        of_windows.append(own)
    row = np.concatenate([ttfts.row for ttfts in of_windows])
    ttft_ns = np.concatenate([ttfts.ns for ttfts in of_windows])
    prompt_tokens = table.prompt_tokens[row]
    counts = np.isfinite(ttft_ns) & (prompt_tokens >= 0)
    return sums_of(prompt_tokens[counts] / THOUSAND, ttft_ns[counts] / MS, n_terms)


def _sums_of_gaps(run: Run, windows: Sequence[Level]) -> Floats:
    """One run's normal equations of ITL over the length of the context."""
    walkers = [GapsByPosition(level) for level in windows]
    scan(run, walkers)
    total: Floats = np.sum([walker.sums for walker in walkers], axis=0)
    return total


def _coefficients(
    terms: Mapping[str, str], sums_by_run: Sequence[Floats], load: float, *, again: bool
) -> list[Coefficient]:
    """As many of the terms as the fit has."""
    fitted = fit(np.array(sums_by_run), again=again)
    coefficients = []
    for (name, meaning), (value, ci95) in zip(terms.items(), fitted, strict=False):
        coefficients.append(Coefficient(name, value, ci95, meaning, float(load)))
    return coefficients


def sums_of(x: Floats, y: Floats, terms: int) -> Floats:
    """The normal equations of a polynomial: what least squares need of any number of points."""
    powers = np.vander(x, terms, increasing=True)
    return np.column_stack([powers.T @ powers, powers.T @ y])


def fit(runs: Floats, *, again: bool) -> list[tuple[float, tuple[float, float]]]:
    """Each coefficient with its interval: a jackknife over the runs, if each setting has two."""
    total = runs.sum(axis=0)
    systems = [total]
    if again:
        systems += list(total - runs)  # all but one run, each left out in turn
    solved = []
    for sums in systems:
        matrix = sums[:, :-1]
        right_side = sums[:, -1]
        if np.linalg.matrix_rank(matrix) < len(total):
            return []  # all of one length
        solved.append(np.linalg.solve(matrix, right_side))
    solutions = np.array(solved)
    n = len(runs)
    coefficients = []
    for value, *without_a_run in solutions.T.tolist():
        half_width = nan
        if again:
            # The jackknife's pseudo-values: runs differ in them as much as in the coefficient.
            pseudo_values = [n * value - (n - 1) * less for less in without_a_run]
            low, high = mean_interval(pseudo_values)
            half_width = (high - low) / 2
        coefficients.append((value, (value - half_width, value + half_width)))
    return coefficients
