"""A latency as a package: end-to-end latency per output token, `--slo normalized_p95=50ms`."""

from dataclasses import replace

import numpy as np

from harness.extend import Observations, RecordTable, e2e, latency


def normalized(table: RecordTable) -> Observations:
    """The whole latency over the answer's length; of one that the server did not count, planned."""
    seen = e2e(table)  # one observation for each request; +inf for a failed one
    counted = table.output_tokens
    planned = np.maximum(table.planned_tokens, 1)
    tokens = np.where(counted > 0, counted, planned)[seen.row]
    return replace(seen, ns=seen.ns / tokens, lo_ns=seen.lo_ns / tokens, hi_ns=seen.hi_ns / tokens)


NORMALIZED = latency(
    "normalized",
    "Normalized",
    "Normalized latency",
    "End-to-end latency divided by the output tokens, one figure per request.",
    normalized,
    headline=True,
)
