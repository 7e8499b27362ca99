"""The figures of a window, as plain JSON values: what each level of result.json has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.measure.figures import block, sample_of, spans_of
from harness.measure.gaps import Gaps, count_gaps
from harness.measure.metrics import METRICS, failed, tpot, ttft
from harness.measure.table import OK, OPEN, OUTCOMES
from harness.measure.walk import Arrivals
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from harness.measure.recorded import Recorded
    from harness.measure.slo import Slo
    from harness.measure.table import RecordTable

Json = dict[str, Any]


def good_requests(table: RecordTable, slos: Sequence[Slo]) -> NDArray[np.bool_]:
    """Requests that ended well and met every SLO by their own figures."""
    good = np.asarray(table.outcome == OK)
    for slo in slos:
        observe = METRICS[slo.metric].observe
        seen = tpot(table) if slo.metric == "itl" else (observe or ttft)(table)
        good[seen.row[seen.ns > slo.limit_ns]] = False
    return good


class Tokens:
    """What a window's figures need of each token: its gaps and what arrived in it."""

    def __init__(
        self, table: RecordTable, window: tuple[int, int], more: Sequence[float] = ()
    ) -> None:
        """Of the requests in `table`; `more`: quantiles wanted beside QUANTILES."""
        self.gaps = Gaps(table, spans_of(table, [window]), more)
        self.arrived = Arrivals(*window)

    @classmethod
    def of(cls, recorded: Recorded, window: tuple[int, int], more: Sequence[float] = ()) -> Tokens:
        """Counted, for one window alone."""
        made = cls(recorded.table, window, more)
        count_gaps(recorded, [made.gaps], [made.arrived])
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
    for metric in METRICS.values():
        if metric.observe is not None:
            gaps = metric.key == "itl"
            seen = tokens.gaps if gaps else sample_of(table, metric.key, spans)
            out[f"{metric.key}_ms"] = block(seen)
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
    out["exact_share"] = round(exact / events, 6) if events else None
    return out
