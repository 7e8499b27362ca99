"""The figures of live views that are computed: those of a level, once, when it has ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from harness.metrics.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.metrics.metrics import HEADLINES
from harness.metrics.scan import scan
from harness.metrics.window_summary import WindowTokens
from harness.run.ended_level import EndedLevel, Quantile
from harness.search.replay import requests_in_window
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.metrics.evidence import Window
    from harness.records.record_table import RecordTable
    from harness.run.experiment import Experiment

P95: Final = 0.95
MAX_WINDOW_NS: Final = 30 * SECOND  # older tokens of a given level are no longer in memory
# So long the requests of a level may take to end before it is shown without them.
MAX_WAIT_NS: Final = 10 * SECOND
NEVER_NS: Final = 1 << 62


def ended_levels(experiment: Experiment, *, over: bool = False) -> list[EndedLevel]:
    """The levels whose requests have ended, in their order; each is computed once.

    A request belongs to the level in which it was sent, so the figures of a level are those of the
    report only once its last request has ended. `over`: no record is to come.
    """
    ended = experiment.ended
    controller = experiment.controller
    ledger = experiment.ledger
    for level in controller.levels[len(ended) :]:
        n_open = ledger.in_flight_of(level.window.end_ns)
        waited_enough = over or controller.horizon_ns - level.window.end_ns > MAX_WAIT_NS
        if n_open and not waited_enough:
            break
        ended.append(_ended(experiment, level.window, n_open))
    waiting = controller.levels[len(ended) :]
    ledger.keep_from(waiting[0].window.settled_ns if waiting else None)
    return ended


def _ended(experiment: Experiment, window: Window, n_open: int) -> EndedLevel:
    ledger = experiment.ledger
    start_ns = window.settled_ns
    end_ns = window.end_ns
    # A request that is open has its age at the horizon, and one that ended later would be open.
    horizon_ns = NEVER_NS
    if n_open:
        horizon_ns = max(experiment.controller.horizon_ns, end_ns)
    table = requests_in_window(ledger.look(start_ns, horizon_ns).table, window)
    # A search keeps all tokens of its levels; other runs forget old ones.
    tokens_from_ns = start_ns
    if not experiment.wanted.kind.searches:
        tokens_from_ns = max(start_ns, end_ns - MAX_WINDOW_NS, ledger.tokens_from_ns)
    tokens = WindowTokens(table, (min(tokens_from_ns, end_ns), end_ns))
    records = ledger.look(tokens_from_ns, horizon_ns)
    scan(records, [*tokens.gaps.values(), tokens.arrived])
    n_ended, n_failed = ledger.ended(start_ns, end_ns)
    counted_ns = max(end_ns - tokens_from_ns, 1)
    return EndedLevel(
        p95_ms=headline_latencies(table, (start_ns, end_ns), tokens),
        output_tokens_per_s=tokens.arrived.tokens * SECOND / counted_ns,
        ended=n_ended,
        failed=n_failed,
        n_open=n_open,
        whole=tokens_from_ns == start_ns,
    )


def headline_latencies(
    table: RecordTable, window: tuple[int, int], tokens: WindowTokens
) -> dict[str, Quantile]:
    """The p95 of each of HEADLINES; NaN where nothing was observed."""
    spans = blocked_windows(table, [window])
    quantiles = {}
    for key in HEADLINES:
        gaps = tokens.gaps.get(key)
        figures = sample_figures(table, key, spans) if gaps is None else gaps
        quantiles[key] = p95_ms(figures)
    return quantiles


def p95_ms(figures: LatencyFigures) -> Quantile:
    """The p95 with its interval, which has no upper end if there are too few observations."""
    value_ns = figures.quantile(P95)
    interval = figures.interval(P95) if figures.n else None
    if interval is None:
        return _ms(value_ns), math.nan, math.nan
    return _ms(value_ns), _ms(interval.lo), _ms(interval.hi)


def _ms(ns: float | None) -> float:
    return math.nan if ns is None else ns / MS
