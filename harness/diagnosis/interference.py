"""What the records show about a window: how prompts lengthen token gaps, and how requests arrive.

A prompt that is computed in the same engine step as another request's next token delays that token.
From outside, such a step is recognized because the prompt's first token arrives together with the
token that it delayed.
"""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.typed_json import round_floats
from harness.metrics.level_figures import ArrivalFigures, GapFigures
from harness.metrics.scan import EventChunk, scan, within_window
from harness.metrics.statistics import quantile
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Floats, Ints
    from harness.records.record_table import RecordTable


DECIMALS: Final = 4
MIN_GAPS: Final = 20  # gaps of a kind, for a quantile of them
MAX_GAPS: Final = 100_000  # sampled gaps at most; at least half as many if there are more gaps
P95: Final = 0.95  # the gaps above this quantile are called the longest ones
# A gap shorter than this share of the median follows an event that was sent late.
EARLY_EVENT_SHARE: Final = 0.5
# Part of a prompt's mean prefill time, back from its first token, in which it was certainly being
# computed.
CERTAIN_PREFILL_SHARE: Final = 0.75
MIN_BIN_S: Final = 0.1  # arrivals are counted in bins of this length
MIN_PER_BIN: Final = 2.0  # mean arrivals per bin; bins are longer if there would be fewer


class GapSample:
    """An EventVisitor that keeps every k-th gap that ended in a window: at most MAX_GAPS."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self._n, self._stride = 0, 1
        self._kept = np.zeros((3, 0), np.int64)

    def add(self, piece: EventChunk) -> None:
        """Keep every k-th gap; if there are too many, k doubles and every other one goes."""
        # The gaps kept are always those whose index, counted from 0, is a multiple of k. So they
        # are evenly sampled, whatever k was when they arrived.
        here = np.arange(len(piece.ends))[within_window(piece.end_ns, self.start_ns, self.end_ns)]
        some = here[-self._n % self._stride :: self._stride]
        self._n += len(here)
        fresh = np.stack([piece.end_ns[some], piece.gap_ns[some], piece.tokens[some]])
        self._kept = np.concatenate([self._kept, fresh], axis=1)
        while self._kept.shape[1] > MAX_GAPS:
            self._kept = self._kept[:, ::2]
            self._stride *= 2

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """(when each ended in ns, its length in ns, tokens of the event that ended it)."""
        ends, gaps, tokens = self._kept
        return ends, gaps, tokens


def gap_figures(
    table: RecordTable,
    start_ns: int,
    end_ns: int,
    prefill_s: float = nan,
    sample: GapSample | None = None,
) -> GapFigures:
    """Statistics of the gaps that ended in the window; empty with fewer than MIN_GAPS.

    `prefill_s`: the server's mean time from a request's first step to its first token, as prompts
    are split over steps. An event was late if it carries several tokens, or if the next one follows
    in less than half a median gap. `sample`: the gaps, if they have been sampled already; then
    `table` may be thinned out.
    """
    if sample is None:
        sample = GapSample(start_ns, end_ns)
        scan(table, [sample])
    ends, lengths, came = sample.columns
    if len(ends) < MIN_GAPS:
        return GapFigures()
    gaps = lengths / MS
    beside, tokens = _prompts(table, ends - lengths, ends, 0.0 if isnan(prefill_s) else prefill_s)
    longest = gaps >= np.quantile(gaps, P95, method="higher")
    late = (gaps < EARLY_EVENT_SHARE * np.median(gaps)) | (came > 1)
    slope, base, r = _line(tokens, gaps)
    figures = GapFigures(
        n=len(gaps),
        prompt_share=float(beside.mean()),
        prompt_tokens_mean=float(tokens.mean()),
        longest_prompt_share=float(beside[longest].mean()),
        late_share=float(late.mean()),
        mean_ms=float(gaps.mean()),
        p50_ms=_quantile(gaps, 0.5),
        p95_ms=_quantile(gaps, P95),
        alone_p50_ms=_quantile(gaps[~beside], 0.5),
        alone_p95_ms=_quantile(gaps[~beside], P95),
        beside_p50_ms=_quantile(gaps[beside], 0.5),
        slope_ms=1000 * slope,
        base_ms=base,
        correlation=r,
    )
    return round_floats(figures, DECIMALS)


def _prompts(table: RecordTable, begin: Ints, end: Ints, prefill_s: float) -> tuple[Bools, Floats]:
    """For each gap: (whether a prompt was computed in it, prompt tokens that ended with it).

    The tokens of one step arrive over some time, so up to a quarter of a gap later still counts. A
    prompt is assumed to be computed for most of `prefill_s`, scaled with its length.
    """
    rows = np.flatnonzero(table.counts > 0)
    at = table.at_ns[table.offsets[:-1][rows]]
    order = np.argsort(at, kind="stable")
    at, size = at[order], table.prompt_tokens[rows][order].clip(min=1)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(size)])
    slack = (end - begin) // 4
    before = np.searchsorted(at, begin + slack, "right")
    ended = np.maximum(np.searchsorted(at, end + slack, "right"), before)
    lasts = CERTAIN_PREFILL_SHARE * prefill_s * SECOND * size / max(float(size.mean()), 1.0)
    begun = np.searchsorted(np.sort(at - lasts.astype(np.int64)), end, "left")
    return np.maximum(begun, ended) > before, (total[ended] - total[before]).astype(float)


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Least squares: (slope, intercept, correlation); 0 if x or y does not vary."""
    sx, sy = float(x.std()), float(y.std())
    if not sx > 0 or not sy > 0:
        return 0.0, float(y.mean()), 0.0
    r = float(((x - x.mean()) * (y - y.mean())).mean() / (sx * sy))
    slope = r * sy / sx
    return slope, float(y.mean() - slope * x.mean()), r


def arrival_figures(table: RecordTable, start_ns: int, end_ns: int) -> ArrivalFigures:
    """Of the requests sent in the window. A closed loop has a dispersion below 1, bursts above."""
    within_window = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    sent = np.sort(table.sent_ns[within_window])
    seconds = (end_ns - start_ns) / SECOND
    if len(sent) < MIN_GAPS or seconds <= 0:
        return ArrivalFigures()
    bin_s = max(MIN_BIN_S, MIN_PER_BIN * seconds / len(sent))
    bins = max(int(seconds / bin_s), 1)
    counts = np.bincount((sent - start_ns) // int(bin_s * SECOND), minlength=bins)[:bins]
    if bins < MIN_GAPS // 2:
        return ArrivalFigures()
    dispersion = float(counts.var() / max(counts.mean(), 1e-9))
    scheduled = float((table.scheduled_ns[within_window] >= 0).mean())
    return round_floats(ArrivalFigures(len(sent), bin_s, dispersion, scheduled), DECIMALS)


def _quantile(values: Floats, q: float) -> float:
    return quantile(np.sort(values), q) if len(values) >= MIN_GAPS else nan
