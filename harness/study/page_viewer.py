"""The figures of live views that are computed: those of a level, once, when it has ended."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.measure.latency_figures import LatencyFigures, blocked_windows, sample_figures
from harness.measure.metrics import HEADLINES
from harness.measure.window_summary import WindowTokens
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.measure.records.record_source import RecordSource
    from harness.measure.search.evidence import Window
    from harness.study.experiment import Experiment

P95: Final = 0.95
MAX_WINDOW_NS: Final = 30 * SECOND  # older tokens of a given level are no longer in memory
Quantile = tuple[float, float, float]  # (value, lo, hi) in ms; NaN: not known


@dataclass(frozen=True, slots=True)
class EndedLevel:
    """A level that ended, from the records in memory at that time; results use all records."""

    p95_ms: dict[str, Quantile]  # of HEADLINES
    output_tokens_per_s: float
    ended: int
    failed: int


def ended_levels(experiment: Experiment) -> list[EndedLevel]:
    """The levels so far; each is computed once."""
    seen, levels = experiment.ended, experiment.controller.levels
    seen += [_ended(experiment, level.window) for level in levels[len(seen) :]]
    return seen


def _ended(experiment: Experiment, window: Window) -> EndedLevel:
    ledger, start, end = experiment.ledger, window.settled_ns, window.end_ns
    look = ledger.look(start, end)
    # A search keeps all tokens of its levels; other runs forget old ones.
    latest = start
    if experiment.wanted.kind != "knee":
        latest = max(start, end - MAX_WINDOW_NS, ledger.tokens_from_ns)
    tokens = WindowTokens.of(ledger.look(latest, end), (min(latest, end), end))
    return EndedLevel(
        headline_latencies(look, (start, end), tokens),
        tokens.arrived.tokens * SECOND / max(end - latest, 1),
        *ledger.ended(start, end),
    )


def headline_latencies(
    recorded: RecordSource, window: tuple[int, int], tokens: WindowTokens
) -> dict[str, Quantile]:
    """The p95 of each of HEADLINES; NaN where nothing was observed."""
    table = recorded.table
    spans = blocked_windows(table, [window])
    return {
        key: p95_ms(tokens.gaps[key] if key in tokens.gaps else sample_figures(table, key, spans))
        for key in HEADLINES
    }


def p95_ms(seen: LatencyFigures) -> Quantile:
    """The p95 with its interval, which has no upper end if there are too few observations."""
    interval = seen.interval(P95) if seen.n else None
    ends = (interval.lo, interval.hi) if interval is not None else (None, None)
    value, lo, hi = (math.nan if ns is None else ns / MS for ns in (seen.quantile(P95), *ends))
    return value, lo, hi
