"""What a client read against what was sent, and what that cost: one row of the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from sent import NOBODY, sender_ids

if TYPE_CHECKING:
    from clients import Read
    from numpy.typing import NDArray
    from sent import Sent
    from watch import Memory

    from harness.records.record_table import RecordTable

    Ints = NDArray[np.int64]

QUANTILES: Final = (0.5, 0.95, 0.99)
SHARE: Final = 0.01
TTFT_MS, ITL_MS = 0.5, 0.1  # or a hundredth of what was sent, whichever is more
SLACK_NS: Final = 50_000  # two clocks are compared, each read on its own
TAIL_NS: Final = 10**9  # what a client does after the last event belongs to the load for so long
APART_NS: Final = 500_000_000  # at most, between a request's leaving and arriving on one machine
BUSY: Final = 0.1  # processors; above, others disturbed the cell


Range = tuple[float, float]  # at least, at most


@dataclass(slots=True)
class Latency:
    """p50, p95 and p99 of one latency, ms."""

    read: list[float] = field(default_factory=list)
    said: list[Range] = field(default_factory=list)  # the client's own bounds, where it has any
    sent: list[Range] = field(default_factory=list)  # by the clock before and after each send
    # "": near enough; "?": not, but within the client's own bounds; "!": wrong
    marks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """One client in one cell. Times in ms, CPU in microseconds per token."""

    client: str
    tokens: int = 0
    tokens_per_s: float = 0.0
    ttft: Latency = field(default_factory=Latency)
    itl: Latency = field(default_factory=Latency)
    later_ttft: Latency = field(default_factory=Latency)  # without each stream's first request
    cpu_us: dict[str, float] = field(default_factory=dict)  # by kind of process
    server_us: float = 0.0
    ratio: float = 0.0  # of its CPU per token to the C client's
    exact: float | None = None  # share of events with an exact time
    off: int | None = None  # events whose interval misses the send
    events: int = 0
    others: float = 0.0  # processors that others kept busy
    memory_mb: dict[str, Memory] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def cost_us(self) -> float:
        """CPU of all client processes together, per token."""
        return sum(self.cpu_us.values())

    @property
    def misses(self) -> list[str]:
        """The quantiles that are further from what was sent than they may be, `?` as in Latency."""
        return [
            f"{name} {label}{'' if how == '!' else how}"
            for name, marks in (("TTFT", self.ttft.marks), ("ITL", self.itl.marks))
            for label, how in zip(("p50", "p95", "p99"), marks, strict=False)
            if how
        ]


def quantiles_ms(values: Ints) -> list[float]:
    """p50, p95, p99; nothing of nothing."""
    if not len(values):
        return []
    return [round(float(q) / 1e6, 4) for q in np.quantile(values, QUANTILES)]


def ranges_ms(values: tuple[Ints, Ints] | None) -> list[Range]:
    """The quantiles of both."""
    return list(zip(*map(quantiles_ms, values), strict=True)) if values else []


def latency(
    read: Ints | None, bounds: tuple[Ints, Ints] | None, sent: tuple[Ints, Ints], least_ms: float
) -> Latency:
    """Compare three quantiles."""
    got = [] if read is None else quantiles_ms(read)
    said, want = ranges_ms(bounds), ranges_ms(sent)
    claims = said or [(value, value) for value in got]
    marks = [
        "" if near((g, g), w, least_ms) else "?" if near(claim, w, least_ms) else "!"
        for g, claim, w in zip(got, claims, want, strict=False)
    ]
    return Latency(got, said, want, marks)


def near(claim: Range, want: Range, least_ms: float) -> bool:
    """Whether a claim comes within `least_ms` or a hundredth of what was sent."""
    return max(want[0] - claim[1], claim[0] - want[1]) <= max(least_ms, SHARE * want[0])


def row_of(client: str, read: Read, sent: Sent, streams: int = 0) -> Row:
    """Compare. The load lasts from the first arrival to the end of what it makes a client do.

    The first requests, one of each of so many `streams`, wait for their connections, too.
    """
    row = Row(client, tokens=int(sent.tokens.sum()), notes=[read.note] if read.note else [])
    if not row.tokens:
        row.notes.append("nothing was sent")
        return row
    begin, last = int(sent.arrived_ns.min()), int(sent.after_ns.max())
    end = read.watch.ended_ns("reader") or last + TAIL_NS
    row.tokens_per_s = row.tokens / (last - begin) * 1e9
    row.ttft = latency(read.ttft_ns, read.ttft_bounds, sent.ttft_ns(), TTFT_MS)
    row.itl = latency(read.itl_ns, read.itl_bounds, sent.itl_ns(), ITL_MS)
    if streams and read.ttft_ns is not None:
        low_ns, high_ns = sent.ttft_ns()
        later_sent_ns = low_ns[streams:], high_ns[streams:]
        row.later_ttft = latency(read.ttft_ns[streams:], None, later_sent_ns, TTFT_MS)
    used = read.watch.cpu(begin, end)
    if read.cpu_s >= 0:
        used["client"] = read.cpu_s
    row.cpu_us = {
        kind: round(seconds / row.tokens * 1e6, 3)
        for kind, seconds in used.items()
        if kind not in ("server", "bench")
    }
    row.server_us = round(used.get("server", 0.0) / row.tokens * 1e6, 3)
    row.others = round(read.watch.others(begin, last), 3)
    row.memory_mb = read.watch.memory_mb(begin, end)
    if sent.stalled:
        row.notes.append(f"{sent.stalled} sends met a full socket")
    if read.table is not None:
        _match(row, read.table, sent)
    return row


def _match(row: Row, table: RecordTable, sent: Sent) -> None:
    """Every event's interval against the clock around its send."""
    if len(table) != len(sent.arrived_ns):
        row.notes.append(f"{len(table)} requests read, {len(sent.arrived_ns)} sent")
    pairs = by_id(table, sent) if (sent.senders != NOBODY).all() else by_order(table, sent)
    if pairs is None:
        return
    read_rows, sent_rows = pairs
    counts = sent.counts[sent_rows]
    apart = sent.arrived_ns[sent_rows] - table.sent_ns[read_rows]
    if np.any(table.counts[read_rows] != counts) or np.any(np.abs(apart) > APART_NS):
        row.notes.append("requests or events do not match what was sent")
        return
    read_events = events_of(table.offsets[read_rows], counts)
    sent_events = events_of(sent.firsts[sent_rows], counts)
    at, low = table.at_ns[read_events], table.not_before_ns[read_events]
    too_early = at < sent.before_ns[sent_events] - SLACK_NS
    too_late = low > sent.after_ns[sent_events] + SLACK_NS
    row.events = len(at)
    row.off = int((too_early | too_late).sum())
    row.exact = round(float((at == low).mean()), 5) if len(at) else None


def by_id(table: RecordTable, sent: Sent) -> tuple[Ints, Ints]:
    """(rows of the table, rows of what was sent): those that have the same id."""
    read_ids = sender_ids(table.worker, table.number)
    _, read_rows, sent_rows = np.intersect1d(read_ids, sent.senders, return_indices=True)
    return read_rows, sent_rows


def by_order(table: RecordTable, sent: Sent) -> tuple[Ints, Ints] | None:
    """The same where the server knows no ids: two that arrived almost at once may be swapped."""
    if len(table) != len(sent.arrived_ns):
        return None
    return np.argsort(table.sent_ns, kind="stable"), np.arange(len(sent.arrived_ns))


def events_of(firsts: Ints, counts: Ints) -> Ints:
    """Indices of all events of requests whose first ones are these."""
    begins = np.cumsum(counts) - counts
    return np.repeat(firsts - begins, counts) + np.arange(int(counts.sum()))
