"""Our figures and those that a tool of COMPAT would give of the same requests, row by row.

In: what was recorded and the windows of a level; out: plain JSON rows, latencies in ms. Theirs are
of the requests that were sent in the windows and ended well (gaps and throughput: ended in them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.compat.definitions import COMPAT, STEP_RULE, Definition, Tool
from harness.metrics.latency_figures import LatencyFigures, blocked_windows, json_ms, sample_figures
from harness.metrics.log_histogram import LogHistogram, duration_bin
from harness.metrics.metrics import GAPS, METRICS, delivered_tokens
from harness.metrics.scan import EventChunk, EventVisitor, within_window
from harness.metrics.token_gaps import pool_gaps
from harness.metrics.window_summary import WindowTokens
from harness.records.record_table import OK, RecordTable
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Floats, Ints
    from harness.metrics.evidence import Window

    Windows = Sequence[tuple[int, int]]

Json = dict[str, Any]
STATISTICS: Final = {"mean": -1.0, "p50": 0.5, "p95": 0.95, "p99": 0.99}
NO_INSTANT: Final = -1  # an instant that a request does not have
SAME_RTOL: Final = 5e-4  # relative: what three digits hardly show is no difference
OLD_RECORDS: Final = (
    "these records do not say when chunks without text came: the first and the last token stand "
    "for the first and the last chunk"
)


class WeightedValues(NamedTuple):
    """n observations, ns, each with its weight."""

    ns: Floats
    weight: Floats

    def statistic(self, q: float, rule: str) -> float:
        """The weighted mean (q below 0) or a quantile by the tool's rule; NaN without any."""
        order = np.argsort(self.ns, kind="stable")
        ns, upto = self.ns[order], np.cumsum(self.weight[order])
        if not self.weight.sum() > 0:
            return math.nan
        if q < 0:
            return float((self.ns * self.weight).sum() / upto[-1])
        if rule == STEP_RULE:
            return float(ns[min(int(np.searchsorted(upto / upto[-1], q)), len(ns) - 1)])
        # linear between two neighbors: a value that weighs k is k values
        rank = q * (upto[-1] - 1)
        places = np.searchsorted(upto, [int(rank), min(int(rank) + 1, upto[-1] - 1)], "right")
        low, high = ns[places]
        return float(low + (high - low) * (rank % 1))


def concat_values(parts: Sequence[WeightedValues]) -> WeightedValues:
    none = WeightedValues(np.zeros(0), np.zeros(0))
    return WeightedValues(*map(np.concatenate, zip(none, *parts, strict=True)))


def output_tokens(table: RecordTable) -> Ints:
    """As the server counted them, else as many as arrived."""
    return np.where(table.output_tokens >= 0, table.output_tokens, delivered_tokens(table))


def instants_of(table: RecordTable, connect_ns: int = 0) -> dict[str, Ints]:
    """The instants that definitions run between, per request; MISSING where it has none.

    `connect_ns`: what an own connection costs a request that was sent on a kept one.
    """
    some = table.counts > 0
    flat = table.at_ns if len(table.at_ns) else np.zeros(1, np.int64)
    first = np.where(some, flat[np.minimum(table.offsets[:-1], len(flat) - 1)], NO_INSTANT)
    last = np.where(some, flat[np.maximum(table.offsets[1:] - 1, 0)], NO_INSTANT)
    own = np.where(table.connect_ns > 0, table.connect_ns, connect_ns)
    return {
        "connect": table.sent_ns - table.connect_ns,
        "own connect": table.sent_ns - own,
        "sent": table.sent_ns,
        "first chunk": np.where(table.first_event_ns >= 0, table.first_event_ns, first),
        "first token": first,
        "last token": last,
        "last chunk": np.maximum(last, table.last_silent_ns),
        "done": table.done_ns,
    }


def values_of(d: Definition, table: RecordTable, connect_ns: int) -> WeightedValues:
    """What a definition makes of each request that has both of its instants."""
    at = instants_of(table, connect_ns)
    tokens = output_tokens(table)
    parts = {"request": np.ones_like(tokens), "token": tokens, "later token": tokens - 1}[d.per]
    have = (at[d.start] != NO_INSTANT) & (at[d.end] != NO_INSTANT) & (parts > 0)
    ns = ((at[d.end] - at[d.start])[have] / parts[have]).astype(np.float64)
    return WeightedValues(ns, parts[have].astype(np.float64) if d.by_tokens else np.ones(len(ns)))


