"""METRICS: the one table of what is measured, from which docs, names and columns are made.

A latency's observations come as `Observed`: low and high ends in ns (equal when the stamp is
exact), +inf for what failed. The unit is ns in code, ms for people, seconds for Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.table import OK, OPEN, RecordTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Observed:
    """n observations of one latency: each lies in [lo_ns, hi_ns] and became known at `at_ns`.

    `row` is the request's row in the table. An unanswered open request is [its age, +inf].
    """

    lo_ns: Floats
    hi_ns: Floats
    at_ns: Ints
    row: Ints

    @property
    def mid_ns(self) -> Floats:
        """The point that is reported: the stamp itself, that is, the high end (a floor of error
        is in lo).
        """
        return self.hi_ns


def _per_request(
    table: RecordTable, lo: Floats, hi: Floats, at: Ints, have: NDArray[np.bool_]
) -> Observed:
    """Fill in what is missing: open ones [age, inf], failed ones +inf; `have` are measured."""
    is_open = table.outcome == OPEN
    age = (table.done_ns - table.sent_ns).astype(np.float64)
    ok = have & ((table.outcome == OK) | is_open)
    lo = np.where(ok, lo, np.where(is_open, age, np.inf))
    hi = np.where(ok, hi, np.inf)
    at = np.where(ok, at, table.done_ns)
    return Observed(lo, hi, at, np.arange(len(table)))


def _event_latency(table: RecordTable, index: Ints) -> Observed:
    """From sent to event `index` of each request (-1: none)."""
    have = index >= 0
    if len(table.at_ns) == 0:
        zero = np.zeros(len(table))
        return _per_request(table, zero, zero, table.done_ns, np.zeros(len(table), bool))
    flat = np.where(have, table.offsets[:-1] + np.maximum(index, 0), 0)
    flat = np.minimum(flat, len(table.at_ns) - 1)
    at, low = table.at_ns[flat], table.not_before_ns[flat]
    lo = (low - table.sent_ns).clip(min=0).astype(np.float64)
    return _per_request(table, lo, (at - table.sent_ns).astype(np.float64), at, have)


def ttft(table: RecordTable) -> Observed:
    """First token: the first event that carries one, a reasoning token included."""
    return _event_latency(table, np.where(table.counts > 0, 0, -1))


def ttfot(table: RecordTable) -> Observed:
    """First token of the answer itself, after any reasoning."""
    return _event_latency(
        table, np.where(table.answer_index < table.counts, table.answer_index, -1)
    )


def e2e(table: RecordTable) -> Observed:
    """First byte sent to last byte received."""
    took = (table.done_ns - table.sent_ns).astype(np.float64)
    return _per_request(table, took, took, table.done_ns, table.outcome == OK)


def _ends(table: RecordTable) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Flat index of first and last event per request, and which requests have at least two."""
    many = table.counts > 1
    first = np.where(many, table.offsets[:-1], 0)
    last = np.where(many, table.offsets[1:] - 1, 0)
    return first, last, many


def tpot(table: RecordTable) -> Observed:
    """(last token - first token) / (tokens - those of the first event), of each ended request.

    With one token per event that is the field's (last - first) / (output tokens - 1).
    Requests of one event have none and are left out; open ones are not judged before they end.
    """
    first, last, many = _ends(table)
    failed = (table.outcome != OK) & (table.outcome != OPEN)
    ended = (many & (table.outcome == OK)) | failed
    if len(table.at_ns) == 0:
        inf = np.full(int(failed.sum()), np.inf)
        return Observed(inf, inf, table.done_ns[failed], np.flatnonzero(failed))
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(table.tokens)])
    steps = np.maximum(total[table.offsets[1:]] - total[np.minimum(first + 1, len(total) - 1)], 1)
    lo = (table.not_before_ns[last] - table.at_ns[first]).clip(min=0) / steps
    hi = (table.at_ns[last] - table.not_before_ns[first]) / steps
    lo, hi = np.where(failed, np.inf, lo), np.where(failed, np.inf, hi)
    rows = np.flatnonzero(ended)
    return Observed(lo[ended], hi[ended], table.done_ns[ended], rows)


