"""The split of TTFT per request, from the server's own trace of each: quantiles of the same ones.

Means can be had from histograms (ttft_split.py); how queue, prefill and rest are spread, and of
which requests, only a trace tells. Parts of one request add up; their quantiles still do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.measure.metrics import ttft
from harness.measure.stats import quantile
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.measure.table import RecordTable

PLACES: Final = 6
QUANTILES: Final = {"p50": 0.5, "p95": 0.95}


@dataclass(frozen=True, slots=True)
class Trace:
    """What the server says of one request, in seconds; NaN where it does not."""

    request_id: str  # the server's, which holds the X-Request-Id that we sent
    ttft_s: float
    queue_s: float
    prefill_s: float


def request_id(run_id: str, worker: int, number: int) -> str:
    """What we call a request towards the server."""
    return f"{run_id}-{worker}-{number}"


def key_of(run_id: str, told: str) -> tuple[int, int] | None:
    """(worker, number) of a server's id such as `cmpl-RUN-0-17-0`; None: not of this run."""
    _, ours, rest = told.partition(f"{run_id}-")
    parts = rest.split("-")
    if not ours or not run_id or len(parts) < 2 or not (parts[0] + parts[1]).isdecimal():  # noqa: PLR2004
        return None
    return int(parts[0]), int(parts[1])


def traced_split(
    table: RecordTable, traces: Sequence[Trace], run_id: str, window: tuple[int, int]
) -> dict[str, Any]:
    """For JSON, in ms: mean, p50 and p95 of each part over the requests sent in a window (ns).

    Only requests that have both a first token and a trace; `n` of `sent` have. {} without any.
    """
    known = {key_of(run_id, trace.request_id): trace for trace in traces}
    sent_in = (table.sent_ns >= window[0]) & (table.sent_ns <= window[1])
    rows, mine = [], []
    for row in np.flatnonzero(sent_in & (table.counts > 0)).tolist():
        trace = known.get((int(table.worker[row]), int(table.number[row])))
        if trace is not None:
            rows.append(row)
            mine.append((trace.ttft_s, trace.queue_s, trace.prefill_s))
    if not rows:
        return {}
    server, queue, prefill = np.array(mine).T * (SECOND / MS)
    client = ttft(table).ns[rows] / MS
    parts = {
        "queue": queue, "prefill": prefill, "rest": server - queue - prefill, "ttft": server,
        "residual": client - server, "client": client,
    }  # fmt: skip
    out: dict[str, Any] = {"n": len(rows), "sent": int(sent_in.sum())}
    for key, values in parts.items():
        fine = np.sort(values[np.isfinite(values)])
        out[f"{key}_ms"] = round(float(fine.mean()), PLACES) if len(fine) else None
        for name, q in QUANTILES.items():
            out[f"{key}_{name}_ms"] = round(quantile(fine, q), PLACES) if len(fine) else None
    return out
