"""The split of TTFT per request, from the server's traces: means and quantiles.

Histograms give only means (ttft_split.py); how queue, prefill and rest are distributed, and for
which requests, only traces show. The parts of one request add up; their quantiles still do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.measure.metrics import ttft
from harness.measure.records.request_record import request_key
from harness.measure.search.statistics import quantile
from harness.measure.typed_json import round_floats
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.records.record_table import RecordTable

DECIMALS: Final = 6
QUANTILES: Final = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """The server's trace of one request, in seconds; NaN: not reported."""

    request_id: str  # the server's, which holds the X-Request-Id that we sent
    ttft_s: float
    queue_s: float
    prefill_s: float


@dataclass(frozen=True, slots=True)
class TracedSplit:
    """Where the TTFT of the traced requests of one window is spent; null: too few of them."""

    n: int  # requests with a first token and a trace
    sent: int  # requests sent
    queue_ms: float = nan  # time in the queue, mean, ms
    queue_p50_ms: float = nan  # time in the queue, median, ms
    queue_p95_ms: float = nan  # time in the queue, p95, ms
    prefill_ms: float = nan  # time from the queue to the first token, mean, ms
    prefill_p50_ms: float = nan  # time from the queue to the first token, median, ms
    prefill_p95_ms: float = nan  # time from the queue to the first token, p95, ms
    rest_ms: float = nan  # the server's TTFT without queue and prefill, mean, ms
    rest_p50_ms: float = nan  # the server's TTFT without queue and prefill, median, ms
    rest_p95_ms: float = nan  # the server's TTFT without queue and prefill, p95, ms
    ttft_ms: float = nan  # the server's TTFT, mean, ms
    ttft_p50_ms: float = nan  # the server's TTFT, median, ms
    ttft_p95_ms: float = nan  # the server's TTFT, p95, ms
    residual_ms: float = nan  # the client's TTFT less the server's, mean, ms
    residual_p50_ms: float = nan  # the client's TTFT less the server's, median, ms
    residual_p95_ms: float = nan  # the client's TTFT less the server's, p95, ms
    client_ms: float = nan  # the client's TTFT, mean, ms
    client_p50_ms: float = nan  # the client's TTFT, median, ms
    client_p95_ms: float = nan  # the client's TTFT, p95, ms


def traced_split(
    table: RecordTable, traces: Sequence[RequestTrace], run_id: str, window: tuple[int, int]
) -> TracedSplit | None:
    """The split for the requests of a window (ns) with a first token and a trace; None: none."""
    known = {request_key(run_id, trace.request_id): trace for trace in traces}
    sent_in = (table.sent_ns >= window[0]) & (table.sent_ns <= window[1])
    rows, mine = [], []
    for row in np.flatnonzero(sent_in & (table.counts > 0)).tolist():
        trace = known.get((int(table.worker[row]), int(table.number[row])))
        if trace is not None:
            rows.append(row)
            mine.append((trace.ttft_s, trace.queue_s, trace.prefill_s))
    if not rows:
        return None
    server, queue, prefill = np.array(mine).T * (SECOND / MS)
    client = ttft(table).ns[rows] / MS
    parts = {
        "queue": queue, "prefill": prefill, "rest": server - queue - prefill, "ttft": server,
        "residual": client - server, "client": client,
    }  # fmt: skip
    figures: dict[str, Any] = {}
    for key, values in parts.items():
        fine = np.sort(values[np.isfinite(values)])
        figures[f"{key}_ms"] = float(fine.mean()) if len(fine) else nan
        for name, q in QUANTILES.items():
            figures[f"{key}_{name}_ms"] = quantile(fine, q) if len(fine) else nan
    return round_floats(TracedSplit(len(rows), int(sent_in.sum()), **figures), DECIMALS)