class ChunkGaps:
    """An EventVisitor: gaps by chunk that ended in a window, of requests that ended well."""

    def __init__(self, window: tuple[int, int], *, empty_ones: bool) -> None:
        """`empty_ones`: chunks with a choice but without a token count too."""
        self.start_ns, self.end_ns = window
        self.empty_ones = empty_ones
        self.histogram = LogHistogram()

    def add(self, piece: EventChunk) -> None:
        well = piece.chunk.select(piece.chunk.outcome == OK)
        for ns, weight, ended in (
            all_chunk_gaps(well) if self.empty_ones else [token_chunk_gaps(well)]
        ):
            here = within_window(ended, self.start_ns, self.end_ns)
            self.histogram.add(ns[here], duration_bin(ns[here]), 0, weight[here])

    @property
    def values(self) -> WeightedValues:
        """Each bin's mean with its count."""
        _, counts, means = self.histogram.totals
        return WeightedValues(means, counts)


def token_chunk_gaps(table: RecordTable) -> tuple[Ints, Ints, Ints]:
    """(gaps between chunks with tokens in ns, how many each stands for: 1, when each ended)."""
    gaps = GAPS["itl"](table)
    return gaps.ns, np.ones_like(gaps.ns), gaps.at_ns


def all_chunk_gaps(table: RecordTable) -> list[tuple[Ints, Ints, Ints]]:
    """As `token_chunk_gaps`, between all chunks with a choice, in four parts.

    An empty chunk between two tokens left its mark in the count of the next one: a gap that ended
    with k tokens is k gaps where the request had such chunks.
    """
    at, some = instants_of(table), table.counts > 0
    after = some & (at["last chunk"] > at["last token"])
    before = some & np.where(
        table.events_before >= 0, table.events_before > 0, at["first chunk"] < at["first token"]
    )
    has_silent = table.silent_events - after > 0
    inner = GAPS["itl"](table).end
    k = np.where(has_silent[table.request_of_event[inner]], table.tokens[inner], 1)
    between, _, ended = token_chunk_gaps(table)
    leading = np.where(some, table.events_before - 1, 0).clip(min=0)
    return [
        (np.rint(between / k).astype(np.int64), k, ended),
        (at["first token"] - at["first chunk"], before.astype(np.int64), at["first token"]),
        (np.zeros_like(leading), leading, at["first chunk"]),  # these came together
        (at["last chunk"] - at["last token"], after.astype(np.int64), at["last chunk"]),
    ]


