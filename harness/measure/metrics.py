"""METRICS: the one table of what is measured, from which docs, names and columns are made.

A latency's observations come as `Observed`: low and high ends in ns (equal when the stamp is
exact), +inf for what failed. The unit is ns in code, ms for people, seconds for Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.table import OK, RecordTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Observed:
    """n observations of one latency, in ns; each lies in [lo, hi], equal where the stamp is exact.

    `ns` is the figure by the stamps themselves. +inf: the request failed. A request still open and
    without an answer is [its age, +inf], its `ns` the age.
    """

    ns: Floats
    lo_ns: Floats
    hi_ns: Floats
    at_ns: Ints  # when it became known; for gaps: when the gap ended
    row: Ints  # the request's row in the table

    @property
    def only_age(self) -> Bools:
        """Where what is observed had not come when the request was last looked at."""
        return np.asarray(np.isfinite(self.ns) & np.isinf(self.hi_ns))


def _per_request(table: RecordTable, ends: Ints, lows: Ints, have: Bools) -> Observed:
    """From sent to an instant in (lows, ends], where `have`; open ones [age, inf], failed inf."""
    is_open = table.is_open
    known = have & ((table.outcome == OK) | is_open)
    age = np.where(is_open, table.done_ns - table.sent_ns, np.inf)
    ns = np.where(known, ends - table.sent_ns, age)
    lo = np.where(known, (lows - table.sent_ns).clip(min=0), age)
    hi = np.where(known, ns, np.inf)
    return Observed(ns, lo, hi, np.where(known, ends, table.done_ns), np.arange(len(table)))


def _to_event(table: RecordTable, index: Ints) -> Observed:
    """From sent to event `index` of each request (-1: it has none)."""
    have = index >= 0
    if not len(table.at_ns):
        return _per_request(table, table.done_ns, table.done_ns, have & False)
    flat = np.where(have, table.offsets[:-1] + index, 0)
    return _per_request(table, table.at_ns[flat], table.not_before_ns[flat], have)


def ttft(table: RecordTable) -> Observed:
    """First token: the first event that carries one, a reasoning token included."""
    return _to_event(table, np.where(table.counts > 0, 0, -1))


def ttfot(table: RecordTable) -> Observed:
    """First token of the answer itself, after any reasoning."""
    reached = table.answer_index < table.counts  # a table cut at a horizon may not hold it yet
    return _to_event(table, np.where(reached, table.answer_index, -1))


def e2e(table: RecordTable) -> Observed:
    """First byte sent to last byte received."""
    return _per_request(table, table.done_ns, table.done_ns, table.outcome == OK)


def tpot(table: RecordTable) -> Observed:
    """(last token - first token) / (tokens after the first event), of each ended request.

    With one token per event that is the field's (last - first) / (output tokens - 1). Requests of
    one event have none and are left out; open ones are not judged before they end.
    """
    bad = failed(table)
    rows = np.flatnonzero(bad | ((table.counts > 1) & (table.outcome == OK)))
    if not len(table.at_ns):
        inf = np.full(len(rows), np.inf)
        return Observed(inf, inf, inf, table.done_ns[rows], rows)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(table.tokens)])
    first = np.minimum(table.offsets[:-1][rows], len(table.at_ns) - 1)
    last = np.maximum(table.offsets[1:][rows] - 1, first)
    tokens = np.maximum(total[last + 1] - total[first + 1], 1)
    at, low, inf_where = table.at_ns, table.not_before_ns, bad[rows]
    ns, lo, hi = (
        np.where(inf_where, np.inf, span / tokens)
        for span in (
            at[last] - at[first],
            (low[last] - at[first]).clip(min=0),
            at[last] - low[first],
        )
    )
    return Observed(ns, lo, hi, table.done_ns[rows], rows)


def failed(table: RecordTable) -> Bools:
    """Requests that ended in any way but well; what the harness itself cut off has not ended."""
    return np.asarray((table.outcome != OK) & ~table.is_open)


def inner_events(table: RecordTable) -> Ints:
    """Flat indices of the events that end a gap: all but each request's first."""
    inner = np.ones(len(table.at_ns), bool)
    inner[table.offsets[:-1][table.counts > 0]] = False
    return np.flatnonzero(inner)


def delivered_tokens(table: RecordTable) -> Ints:
    """Tokens that arrived, per request."""
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(table.tokens)])
    return np.asarray(np.diff(total[table.offsets]))


def lost_gaps(table: RecordTable) -> tuple[Ints, Ints]:
    """(rows of failed requests, the gaps that each did not deliver, of which there is one or more).

    They count when the request failed.
    """
    rows = np.flatnonzero(failed(table))
    if not len(rows):  # nearly always: no event needs to be counted
        return rows, rows
    owed = (table.planned_tokens - np.maximum(delivered_tokens(table), 1))[rows]
    return rows[owed > 0], owed[owed > 0]


def itl(table: RecordTable) -> Observed:
    """Each gap between token-bearing events, plus one +inf gap for each token not delivered.

    A gap counts when it ends. For events that carry several tokens this is the gap per event.
    """
    if not table.whole:
        raise ValueError("a thin table has no gaps: go through the chunks of what it was made of")
    end = inner_events(table)
    at, low = table.at_ns, table.not_before_ns
    lost = np.repeat(*lost_gaps(table))
    inf = np.full(len(lost), np.inf)
    return Observed(
        ns=np.concatenate([at[end] - at[end - 1], inf]),
        lo_ns=np.concatenate([(low[end] - at[end - 1]).clip(min=0), inf]),
        hi_ns=np.concatenate([at[end] - low[end - 1], inf]),
        at_ns=np.concatenate([at[end], table.done_ns[lost]]),
        row=np.concatenate([table.request_of_event[end], lost]),
    )


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
