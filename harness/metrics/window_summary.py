"""The figures of a window as JSON values, as each level of result.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.core.arrays import between
from harness.metrics.latency_figures import (
    blocked_windows,
    latency_json,
    sample_figures,
    speed_json,
)
from harness.metrics.ledger import mean_in_flight
from harness.metrics.metrics import (
    GAPS,
    LATENCIES,
    SCHEDULED,
    SPEEDS,
    came_at_once,
    failed_requests,
)
from harness.metrics.scan import ArrivalCounter, scan
from harness.metrics.slo import good_requests
from harness.metrics.token_gaps import WindowGapCounter
from harness.records.record_table import DROPPED, OK, OPEN, OUTCOMES, RecordTable
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Bools
    from harness.metrics.record_source import RecordSource
    from harness.metrics.slo import Slo

Json = dict[str, Any]


class WindowTokens:
    """What a window's figures need of its tokens: the gaps, and the number that arrived."""

    def __init__(self, table: RecordTable, window: tuple[int, int]) -> None:
        (span,) = blocked_windows(table, [window])
        self.gaps = {key: WindowGapCounter(table, span, key) for key in GAPS}
        self.arrived = ArrivalCounter(*window)

    @classmethod
    def of(cls, recorded: RecordSource, window: tuple[int, int]) -> WindowTokens:
        """The counted tokens of a single window."""
        tokens = cls(recorded.table, window)
        scan(recorded, [*tokens.gaps.values(), tokens.arrived])
        return tokens


def window_summary(
    recorded: RecordSource,
    start_ns: int,
    end_ns: int,
    slos: Sequence[Slo] = (),
    tokens: WindowTokens | None = None,
) -> Json:
    """All figures of a window, as JSON values.

    Latencies and outcomes are of the requests sent in it, throughput of the events that arrived in
    it. `tokens`: these, if they have been counted already.
    """
    table = recorded.table
    window = (start_ns, end_ns)
    if tokens is None:
        tokens = WindowTokens.of(recorded, window)
    seconds = max(end_ns - start_ns, 1) / SECOND
    return {
        **_latencies(table, window, tokens.gaps),
        "in_flight": round(mean_in_flight(table, start_ns, end_ns), 3),
        "output_tokens_per_s": round(tokens.arrived.tokens / seconds, 3),
        **_request_rates(table, window, slos),
        **_outcomes(table, window),
        **_events(tokens.arrived),
    }


def _latencies(
    table: RecordTable, window: tuple[int, int], gaps: Mapping[str, WindowGapCounter]
) -> Json:
    """Each latency in ms, each speed in tokens/s, and in an open loop those of the schedule."""
    spans = blocked_windows(table, [window])
    figures: Json = {}
    for key, metric in LATENCIES.items():
        if key in gaps:
            figures[metric.field] = latency_json(gaps[key])
        else:
            figures[metric.field] = latency_json(sample_figures(table, key, spans))
    for key, metric in SPEEDS.items():
        figures[metric.field] = speed_json(sample_figures(table, key, spans))
    for key, metric in SCHEDULED.items():
        figures[metric.field] = None
        if _is_open_loop(table):
            figures[metric.field] = latency_json(sample_figures(table, key, spans))
    return figures


def _is_open_loop(table: RecordTable) -> bool:
    return bool((table.scheduled_ns >= 0).any())


def _request_rates(table: RecordTable, window: tuple[int, int], slos: Sequence[Slo]) -> Json:
    """Per second: prompt tokens, requests, and requests that met every SLO."""
    start_ns, end_ns = window
    seconds = max(end_ns - start_ns, 1) / SECOND
    ended = between(table.done_ns, start_ns, end_ns)
    succeeded = ended & (table.outcome == OK)
    prompts_per_s = table.prompt_tokens[succeeded] / seconds  # below 0: the server did not count
    prompt_tokens_per_s = None
    if not (prompts_per_s < 0).any():
        prompt_tokens_per_s = round(float(prompts_per_s.sum()), 3)
    counted = succeeded
    # The rate of an open loop is that of what was sent, by its schedule (docs/load.md).
    if _is_open_loop(table):
        counted = _sent_in(table, window) & (table.outcome != DROPPED)
    good = ended & good_requests(table, slos)
    return {
        "prompt_tokens_per_s": prompt_tokens_per_s,
        "requests_per_s": round(float(counted.sum()) / seconds, 4),
        "goodput_per_s": round(float(good.sum()) / seconds, 4),
    }


def _sent_in(table: RecordTable, window: tuple[int, int]) -> Bools:
    start_ns, end_ns = window
    return between(table.sent_ns, start_ns, end_ns)


def _outcomes(table: RecordTable, window: tuple[int, int]) -> Json:
    """Of the requests sent in the window."""
    sent = _sent_in(table, window)
    outcomes = np.where(table.is_open, OPEN, table.outcome)
    counts = np.bincount(outcomes[sent], minlength=len(OUTCOMES))
    by_outcome = zip(OUTCOMES, counts, strict=True)
    at_once = came_at_once(table.select(sent))
    share_at_once = None
    if len(at_once):
        share_at_once = round(float(at_once.mean()), 4)
    return {
        "outcomes": {str(outcome): int(n) for outcome, n in by_outcome if n},
        "n_failed": int((failed_requests(table) & sent).sum()),
        "came_at_once": share_at_once,
    }


def _events(arrived: ArrivalCounter) -> Json:
    """Of the events that arrived in the window."""
    if not arrived.events:
        return {"tokens_per_event": None, "exact_share": None}
    return {
        "tokens_per_event": round(arrived.tokens / arrived.events, 4),
        "exact_share": round(arrived.exact / arrived.events, 6),
    }