class ToolComparison:
    """Ours and theirs in some windows: pass `visitors` to `walk`, then ask for `entry`."""

    def __init__(self, table: RecordTable, windows: Windows) -> None:
        """`table`: all requests; a thin one will do."""
        self.table = table
        self.ours = {window: WindowTokens(table, window) for window in windows}
        self.theirs = {
            (window, empty_ones): ChunkGaps(window, empty_ones=empty_ones)
            for window in windows
            for empty_ones in (False, True)
        }

    @property
    def visitors(self) -> list[EventVisitor]:
        ours: list[EventVisitor] = []
        for tokens in self.ours.values():
            ours += [*tokens.gaps.values(), tokens.arrived]
        return [*ours, *self.theirs.values()]

    def entry(self, name: str, windows: Sequence[Window]) -> Json:
        """result.json's `compat` entry of a tool: its version, and the rows of each level.

        `levels` are by users; each has `requests`, the number of those that both columns look at,
        and `left_out`, of those sent while the level was reached and warmed up: the tool would
        count them.
        """
        tool = COMPAT[name]
        by_users: dict[int, list[Window]] = {}
        for window in windows:
            by_users.setdefault(window.users, []).append(window)
        levels = [self._level(tool, users, by_users[users]) for users in sorted(by_users)]
        return {"title": tool.title, "version": tool.version, "note": tool.note, "levels": levels}

    def _level(self, tool: Tool, users: int, windows: Sequence[Window]) -> Json:
        table = self.table
        measured = [(w.settled_ns, w.end_ns) for w in windows]
        begun = [(w.chosen_ns, w.settled_ns - 1) for w in windows]
        old = bool((table.events_before[table.outcome == OK] < 0).any())
        chunks = any("chunk" in d.start + d.end for d in tool.definitions)
        return {
            "users": users,
            "requests": sum(len(_sent_in(table, w)) for w in measured),
            "left_out": sum(len(_sent_in(table, w)) for w in begun),
            "approximate": OLD_RECORDS if old and chunks else "",
            "rows": self.rows(tool, measured),
        }

    def rows(self, tool: Tool, windows: Windows) -> list[Json]:
        """One row for each figure: metric, name, statistic, unit, ours, theirs, why."""
        made: list[Json] = []
        for d in tool.definitions:
            head = {"metric": d.key, "name": d.name, "unit": METRICS[d.key].unit}
            if d.per == "second":
                pair = _pair(self._our_rate(d.key, windows), self._rate(d.key, windows), d.why)
                made.append(head | {"statistic": "", **pair})
                continue
            ours, theirs = self._our_figures(d.key, windows), self._their_values(d, windows)
            for name, q in STATISTICS.items():
                mine = json_ms(ours.quantile(q) if q > 0 else ours.mean_ns)
                other = json_ms(theirs.statistic(q, tool.quantile))
                pair = _pair(mine, other, _why(d, tool, ours, q))
                made.append(head | {"statistic": name, **pair})
        return made

    def _our_figures(self, key: str, windows: Windows) -> LatencyFigures:
        if key in GAPS:
            return pool_gaps([self.ours[window].gaps[key] for window in windows])
        return sample_figures(self.table, key, blocked_windows(self.table, windows))

    def _their_values(self, d: Definition, windows: Windows) -> WeightedValues:
        if d.per == "gap":
            return concat_values([self.theirs[w, d.start == "first chunk"].values for w in windows])
        well = self.table.select(self.table.outcome == OK)
        connected = well.connect_ns[well.connect_ns > 0]
        connect_ns = round(float(connected.mean())) if len(connected) else 0
        return concat_values([values_of(d, _sent_in(well, w), connect_ns) for w in windows])

    def _our_rate(self, key: str, windows: Windows) -> float | None:
        if key == "requests_per_s":
            return self._rate(key, windows)
        return _per_second(sum(self.ours[w].arrived.tokens for w in windows), windows)

    def _rate(self, key: str, windows: Windows) -> float | None:
        """Tokens (or requests) a second, of the requests that ended in the windows.

        The tools divide by the time of their whole run. A window has neither its beginning nor its
        end, so requests are placed by when they ended, and divided by the window.
        """
        well = self.table.select(self.table.outcome == OK)
        each = np.ones(len(well), np.int64) if key == "requests_per_s" else output_tokens(well)
        ended = (each[within_window(well.done_ns, *window)].sum() for window in windows)
        return _per_second(sum(map(int, ended)), windows)


def _per_second(count: int, windows: Windows) -> float | None:
    span = sum(end - start for start, end in windows)
    return round(count * SECOND / span, 4) if span > 0 else None


def _sent_in(table: RecordTable, window: tuple[int, int]) -> RecordTable:
    return table.select((table.sent_ns >= window[0]) & (table.sent_ns <= window[1]))


def _pair(ours: Any, theirs: Any, why: str) -> Json:
    numbers = isinstance(ours, float) and isinstance(theirs, float)
    alike = numbers and math.isclose(ours, theirs, rel_tol=SAME_RTOL)
    return {"ours": ours, "theirs": theirs, "why": "" if alike else why}


def _why(d: Definition, tool: Tool, ours: LatencyFigures, q: float) -> str:
    """The definition's phrase, unless ours is missing or infinite for a reason of its own."""
    if q > 0 and math.isinf(ours.quantile(q)):
        return "failed requests are infinite in ours and left out of theirs"
    if q > 0 and not d.why:
        step = tool.quantile == STEP_RULE
        return (
            f"theirs is {'the value before' if step else 'between two values'}, ours the upper one"
        )
    return d.why or "failed requests are left out of theirs"