def itl(table: RecordTable) -> Observed:
    """Each gap between token-bearing events, plus one +inf gap for each token not delivered.

    A gap counts when it ends. For events that carry several tokens this is the gap per event.
    """
    rows = table.request_of_event
    inner = np.ones(len(rows), bool)
    inner[table.offsets[:-1][table.counts > 0]] = False
    end = np.flatnonzero(inner)
    lo = (table.not_before_ns[end] - table.at_ns[end - 1]).clip(min=0)
    hi = table.at_ns[end] - table.not_before_ns[end - 1]
    failed = (table.outcome != OK) & (table.outcome != OPEN)
    got = np.add.reduceat(np.append(table.tokens, 0), table.offsets[:-1]) if len(table) else lo
    got = np.where(table.counts > 0, got, 0)
    missing = np.where(failed, np.maximum(table.planned_tokens - np.maximum(got, 1), 0), 0)
    lost = np.repeat(np.arange(len(table)), missing)
    inf = np.full(len(lost), np.inf)
    return Observed(
        np.concatenate([lo.astype(np.float64), inf]),
        np.concatenate([hi.astype(np.float64), inf]),
        np.concatenate([table.at_ns[end], table.done_ns[lost]]),
        np.concatenate([rows[end], lost]),
    )


def gap_points(table: RecordTable) -> Floats:
    """Stamp-to-stamp gaps in ns, failures left out: for pictures."""
    gaps = np.diff(table.at_ns)
    inner = np.ones(len(table.at_ns), bool)
    inner[table.offsets[:-1][table.counts > 0]] = False
    return gaps[inner[1:]].astype(np.float64)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of METRICS."""

    key: str  # `ttft`: in SLOs; `<key>_ms` in JSON
    title: str
    definition: str
    prometheus: str  # base unit, prefix harness_
    unit: str  # for people
    observe: Callable[[RecordTable], Observed] | None = None


METRICS: Final[dict[str, Metric]] = {
    m.key: m
    for m in (
        Metric(
            "ttft", "Time to first token",
            "From the instant the request's first byte goes to the kernel on an open connection to "
            "the arrival of the first event that carries a token (non-empty content, text, "
            "reasoning or tool-call delta). A role-only or empty event is not a token.",
            "harness_ttft_seconds", "ms", ttft,
        ),
        Metric(
            "ttfot", "Time to first output token",
            "As TTFT, to the first token that is not reasoning.",
            "harness_ttfot_seconds", "ms", ttfot,
        ),
        Metric(
            "itl", "Inter-token latency",
            "Each gap between two consecutive token-bearing events of a request, pooled over "
            "requests; it counts in the step in which it ends. A failed request adds one +infinity "
            "gap for each planned token that it did not deliver.",
            "harness_itl_seconds", "ms", itl,
        ),
        Metric(
            "tpot", "Time per output token",
            "(last token - first token) / (output tokens - 1), one figure per request.",
            "harness_tpot_seconds", "ms", tpot,
        ),
        Metric(
            "e2e", "End-to-end latency",
            "From the first byte sent to the last byte received; connecting is measured apart.",
            "harness_e2e_seconds", "ms", e2e,
        ),
        Metric(
            "output_tokens_per_s", "Output token throughput",
            "Tokens that arrived in the step's window, divided by the window; not the tokens of "
            "the requests that finished in it.",
            "harness_output_tokens_total", "tokens/s",
        ),
        Metric(
            "requests_per_s", "Request throughput",
            "Requests that ended well in the step's window, divided by the window.",
            "harness_requests_total", "1/s",
        ),
        Metric(
            "goodput_per_s", "Goodput",
            "Requests per second that meet every SLO, judged per request: its TTFT, its own TPOT "
            "(for an ITL or TPOT SLO), its end-to-end latency.",
            "harness_good_requests_total", "1/s",
        ),
    )
}  # fmt: skip
