"""The figures of a window as JSON values, as each level of result.json has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

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
        made = cls(recorded.table, window)
        scan(recorded, [*made.gaps.values(), made.arrived])
        return made


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
    tokens = tokens or WindowTokens.of(recorded, (start_ns, end_ns))
    seconds = max(end_ns - start_ns, 1) / SECOND
    spans = blocked_windows(table, [(start_ns, end_ns)])
    out: Json = {}
    for key, metric in LATENCIES.items():
        seen = tokens.gaps[key] if key in tokens.gaps else sample_figures(table, key, spans)
        out[metric.field] = latency_json(seen)
    for key, metric in SPEEDS.items():
        out[metric.field] = speed_json(sample_figures(table, key, spans))
    is_open_loop = bool((table.scheduled_ns >= 0).any())
    for key, metric in SCHEDULED.items():
        shown = is_open_loop and latency_json(sample_figures(table, key, spans))
        out[metric.field] = shown or None
    out["in_flight"] = round(mean_in_flight(table, start_ns, end_ns), 3)
    ended = (table.done_ns >= start_ns) & (table.done_ns <= end_ns)
    sent = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    out["output_tokens_per_s"] = round(tokens.arrived.tokens / seconds, 3)
    done = ended & (table.outcome == OK)
    prompts = table.prompt_tokens[done] / seconds  # below 0: the server did not count
    out["prompt_tokens_per_s"] = None if (prompts < 0).any() else round(float(prompts.sum()), 3)
    counted = sent & (table.outcome != DROPPED) if is_open_loop else done
    out["requests_per_s"] = round(float(counted.sum()) / seconds, 4)
    good = good_requests(table, slos)
    out["goodput_per_s"] = round(float((ended & good).sum()) / seconds, 4)
    outcome = np.where(table.is_open, OPEN, table.outcome)
    counts = np.bincount(outcome[sent], minlength=len(OUTCOMES))
    out["outcomes"] = {str(o): int(c) for o, c in zip(OUTCOMES, counts, strict=True) if c}
    out["n_failed"] = int((failed_requests(table) & sent).sum())
    at_once = came_at_once(table.select(sent))
    out["came_at_once"] = round(float(at_once.mean()), 4) if len(at_once) else None
    exact, events = tokens.arrived.exact, tokens.arrived.events
    out["tokens_per_event"] = round(tokens.arrived.tokens / events, 4) if events else None
    out["exact_share"] = round(exact / events, 6) if events else None
    return out
