"""The figures of a window, as plain JSON values: what each level of result.json has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.measure.figures import block, sample_of, spans_of, speed_block
from harness.measure.gaps import Gaps
from harness.measure.metrics import GAPS, LATENCIES, SPEEDS, failed, good_requests
from harness.measure.table import OK, OPEN, OUTCOMES
from harness.measure.walk import Arrivals, walk
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.recorded import Recorded
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

Json = dict[str, Any]


class Tokens:
    """What a window's figures need of each token: its gaps and what arrived in it."""

    def __init__(self, table: RecordTable, window: tuple[int, int]) -> None:
        """Of the requests in `table`."""
        (span,) = spans_of(table, [window])
        self.gaps = {key: Gaps(table, span, key) for key in GAPS}
        self.arrived = Arrivals(*window)

    @classmethod
    def of(cls, recorded: Recorded, window: tuple[int, int]) -> Tokens:
        """Counted, for one window alone."""
        made = cls(recorded.table, window)
        walk(recorded, [*made.gaps.values(), made.arrived])
        return made


def window_summary(
    recorded: Recorded,
    start_ns: int,
    end_ns: int,
    slos: Sequence[Slo] = (),
    tokens: Tokens | None = None,
) -> Json:
    """All figures of a window, as JSON values.

    Source: requests sent in it (latencies, outcomes), events that arrived in it (throughput; given
    in `tokens` where they were counted already).
    """
    table = recorded.table
    tokens = tokens or Tokens.of(recorded, (start_ns, end_ns))
    seconds = max(end_ns - start_ns, 1) / SECOND
    spans = spans_of(table, [(start_ns, end_ns)])
    out: Json = {}
    for key, metric in LATENCIES.items():
        seen = tokens.gaps[key] if key in tokens.gaps else sample_of(table, key, spans)
        out[metric.field] = block(seen)
    for key, metric in SPEEDS.items():
        out[metric.field] = speed_block(sample_of(table, key, spans))
    ended = (table.done_ns >= start_ns) & (table.done_ns <= end_ns)
    sent = (table.sent_ns >= start_ns) & (table.sent_ns <= end_ns)
    out["output_tokens_per_s"] = round(tokens.arrived.tokens / seconds, 3)
    out["requests_per_s"] = round(float((ended & (table.outcome == OK)).sum()) / seconds, 4)
    good = good_requests(table, slos)
    out["goodput_per_s"] = round(float((ended & good).sum()) / seconds, 4)
    outcome = np.where(table.is_open, OPEN, table.outcome)
    counts = np.bincount(outcome[sent], minlength=len(OUTCOMES))
    out["outcomes"] = {str(o): int(c) for o, c in zip(OUTCOMES, counts, strict=True) if c}
    out["n_failed"] = int((failed(table) & sent).sum())
    exact, events = tokens.arrived.exact, tokens.arrived.events
    out["tokens_per_event"] = round(tokens.arrived.tokens / events, 4) if events else None
    out["exact_share"] = round(exact / events, 6) if events else None
    return out
