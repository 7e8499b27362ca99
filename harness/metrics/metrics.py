"""METRICS: the one table of what is measured. A new latency is a function and a row here.

SLOs, result.json, live figures, Prometheus series, recording rules, panels, the report, the live
page and the pages of docs/ iterate over it. A latency's observations come as `Observations`: their
bounds in ns (equal if the stamp is exact), +inf for failures. The unit is ns in code, ms for
people, and seconds for Prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import totals_before
from harness.entry_points import METRICS as ENTRY_POINTS
from harness.entry_points import entry_points_of, load, origin
from harness.errors import ConfigError
from harness.metrics.event_gaps import Events, TokenGaps, event_gaps, token_gaps
from harness.metrics.own_latencies import check_latency
from harness.records.histogram import bucket_ladder
from harness.records.record_table import DROPPED, OK, RecordTable

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Observations:
    """n observations of one latency in ns; each lies in [lo, hi], equal if the stamp is exact.

    `ns` is the value by the stamps themselves. +inf: the request failed. An open request without an
    answer is [its age, +inf], with its age as `ns`.
    """

    ns: Floats
    lo_ns: Floats
    hi_ns: Floats
    at_ns: Ints  # when it became known; for gaps: when the gap ended
    row: Ints  # the request's row in the table

    @property
    def only_age(self) -> Bools:
        """Observations that are only an age: what they wait for had not happened at the horizon."""
        return np.asarray(np.isfinite(self.ns) & np.isinf(self.hi_ns))


def _per_request(table: RecordTable, ends: Ints, lows: Ints, have: Bools) -> Observations:
    """To an instant in (lows, ends], where `have`; open ones [age, inf], failed inf.

    From sent; in an open loop from the schedule, and how late a request was sent is a doubt too.
    """
    is_open = table.is_open
    begun_ns = table.begun_ns
    known = have & ((table.outcome == OK) | is_open)
    age_ns = np.where(is_open, table.done_ns - begun_ns, np.inf)
    ns = np.where(known, ends - begun_ns, age_ns)
    # A late sender is an error of the instrument: the true latency lies between that from the send
    # and that from the schedule (decision 18).
    shortest_ns = (lows - table.sent_ns).clip(min=0)
    return Observations(
        ns=ns,
        lo_ns=np.where(known, shortest_ns, age_ns),
        hi_ns=np.where(known, ns, np.inf),
        at_ns=np.where(known, ends, table.done_ns),
        row=np.arange(len(table)),
    )


def _to_event(table: RecordTable, index: Ints) -> Observations:
    """To event `index` of each request (-1: it has none)."""
    have = index >= 0
    if not len(table.at_ns):
        return _per_request(table, table.done_ns, table.done_ns, have & False)
    # Index 0 stands in where there is no event: `have` discards what is read there.
    flat = np.where(have, table.offsets[:-1] + index, 0)
    return _per_request(table, table.at_ns[flat], table.not_before_ns[flat], have)


def ttft(table: RecordTable) -> Observations:
    """First token: the first event that carries one, a reasoning token included."""
    return _to_event(table, np.where(table.counts > 0, 0, -1))


def ttfot(table: RecordTable) -> Observations:
    """First token of the answer itself, after any reasoning."""
    reached = table.answer_index < table.counts  # a table cut at a horizon may not hold it yet
    return _to_event(table, np.where(reached, table.answer_index, -1))


def e2e(table: RecordTable) -> Observations:
    """First byte sent to last byte received."""
    return _per_request(table, table.done_ns, table.done_ns, table.outcome == OK)


def tpot(table: RecordTable) -> Observations:
    """(last token - first token) / (tokens after the first event), of each ended request.

    With one token per event that is the field's (last - first) / (output tokens - 1). Requests of
    one event have none and are left out; open ones are not judged before they end.
    """
    failed = failed_requests(table)
    has_tpot = (table.counts > 1) & (table.outcome == OK)
    rows = np.flatnonzero(failed | has_tpot)
    # Without any event all of these failed, and there is nothing that an index could point to.
    if not len(table.at_ns):
        inf = np.full(len(rows), np.inf)
        return Observations(inf, inf, inf, table.done_ns[rows], rows)
    is_failed = failed[rows]
    first, last = _end_events(table, rows)
    tokens_until = totals_before(table.tokens)
    tokens_after_first = tokens_until[last + 1] - tokens_until[first + 1]
    # 1 where a failed request has none: what it is divided by does not matter, as it is infinite.
    later_tokens = np.maximum(tokens_after_first, 1)
    first_at_ns = table.at_ns[first]
    last_at_ns = table.at_ns[last]
    # shortest: the first came at its stamp, and the last as early as it may have
    shortest_ns = (table.not_before_ns[last] - first_at_ns).clip(min=0)
    longest_ns = last_at_ns - table.not_before_ns[first]
    tpot_ns = (last_at_ns - first_at_ns) / later_tokens
    return Observations(
        ns=np.where(is_failed, np.inf, tpot_ns),
        lo_ns=np.where(is_failed, np.inf, shortest_ns / later_tokens),
        hi_ns=np.where(is_failed, np.inf, longest_ns / later_tokens),
        at_ns=table.done_ns[rows],
        row=rows,
    )


def _end_events(table: RecordTable, rows: Ints) -> tuple[Ints, Ints]:
    """The first and the last event of each request; of one that has none, another request's.

    Such a request failed, and is infinite whatever its events say.
    """
    begins = table.offsets[:-1][rows]
    ends = table.offsets[1:][rows]
    last_of_all = len(table.at_ns) - 1
    first = np.minimum(begins, last_of_all)
    last = np.maximum(ends - 1, first)
    return first, last


def tps(table: RecordTable) -> Observations:
    """The inverse of each request's output speed: its TPOT, so that slow is high.

    A speed's lower tail is this one's upper tail, so a speed is counted, judged and decided as any
    latency. A failed request, and one that ended without a token, has a speed of 0: +inf here.
    """
    seen = tpot(table)
    has_no_token = (table.counts == 0) & (table.outcome == OK)
    silent = np.flatnonzero(has_no_token)
    if not len(silent):
        return seen
    inf = np.full(len(silent), np.inf)
    row = np.concatenate([seen.row, silent])
    order = np.argsort(row)  # by request, as in every latency
    return Observations(
        ns=np.concatenate([seen.ns, inf])[order],
        lo_ns=np.concatenate([seen.lo_ns, inf])[order],
        hi_ns=np.concatenate([seen.hi_ns, inf])[order],
        at_ns=table.done_ns[row[order]],
        row=row[order],
    )


def failed_requests(table: RecordTable) -> Bools:
    """Requests that failed; those that the harness itself cut off have not ended."""
    return np.asarray((table.outcome != OK) & ~table.is_open)


def delivered_tokens(table: RecordTable) -> Ints:
    """Of each request, by its events."""
    tokens_until = totals_before(table.tokens)
    return np.diff(tokens_until[table.offsets])


BURST_NS: Final = 100_000  # between two tokens of a stream: faster, and they were collected


def came_at_once(table: RecordTable) -> Floats:
    """1 for each request of whose tokens the last may have come with the first, else 0.

    Of those that succeeded and had more than one token. Where a server or a proxy collects an
    answer before it sends it, its TTFT is its e2e, and nothing says when its first token was made.
    A burst of several reads, faster than any engine makes tokens, is the same.
    """
    tokens = delivered_tokens(table)
    rows = np.flatnonzero((table.outcome == OK) & (tokens > 1))
    first, last = _end_events(table, rows)
    later_tokens = tokens[rows] - table.tokens[first]
    span_ns = table.at_ns[last] - table.at_ns[first]
    is_burst = span_ns < BURST_NS * later_tokens
    perhaps_with_first = table.not_before_ns[last] <= table.at_ns[first]
    return np.asarray(is_burst | perhaps_with_first, np.float64)


def lost_gaps(table: RecordTable) -> tuple[Ints, Ints]:
    """(rows of failed requests, how many gaps each did not deliver), if at least one.

    They count when the request failed.
    """
    rows = np.flatnonzero(failed_requests(table))
    if not len(rows):  # the usual case: no event needs to be counted
        return rows, rows
    # Each token that did not arrive is an infinite gap, so that shedding load never looks fast. The
    # first token ends no gap.
    without_gap = np.maximum(delivered_tokens(table), 1)
    lost = (table.planned_tokens - without_gap)[rows]
    return rows[lost > 0], lost[lost > 0]


def pooled(table: RecordTable, gaps: Callable[[Events], TokenGaps]) -> Observations:
    """Every gap of every request, plus one +inf gap for each token not delivered.

    A gap counts when it ends.
    """
    if not table.whole:
        raise ValueError("a thinned-out table has no gaps: use the chunks of what it was made from")
    came = gaps(table)
    failed_rows, lost = lost_gaps(table)
    row_of_lost = np.repeat(failed_rows, lost)
    row_of_came = table.request_of_event[came.end]
    lost_at_ns = table.done_ns[row_of_lost]
    inf = np.full(len(row_of_lost), np.inf)
    return Observations(
        ns=np.concatenate([came.ns, inf]),
        lo_ns=np.concatenate([came.min_ns, inf]),
        hi_ns=np.concatenate([came.max_ns, inf]),
        at_ns=np.concatenate([came.at_ns, lost_at_ns]),
        row=np.concatenate([row_of_came, row_of_lost]),
    )


def itl(table: RecordTable) -> Observations:
    """The gaps between token-bearing events."""
    return pooled(table, event_gaps)


def itl_per_token(table: RecordTable) -> Observations:
    """The gaps between tokens."""
    return pooled(table, token_gaps)


def schedule_lag(table: RecordTable) -> Observations:
    """From when a request was scheduled to when it was sent, of those that have a schedule."""
    sent = (table.scheduled_ns >= 0) & (table.outcome != DROPPED)
    rows = np.flatnonzero(sent)
    late_ns = table.sent_ns - table.scheduled_ns
    ns = late_ns[rows].astype(float)
    return Observations(ns, ns, ns, table.sent_ns[rows], rows)


def from_send(observe: Callable[[RecordTable], Observations]) -> Callable[..., Observations]:
    """The same latency from the first byte sent, of the requests that have a schedule."""

    def observe_from_send(table: RecordTable) -> Observations:
        rows = np.flatnonzero(table.scheduled_ns >= 0)
        scheduled = table.select(table.scheduled_ns >= 0)
        # as if it had no schedule: then a latency begins with the first byte
        no_schedule = np.full(len(scheduled), -1)
        seen = observe(replace(scheduled, scheduled_ns=no_schedule))
        return replace(seen, row=rows[seen.row])

    return observe_from_send


@dataclass(frozen=True, slots=True)
class Metric:
    key: str  # `ttft`: in SLOs; `<key>_ms` in JSON
    name: str  # for people, in a word: TTFT
    title: str
    definition: str
    prometheus: str  # base unit, prefix harness_
    unit: str  # for people

    @property
    def field(self) -> str:
        """Its name in JSON."""
        return f"{self.key}_ms" if self.unit == "ms" else self.key


@dataclass(frozen=True, slots=True)
class LatencyMetric(Metric):
    """A latency with one observation per request or, with `gaps`, per gap between tokens."""

    observe: Callable[[RecordTable], Observations]
    gaps: Callable[[Events], TokenGaps] | None = None  # `observe` pools these over requests
    slo: bool = True  # promised by SLOs
    scheduled: bool = False  # only of requests with a schedule
    speed: bool = False  # for people its inverse, in tokens/s: more is better
    judged_by: str = ""  # the latency that a single request is judged by, in goodput; "": this one
    buckets_s: tuple[float, ...] = ()  # of its Prometheus histogram; (): it has none
    counted: str = ""  # when an observation is counted there
    early: bool = False  # it is counted when the first token arrives, others when a request ends
    at_age: bool = False  # of what the harness cut off it is the age, of others nothing is known
    live: bool = False  # the live page draws it against time
    headline: bool = False  # its p95 is in cards, level tables and the terminal
    high: str = ""  # where to look when it is high
    of_level: str = ""  # what it is, in docs/result.md; "": its title
    of_request: str = ""  # what it is, in docs/run-folder.md; "": its title
    first_token: bool = False  # to a first token: not known where all tokens come at once
    whole: bool = False  # from the request's begin: a backlog, queue and prompt are in it

    @property
    def title_inside(self) -> str:
        """Its title within a sentence."""
        return self.title[:1].lower() + self.title[1:]

    @property
    def level_text(self) -> str:
        """What it is, in docs/result.md."""
        text = self.of_level or self.title_inside
        return f"open loop: {text}" if self.scheduled else text

    @property
    def request_text(self) -> str:
        """What it is, in docs/run-folder.md."""
        return self.of_request or self.title_inside


# Ten buckets per decade, from a small model's gap to a long answer: a quantile read from them is
# known within a third at worst. Common limits (50 ms, 200 ms, 500 ms, 2 s) are bounds, so that
# the share over them is exact.
GAP_S: Final = bucket_ladder(500, 10_000_000)
KEY: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
AT_END: Final = "Counted when the request ends; +Inf when it fails."

_OWN: Final[dict[str, Metric]] = {
    m.key: m
    for m in (
        LatencyMetric(
            "ttft",
            "TTFT",
            "Time to first token",
            "From the instant the request's first byte goes to the kernel on an open connection, "
            "or in an open loop from the instant at which it was due, to the arrival of the first "
            "event that carries a token (non-empty content, text, reasoning or tool-call delta). A "
            "role-only or empty event is not a token.",
            "harness_ttft_seconds",
            "ms",
            ttft,
            buckets_s=bucket_ladder(2_000, 200_000_000),
            counted="Counted when the first token arrives; a request that fails without one counts "
            "as +Inf.",
            early=True,
            live=True,
            headline=True,
            high="p99 far above p95: bursts of prompts; see TTFT split. A second band far up: some "
            "requests wait for a slot; see waiting in Server.",
            first_token=True,
            whole=True,
        ),
        LatencyMetric(
            "ttfot",
            "TTFOT",
            "Time to first output token",
            "As TTFT, to the first token that is not reasoning.",
            "harness_ttfot_seconds",
            "ms",
            ttfot,
            of_level="time to the first token of the answer",
            of_request="to the first token that is not reasoning",
            first_token=True,
            whole=True,
        ),
        LatencyMetric(
            "itl",
            "ITL",
            "Inter-token latency",
            "Each gap between two consecutive token-bearing events of a request, pooled over "
            "requests; it counts in the level in which it ends. A failed request adds one infinite "
            "gap for each planned token that it did not deliver.",
            "harness_itl_seconds",
            "ms",
            itl,
            event_gaps,
            judged_by="tpot",
            buckets_s=GAP_S,
            counted="Counted when the gap ends; a failed request adds +Inf for each planned token "
            "that it did not deliver.",
            live=True,
            headline=True,
            high="p99 far above p95, or a thin band far up: prompts share steps with decoding, or "
            "preemptions; see Server. Lowering --max-num-batched-tokens shortens such steps.",
            of_level="inter-token latency, per event",
        ),
        LatencyMetric(
            "itl_per_token",
            "ITL per token",
            "Inter-token latency per token",
            "As ITL, with a gap that k tokens end (speculative decoding, --stream-interval) as k "
            "gaps of a k-th of it: ITL is what a reader sees, this how fast tokens are made.",
            "harness_itl_per_token_seconds",
            "ms",
            itl_per_token,
            token_gaps,
            judged_by="tpot",
            buckets_s=GAP_S,
            counted="Counted as ITL.",
            high="It rises with the batch, as ITL. Far below ITL: events carry several tokens.",
            of_level="inter-token latency, per token",
        ),
        LatencyMetric(
            "tpot",
            "TPOT",
            "Time per output token",
            "(last token - first token) / (output tokens - 1), one figure per request.",
            "harness_tpot_seconds",
            "ms",
            tpot,
            buckets_s=GAP_S,
            counted=AT_END,
            live=True,
            high="It rises with the batch: compare with running in Server. Wide: some requests "
            "were preempted.",
            of_request="time per output token after the first; null if it is `open`",
        ),
        LatencyMetric(
            "tps",
            "TPS",
            "Output speed per request",
            "(output tokens - 1) / (last token - first token), the inverse of TPOT, one figure per "
            "request. More is better: an SLO is on the lower tail, `tps_p5=30` means that 95% of "
            "the requests have at least 30 tokens/s. A failed request, and one that ended without "
            "a token, counts as 0; one whose tokens came in a single event has none.",
            "harness_tpot_seconds",
            "tokens/s",
            tps,
            speed=True,
            of_level="output speed per request, tokens/s",
        ),
        LatencyMetric(
            "e2e",
            "e2e",
            "End-to-end latency",
            "From the first byte sent, or in an open loop from when the request was due, to the "
            "last byte received. In a closed loop connecting is measured apart.",
            "harness_e2e_seconds",
            "ms",
            e2e,
            buckets_s=bucket_ladder(20_000, 1_000_000_000),
            counted=AT_END,
            at_age=True,
            high="Dominated by output length: compare like with like; bands are lengths of "
            "answers, see the workload.",
            of_request="end-to-end latency; its age if it is `open`",
            whole=True,
        ),
        LatencyMetric(
            "schedule_lag",
            "schedule lag",
            "Schedule lag",
            "How much later than scheduled a request was sent; only for runs with a schedule.",
            "harness_schedule_lag_seconds",
            "ms",
            schedule_lag,
            slo=False,
            scheduled=True,
            buckets_s=bucket_ladder(100, 10_000_000),
            counted="How much later than scheduled it was sent; only for runs with a schedule.",
            of_level="from due to sent; null: closed loop",
        ),
        LatencyMetric(
            "ttft_from_send",
            "TTFT from send",
            "Time to first token from the send",
            "As TTFT, from the request's first byte; only for runs with a schedule.",
            "",
            "ms",
            from_send(ttft),
            slo=False,
            scheduled=True,
            of_level="TTFT from the first byte sent",
        ),
        LatencyMetric(
            "e2e_from_send",
            "e2e from send",
            "End-to-end latency from the send",
            "As e2e, from the request's first byte; only for runs with a schedule.",
            "",
            "ms",
            from_send(e2e),
            slo=False,
            scheduled=True,
            at_age=True,
            of_level="e2e from the first byte sent",
        ),
        Metric(
            "output_tokens_per_s",
            "output tokens/s",
            "Output token throughput",
            "Tokens that arrived in the level's window, divided by the window; not the tokens of "
            "the requests that finished in it.",
            "harness_output_tokens_total",
            "tokens/s",
        ),
        Metric(
            "requests_per_s",
            "requests/s",
            "Request throughput",
            "Requests that succeeded in the level's window, divided by the window; in an open loop "
            "the requests that were sent in it.",
            "harness_requests_total",
            "1/s",
        ),
        Metric(
            "goodput_per_s",
            "goodput",
            "Goodput",
            "Requests per second that meet every SLO, judged per request: its TTFT, its own TPOT "
            "(for an ITL or TPOT SLO), its end-to-end latency.",
            "harness_good_requests_total",
            "1/s",
        ),
    )
}


def _installed() -> dict[str, Metric]:
    """The latencies that installed packages add. Raises ConfigError for one that cannot be kept."""
    added: dict[str, Metric] = {}
    for key in entry_points_of(ENTRY_POINTS):
        found = load(ENTRY_POINTS, key)
        whose = origin(ENTRY_POINTS, key)
        if not isinstance(found, LatencyMetric) or found.gaps is not None or found.unit != "ms":
            raise ConfigError(
                f"{whose} is {type(found).__name__}: expected a latency of requests, in ms; try "
                "harness.extend.latency(...)."
            )
        if found.key != key or key in _OWN or not KEY.fullmatch(key):
            raise ConfigError(
                f"{whose} has the key {found.key!r}: expected the entry point's name, of a-z, 0-9 "
                f"and single _, which is none of {', '.join(_OWN)}; try another name for both."
            )
        check_latency(found.observe, whose)
        added[key] = found
    return added


METRICS: Final[dict[str, Metric]] = _OWN | _installed()
ALL_LATENCIES: Final = {k: m for k, m in METRICS.items() if isinstance(m, LatencyMetric)}
SLO_METRICS: Final = {k: m for k, m in ALL_LATENCIES.items() if m.slo}
LATENCIES: Final = {k: m for k, m in SLO_METRICS.items() if not m.speed}  # in ms
SCHEDULED: Final = {k: m for k, m in ALL_LATENCIES.items() if m.scheduled}
SPEEDS: Final = {k: m for k, m in SLO_METRICS.items() if m.speed}
GAPS: Final = {k: m.gaps for k, m in ALL_LATENCIES.items() if m.gaps is not None}
HEADLINES: Final = {k: m.name for k, m in LATENCIES.items() if m.headline}
FIRST_TOKENS: Final = tuple(k for k, m in LATENCIES.items() if m.first_token)
WHOLE: Final = tuple(k for k, m in LATENCIES.items() if m.whole)
HISTOGRAMS: Final = {k: m for k, m in ALL_LATENCIES.items() if m.buckets_s}
