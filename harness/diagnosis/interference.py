"""What the records show about a window: how prompts lengthen token gaps, and how requests arrive.

A prompt that is computed in the same engine step as another request's next token delays that token.
From outside, such a step is recognized because the prompt's first token arrives together with the
token that it delayed.
"""

from __future__ import annotations

from math import isnan, nan
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import between, totals_before
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
SLOPE_TOKENS: Final = 1000  # the prompt tokens that `GapFigures.slope_ms` is the cost of
# Part of a prompt's mean prefill time, back from its first token, in which it was certainly being
# computed.
CERTAIN_PREFILL_SHARE: Final = 0.75
MIN_BIN_S: Final = 0.1  # arrivals are counted in bins of this length
MIN_PER_BIN: Final = 2.0  # mean arrivals per bin; bins are longer if there would be fewer


class GapSample:
    """An EventVisitor that keeps every k-th gap that ended in a window: at most MAX_GAPS."""

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = end_ns
        self._n = 0  # gaps until now
        self._stride = 1  # k
        self._kept = np.zeros((3, 0), np.int64)

    def add(self, piece: EventChunk) -> None:
        """Keep every k-th gap; if there are too many, k doubles and every other one goes."""
        # The gaps kept are always those whose index, counted from 0, is a multiple of k. So they
        # are evenly sampled, whatever k was when they arrived.
        in_window = within_window(piece.end_ns, self.start_ns, self.end_ns)
        here = np.arange(len(piece.ends))[in_window]
        first_kept = -self._n % self._stride  # up to the next multiple of k
        sampled = here[first_kept :: self._stride]
        self._n += len(here)
        columns = (piece.end_ns, piece.gap_ns, piece.tokens)
        fresh = np.stack([column[sampled] for column in columns])
        self._kept = np.concatenate([self._kept, fresh], axis=1)
        while self._kept.shape[1] > MAX_GAPS:
            self._kept = self._kept[:, ::2]
            self._stride *= 2

    @property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """(when each ended in ns, its length in ns, tokens of the event that ended it)."""
        end_ns, gap_ns, tokens = self._kept
        return end_ns, gap_ns, tokens


def gap_figures(
    table: RecordTable,
    start_ns: int,
    end_ns: int,
    prefill_s: float = nan,
    sample: GapSample | None = None,
) -> GapFigures:
    """Statistics of the gaps that ended in the window; empty with fewer than MIN_GAPS.

    `prefill_s`: the server's mean time from a request's first step to its first token, as prompts
    are split over steps. `sample`: the gaps, if they have been sampled already; then `table` may be
    thinned out.
    """
    if sample is None:
        sample = GapSample(start_ns, end_ns)
        scan(table, [sample])
    gap_end_ns, gap_ns, event_tokens = sample.columns
    if len(gap_ns) < MIN_GAPS:
        return GapFigures()
    gaps_ms = gap_ns / MS
    if isnan(prefill_s):
        prefill_s = 0.0
    gap_begin_ns = gap_end_ns - gap_ns
    has_prompt, prompt_tokens = _prompts_of_gaps(table, gap_begin_ns, gap_end_ns, prefill_s)
    p95_ms = np.quantile(gaps_ms, P95, method="higher")
    is_longest = gaps_ms >= p95_ms
    alone_ms = gaps_ms[~has_prompt]
    beside_ms = gaps_ms[has_prompt]
    token_ms, base_ms, correlation = _line(prompt_tokens, gaps_ms)
    figures = GapFigures(
        n=len(gaps_ms),
        prompt_share=float(has_prompt.mean()),
        prompt_tokens_mean=float(prompt_tokens.mean()),
        longest_prompt_share=float(has_prompt[is_longest].mean()),
        late_share=_late_share(gaps_ms, event_tokens),
        mean_ms=float(gaps_ms.mean()),
        p50_ms=_quantile(gaps_ms, 0.5),
        p95_ms=_quantile(gaps_ms, P95),
        alone_p50_ms=_quantile(alone_ms, 0.5),
        alone_p95_ms=_quantile(alone_ms, P95),
        beside_p50_ms=_quantile(beside_ms, 0.5),
        slope_ms=SLOPE_TOKENS * token_ms,
        base_ms=base_ms,
        correlation=correlation,
    )
    return round_floats(figures, DECIMALS)


