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
    seen, controller, ledger = experiment.ended, experiment.controller, experiment.ledger
    for level in controller.levels[len(seen) :]:
        n_open = ledger.in_flight_of(level.window.end_ns)
        late = over or controller.horizon_ns - level.window.end_ns > MAX_WAIT_NS
        if n_open and not late:
            break
        seen.append(_ended(experiment, level.window, n_open))
    waiting = controller.levels[len(seen) :]
    ledger.keep_from(waiting[0].window.settled_ns if waiting else None)
    return seen


def _ended(experiment: Experiment, window: Window, n_open: int) -> EndedLevel:
    ledger, start, end = experiment.ledger, window.settled_ns, window.end_ns
    # A request that is open has its age at the horizon, and one that ended later would be open.
    horizon = max(experiment.controller.horizon_ns, end) if n_open else NEVER_NS
    look = ledger.look(start, horizon)
    table = requests_in_window(look.table, window)
    # A search keeps all tokens of its levels; other runs forget old ones.
    latest = start
    if experiment.wanted.kind != "knee":
        latest = max(start, end - MAX_WINDOW_NS, ledger.tokens_from_ns)
    tokens = WindowTokens(table, (min(latest, end), end))
    scan(ledger.look(latest, horizon), [*tokens.gaps.values(), tokens.arrived])
    return EndedLevel(
        headline_latencies(table, (start, end), tokens),
        tokens.arrived.tokens * SECOND / max(end - latest, 1),
        *ledger.ended(start, end),
        n_open,
        latest == start,
    )


def headline_latencies(
    table: RecordTable, window: tuple[int, int], tokens: WindowTokens
) -> dict[str, Quantile]:
    """The p95 of each of HEADLINES; NaN where nothing was observed."""
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
