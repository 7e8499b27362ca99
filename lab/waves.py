"""How requests cling together in time: what makes many of them worth few.

Requests that are sent within a moment share a prefill, a turn of the front end and so a fate. Four
figures say how much: how unevenly requests start, how alike the latencies of neighbors in time are,
how the share over a limit varies between windows, and the *effect* of that: how many observations
are worth an independent one.

    python -m lab.waves RUN_FOLDER ...

prints them for each level of run folders that was held for five seconds or longer. The limit is the
level's own p90, so that a tenth is over it whatever the SLOs are. Times are seconds from the
window's start.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import orjson

from harness.metrics.metrics import ttft
from harness.records.folder_reader import read_pieces
from harness.records.record_table import concat_tables
from harness.records.record_tables import Damage
from harness.run.run_frames import level_rows
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.records.record_table import RecordTable

    Floats = NDArray[np.float64]

BIN_S: Final = 0.1  # shorter than a burst of prompts takes, longer than a decoding step
WINDOW_S: Final = 5.0
LAGS: Final = 20  # bins, that is two seconds: about a lifetime
# A sum of correlations ends where it covers so many times what it sums to (Sokal).
SPAN_OF_SUM: Final = 5.0
LEAST_S: Final = 5.0  # of a level
MIN_WINDOWS: Final = 4
WINDOWS_S: Final = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True)
class Starts:
    """Requests in the order of being sent."""

    sent_s: Floats
    ttft_ms: Floats
    length_s: float

    @property
    def bins(self) -> int:
        return int(self.length_s / BIN_S)

    def sums(self, values: Floats | None = None, width_s: float = BIN_S) -> Floats:
        """The number of requests in each whole bin, or the sum of their values."""
        bins = int(self.length_s / width_s)
        place = (self.sent_s / width_s).astype(np.int64)
        inside = place < bins
        weights = None if values is None else values[inside]
        return np.bincount(place[inside], weights, bins).astype(np.float64)


def starts_of(table: RecordTable, start_ns: int, end_ns: int) -> Starts:
    """The requests that were sent in a window and had a first token."""
    seen = ttft(table)
    sent_ns = table.sent_ns[seen.row]
    keep = (sent_ns >= start_ns) & (sent_ns < end_ns) & np.isfinite(seen.ns)
    order = np.argsort(sent_ns[keep], kind="stable")
    sent_s = (sent_ns[keep][order] - start_ns) / SECOND
    return Starts(sent_s, seen.ns[keep][order] / MS, (end_ns - start_ns) / SECOND)


def dispersion(starts: Starts) -> float:
    """Variance of the starts in a bin over their mean: 1 if they come independently."""
    counts = starts.sums()
    return float(counts.var() / counts.mean())


def autocorrelation(series: Floats, lags: int = LAGS) -> Floats:
    """At lags of 0 to `lags` places."""
    rest = series - series.mean()
    products = np.array([_product(rest, lag) for lag in range(lags + 1)])
    return np.asarray(products / max(products[0], 1e-12))


def _product(series: Floats, lag: int) -> float:
    """Of the series with itself, moved by so many places."""
    return float(series[lag:] @ series[: len(series) - lag])


def start_correlation(starts: Starts, lags: int = LAGS) -> Floats:
    """Of the number of starts in a bin with that of a later one."""
    return autocorrelation(starts.sums(), lags)


def pair_correlation(starts: Starts, values: Floats, lags: int = LAGS) -> Floats:
    """Mean correlation of two requests whose starts are so many bins apart; first: in one bin."""
    rest = values - values.mean()
    sums = starts.sums(rest)
    counts = starts.sums()
    variance = float(rest.var())
    same = (sums @ sums - rest @ rest) / max(counts @ counts - counts.sum(), 1)
    found = [same / variance]
    for lag in range(1, lags + 1):
        pairs = max(_product(counts, lag), 1)
        found.append(_product(sums, lag) / pairs / variance)
    return np.asarray(found)


def window_effect(starts: Starts, over: Floats, width_s: float = WINDOW_S) -> float:
    """Variance of the share over the limit between windows, over the binomial variance."""
    sizes = starts.sums(width_s=width_s)
    hits = starts.sums(over, width_s)
    n = sizes.sum()
    share = hits.sum() / n
    squares = ((hits - share * sizes) ** 2).sum()
    return float(len(sizes) / (len(sizes) - 1) * squares / n / (share * (1 - share)))


@dataclass(frozen=True, slots=True)
class SummedEffect:
    """An effect with its relative standard error, and how long neighbors stay alike."""

    effect: float
    error: float
    span_s: float


def summed_effect(starts: Starts, over: Floats) -> SummedEffect:
    """The effect from the correlations of neighboring bins, summed until they have died away."""
    sizes = starts.sums()
    hits = starts.sums(over)
    share = float(hits.sum() / sizes.sum())
    rest = hits - share * sizes
    binomial = float(sizes.sum() * share * (1 - share))
    variance = _product(rest, 0)
    if not variance:
        return SummedEffect(1.0, (2 / len(rest)) ** 0.5, 0.0)
    summed = variance  # over the bins alike, on both sides
    lag = 0
    most = len(rest) // 4
    while lag < most and lag + 1 < SPAN_OF_SUM * summed / variance:
        lag += 1
        summed += 2 * _product(rest, lag)
    error = (2 * (2 * lag + 1) / len(rest)) ** 0.5
    return SummedEffect(summed / binomial, error, lag * BIN_S)


@dataclass(frozen=True, slots=True)
class WaveFigures:
    """Of one level."""

    users: int
    n: int
    seconds: float
    ttft_ms: float  # mean
    ttft_p95_ms: float
    dispersion: float  # of starts in 0.1 s
    start_correlation: list[float]  # at 0.1, 0.2, 0.5 and 1 s
    ttft_correlation: list[float]  # of two requests 0, 0.1, 0.2, 0.5 and 1 s apart
    window_effects: dict[str, float]  # by the length of the windows, where there are four
    effect: float  # from correlations
    effect_error: float  # relative


def wave_figures(starts: Starts, users: int) -> WaveFigures:
    took = starts.ttft_ms
    over = (took > np.quantile(took, 0.9)).astype(np.float64)
    summed = summed_effect(starts, over)
    widths = [width for width in WINDOWS_S if starts.length_s >= MIN_WINDOWS * width]
    later = start_correlation(starts)[[1, 2, 5, 10]]
    return WaveFigures(
        users=users,
        n=len(took),
        seconds=round(starts.length_s, 1),
        ttft_ms=round(float(took.mean()), 1),
        ttft_p95_ms=round(float(np.quantile(took, 0.95)), 1),
        dispersion=round(dispersion(starts), 2),
        start_correlation=later.round(2).tolist(),
        ttft_correlation=pair_correlation(starts, took)[[0, 1, 2, 5, 10]].round(2).tolist(),
        window_effects={f"{w:g} s": round(window_effect(starts, over, w), 1) for w in widths},
        effect=round(summed.effect, 1),
        effect_error=round(summed.error, 2),
    )


def figures_of_run(folder: Path) -> list[WaveFigures]:
    """Of each level that was held long enough. Raises RunFolderError."""
    table = concat_tables([piece.table for piece in read_pieces(folder, Damage())])
    found = []
    for level in level_rows(folder):
        starts = starts_of(table, level["settled_ns"], level["end_ns"])
        if starts.length_s >= LEAST_S:
            found.append(wave_figures(starts, level["users"]))
    return found


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        for figures in figures_of_run(Path(folder)):
            line = orjson.dumps({"run": Path(folder).name} | asdict(figures))
            sys.stdout.write(line.decode() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