def _late_share(gaps_ms: Floats, event_tokens: Ints) -> float:
    """Share of the events that were made on time and sent late.

    An event was late if it carries several tokens, or if the next one follows in less than half a
    median gap.
    """
    after_late_event = gaps_ms < EARLY_EVENT_SHARE * np.median(gaps_ms)
    late = after_late_event | (event_tokens > 1)
    return float(late.mean())


def _prompts_of_gaps(
    table: RecordTable, begin_ns: Ints, end_ns: Ints, prefill_s: float
) -> tuple[Bools, Floats]:
    """For each gap: (whether a prompt was computed in it, prompt tokens that ended with it).

    The tokens of one step arrive over some time, so up to a quarter of a gap later still counts. A
    prompt is assumed to be computed for most of `prefill_s`, scaled with its length.
    """
    rows = np.flatnonzero(table.counts > 0)
    first_event = table.offsets[rows]
    first_ns = table.at_ns[first_event]
    order = np.argsort(first_ns, kind="stable")
    first_ns = first_ns[order]
    # Where the server does not count prompts (-1), each of them is one token.
    tokens = table.prompt_tokens[rows[order]].clip(min=1)
    tokens_until = totals_before(tokens)
    mean_tokens = max(float(tokens.mean()), 1.0)
    mean_prefill_ns = CERTAIN_PREFILL_SHARE * prefill_s * SECOND
    prefill_ns = mean_prefill_ns * tokens / mean_tokens
    begun_ns = np.sort(first_ns - prefill_ns.astype(np.int64))
    # Of each gap: how many prompts had ended before it, had ended with it, and had begun by its end
    slack_ns = (end_ns - begin_ns) // 4
    n_before = np.searchsorted(first_ns, begin_ns + slack_ns, "right")
    n_ended = np.searchsorted(first_ns, end_ns + slack_ns, "right")
    n_begun = np.searchsorted(begun_ns, end_ns, "left")
    n_ended = np.maximum(n_ended, n_before)
    has_prompt = np.maximum(n_begun, n_ended) > n_before
    tokens_ended = tokens_until[n_ended] - tokens_until[n_before]
    return has_prompt, tokens_ended.astype(float)


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Least squares: (slope, intercept, correlation); 0 if x or y does not vary."""
    x_mean = x.mean()
    y_mean = y.mean()
    x_std = float(x.std())
    y_std = float(y.std())
    if not x_std > 0 or not y_std > 0:
        return 0.0, float(y_mean), 0.0
    covariance = ((x - x_mean) * (y - y_mean)).mean()
    correlation = float(covariance / (x_std * y_std))
    slope = correlation * y_std / x_std
    intercept = float(y_mean - slope * x_mean)
    return slope, intercept, correlation


def arrival_figures(table: RecordTable, start_ns: int, end_ns: int) -> ArrivalFigures:
    """Of the requests sent in the window. A closed loop has a dispersion below 1, bursts above."""
    inside = between(table.sent_ns, start_ns, end_ns)
    sent_ns = np.sort(table.sent_ns[inside])
    seconds = (end_ns - start_ns) / SECOND
    if len(sent_ns) < MIN_GAPS or seconds <= 0:
        return ArrivalFigures()
    bin_s = max(MIN_BIN_S, MIN_PER_BIN * seconds / len(sent_ns))
    bins = max(int(seconds / bin_s), 1)
    # The variance of so few counts says nothing.
    if bins < MIN_GAPS // 2:
        return ArrivalFigures()
    bin_of_each = (sent_ns - start_ns) // int(bin_s * SECOND)
    counts = np.bincount(bin_of_each, minlength=bins)
    counts = counts[:bins]  # without an incomplete bin at the end
    # Independent arrivals are Poisson, whose variance is the mean: a dispersion of 1.
    dispersion = counts.var() / max(counts.mean(), 1e-9)
    scheduled = table.scheduled_ns[inside] >= 0
    figures = ArrivalFigures(
        n=len(sent_ns),
        bin_s=bin_s,
        dispersion=float(dispersion),
        scheduled=float(scheduled.mean()),
    )
    return round_floats(figures, DECIMALS)


def _quantile(values: Floats, q: float) -> float:
    if len(values) < MIN_GAPS:
        return nan
    return quantile(np.sort(values), q)
