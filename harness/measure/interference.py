"""What the records themselves say of a window: gaps beside prompts, and how requests came.

A prompt that is computed in the same engine step as somebody's next token makes that token late.
The step is seen from outside: the prompt's first token arrives with the token that it delayed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.measure.gaps import count_gaps
from harness.measure.stats import quantile
from harness.measure.walk import inside
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.measure.table import RecordTable
    from harness.measure.walk import Piece

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

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


def gap_figures(
    table: RecordTable,
    start_ns: int,
    end_ns: int,
    prefill_s: float | None = None,
    drawn: Drawn | None = None,
) -> dict[str, Any]:
    """Gaps that ended in the window, with and without a prompt in the same engine step; for JSON.

    `prefill_s`: the server's mean time from a request's first step to its first token: prompts are
    cut into steps. `slope_ms` is the least-squares cost of 1,000 prompt tokens that ended with the
    gap, `base_ms` a gap without any. `late_share` of the events come in less than half a gap after
    the one before, or carry several tokens: what was made on time was sent late. {}: fewer than
    FEWEST gaps. `drawn`: the gaps, where they were drawn already; `table` may be thin then.
    """
    if drawn is None:
        drawn = Drawn(start_ns, end_ns)
        count_gaps(table, [drawn])
    ends, lengths, came = drawn.columns
    if len(ends) < FEWEST:
        return {}
    gaps = lengths / MS
    beside, tokens = _prompts(table, ends - lengths, ends, prefill_s or 0.0)
    longest = gaps >= np.quantile(gaps, LONGEST, method="higher")
    late = (gaps < SHORT * np.median(gaps)) | (came > 1)
    slope, base, r = _line(tokens, gaps)
    return {
        "n": len(gaps),
        "prompt_share": _round(float(beside.mean())),
        "prompt_tokens_mean": _round(float(tokens.mean())),
        "longest_prompt_share": _round(float(beside[longest].mean())),
        "late_share": _round(float(late.mean())),
        "mean_ms": _round(float(gaps.mean())),
        "p50_ms": _quantile(gaps, 0.5),
        "p95_ms": _quantile(gaps, LONGEST),
        "alone_p50_ms": _quantile(gaps[~beside], 0.5),
        "alone_p95_ms": _quantile(gaps[~beside], LONGEST),
        "beside_p50_ms": _quantile(gaps[beside], 0.5),
        "slope_ms": _round(1000 * slope),
        "base_ms": _round(base),
        "correlation": _round(r),
    }


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


def arrival_figures(table: RecordTable, start_ns: int, end_ns: int) -> dict[str, Any]:
    """How evenly requests were sent in the window; for JSON, {} when too few were.

    `dispersion` is variance over mean of the number sent in a bin: 1 for a Poisson process, less
    for a closed loop, above it for bursts. `scheduled` is the share that had a time of their own:
    in a closed loop a request comes when an answer ends.
    """
    inside = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    sent = np.sort(table.sent_ns[inside])
    seconds = (end_ns - start_ns) / SECOND
    if len(sent) < FEWEST or seconds <= 0:
        return {}
    bin_s = max(BIN_S, PER_BIN * seconds / len(sent))
    bins = max(int(seconds / bin_s), 1)
    counts = np.bincount((sent - start_ns) // int(bin_s * SECOND), minlength=bins)[:bins]
    if bins < FEWEST // 2:
        return {}
    return {
        "n": len(sent),
        "bin_s": _round(bin_s),
        "dispersion": _round(float(counts.var() / max(counts.mean(), 1e-9))),
        "scheduled": _round(float((table.scheduled_ns[inside] >= 0).mean())),
    }


def _quantile(values: Floats, q: float) -> float | None:
    return _round(quantile(np.sort(values), q)) if len(values) >= FEWEST else None


def _round(value: float) -> float:
    return round(value, 4)
