"""What the records themselves say of a window: gaps beside prompts, and how requests came.

A prompt that is computed in the same engine step as somebody's next token makes that token late.
The step is seen from outside: the prompt's first token arrives with the token that it delayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.gaps import count_gaps
from harness.measure.stats import quantile
from harness.measure.typed import rounded
from harness.measure.walk import inside
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

PLACES: Final = 4
FEWEST: Final = 20  # gaps of a kind that a quantile of them needs
MOST: Final = 100_000  # gaps that are looked at: evenly drawn where there are more
LONGEST: Final = 0.95  # the gaps above this quantile are the longest ones
SHORT: Final = 0.5  # of the median gap: the event before it was late
CERTAIN: Final = 0.75  # of a prompt's mean time in the engine: it was surely computed then
BIN_S: Final = 0.1  # arrivals are counted in bins of this length,
PER_BIN: Final = 2.0  # longer where so many would not come in one on average


class Drawn:
    """Gaps that ended in a window, MOST at most and evenly drawn: two looks."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        """None yet."""
        self.start_ns, self.end_ns = start_ns, end_ns
        self.finite, self._each, self._skip = 0, 0, 0
        self._kept: list[tuple[Ints, Ints, Ints]] = []

    def see(self, piece: Piece) -> None:
        """Count them, then keep each so many-th."""
        here = np.arange(len(piece.ends))[inside(piece.end_ns, self.start_ns, self.end_ns)]
        if not self._each:
            self.finite += len(here)
            return
        some = here[self._skip :: self._each]
        self._skip = (self._skip - len(here)) % self._each
        tokens = piece.chunk.tokens[piece.ends[some]]
        self._kept.append((piece.end_ns[some], piece.gap_ns[some], tokens))

    def look_again(self) -> None:
        """How many there are is known."""
        self._each = -(-self.finite // MOST) or 1

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """(when each ended, its length, the tokens that ended it); ns."""
        if not self._kept:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64)
        ends, gaps, tokens = (np.concatenate(part) for part in zip(*self._kept, strict=True))
        return ends, gaps, tokens


@dataclass(frozen=True, slots=True)
class GapFigures:
    """Gaps between tokens that ended in one window, by whether a prompt was in the same step.

    null: too few gaps of the kind.
    """

    n: int = 0  # gaps looked at
    prompt_share: float = nan  # share of the gaps with a prompt in their engine step
    prompt_tokens_mean: float = nan  # mean number of prompt tokens that ended with a gap
    longest_prompt_share: float = nan  # share of the longest 5% with a prompt in their step
    late_share: float = nan  # share of the events that were made on time and sent late
    mean_ms: float = nan  # mean of all gaps, ms
    p50_ms: float = nan  # median of all gaps, ms
    p95_ms: float = nan  # p95 of all gaps, ms
    alone_p50_ms: float = nan  # median of the gaps without a prompt, ms
    alone_p95_ms: float = nan  # p95 of the gaps without a prompt, ms
    beside_p50_ms: float = nan  # median of the gaps with a prompt, ms
    slope_ms: float = nan  # least-squares cost of 1,000 prompt tokens, ms
    base_ms: float = nan  # a gap without prompt tokens, by the same line, ms
    correlation: float = nan  # of a gap's length with its prompt tokens


def gap_figures(
    table: RecordTable,
    start_ns: int,
    end_ns: int,
    prefill_s: float = nan,
    drawn: Drawn | None = None,
) -> GapFigures:
    """Of the gaps that ended in the window, FEWEST at least.

    `prefill_s`: the server's mean time from a request's first step to its first token: prompts are
    cut into steps. An event came late where it carries several tokens, or comes in less than half
    a gap after the one before. `drawn`: the gaps, where they were drawn already; `table` may be
    thin then.
    """
    if drawn is None:
        drawn = Drawn(start_ns, end_ns)
        count_gaps(table, [drawn])
    ends, lengths, came = drawn.columns
    if len(ends) < FEWEST:
        return GapFigures()
    gaps = lengths / MS
    beside, tokens = _prompts(table, ends - lengths, ends, 0.0 if isnan(prefill_s) else prefill_s)
    longest = gaps >= np.quantile(gaps, LONGEST, method="higher")
    late = (gaps < SHORT * np.median(gaps)) | (came > 1)
    slope, base, r = _line(tokens, gaps)
    figures = GapFigures(
        n=len(gaps), prompt_share=float(beside.mean()), prompt_tokens_mean=float(tokens.mean()),
        longest_prompt_share=float(beside[longest].mean()), late_share=float(late.mean()),
        mean_ms=float(gaps.mean()), p50_ms=_quantile(gaps, 0.5), p95_ms=_quantile(gaps, LONGEST),
        alone_p50_ms=_quantile(gaps[~beside], 0.5), alone_p95_ms=_quantile(gaps[~beside], LONGEST),
        beside_p50_ms=_quantile(gaps[beside], 0.5), slope_ms=1000 * slope, base_ms=base,
        correlation=r,
    )  # fmt: skip
    return rounded(figures, PLACES)


def _prompts(
    table: RecordTable, begin: Ints, end: Ints, prefill_s: float
) -> tuple[NDArray[np.bool_], Floats]:
    """(whether a prompt was computed in it, tokens of prompts that ended with it) for each gap.

    Tokens of one step arrive over some time: a quarter of a gap later still counts as with it. A
    prompt is taken to be computed for most of `prefill_s`, more if it is longer than others.
    """
    rows = np.flatnonzero(table.counts > 0)
    at = table.at_ns[table.offsets[:-1][rows]]
    order = np.argsort(at, kind="stable")
    at, size = at[order], table.prompt_tokens[rows][order].clip(min=1)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
    slack = (end - begin) // 4
    before = np.searchsorted(at, begin + slack, "right")
    ended = np.maximum(np.searchsorted(at, end + slack, "right"), before)
    lasts = CERTAIN * prefill_s * SECOND * size / max(float(size.mean()), 1.0)
    begun = np.searchsorted(np.sort(at - lasts.astype(np.int64)), end, "left")
    return np.maximum(begun, ended) > before, (total[ended] - total[before]).astype(float)


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """(slope, intercept, correlation); no slope where x does not vary."""
    sx, sy = float(x.std()), float(y.std())
    if not sx > 0 or not sy > 0:
        return 0.0, float(y.mean()), 0.0
    r = float(((x - x.mean()) * (y - y.mean())).mean() / (sx * sy))
    slope = r * sy / sx
    return slope, float(y.mean() - slope * x.mean()), r


@dataclass(frozen=True, slots=True)
class ArrivalFigures:
    """How evenly requests were sent in one window; null: too few were."""

    n: int = 0  # requests sent
    bin_s: float = nan  # length of a bin in which they are counted, s
    dispersion: float = nan  # variance over mean of the number in a bin; a Poisson process has 1
    scheduled: float = nan  # share sent by a schedule, not at the end of an answer


def arrival_figures(table: RecordTable, start_ns: int, end_ns: int) -> ArrivalFigures:
    """Of the requests sent in the window. A closed loop has less dispersion than 1, bursts more."""
    inside = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    sent = np.sort(table.sent_ns[inside])
    seconds = (end_ns - start_ns) / SECOND
    if len(sent) < FEWEST or seconds <= 0:
        return ArrivalFigures()
    bin_s = max(BIN_S, PER_BIN * seconds / len(sent))
    bins = max(int(seconds / bin_s), 1)
    counts = np.bincount((sent - start_ns) // int(bin_s * SECOND), minlength=bins)[:bins]
    if bins < FEWEST // 2:
        return ArrivalFigures()
    dispersion = float(counts.var() / max(counts.mean(), 1e-9))
    scheduled = float((table.scheduled_ns[inside] >= 0).mean())
    return rounded(ArrivalFigures(len(sent), bin_s, dispersion, scheduled), PLACES)


def _quantile(values: Floats, q: float) -> float:
    return quantile(np.sort(values), q) if len(values) >= FEWEST else nan
