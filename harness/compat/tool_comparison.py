"""Our figures and those that a tool of COMPAT would give of the same requests, row by row.

In: what was recorded and the windows of a level; out: plain JSON rows, latencies in ms. Theirs are
of the requests that were sent in the windows and ended well (gaps and throughput: ended in them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from harness.compat.definitions import COMPAT, STEP_RULE, Definition, Tool
from harness.core.arrays import between
from harness.metrics.latency_figures import LatencyFigures, blocked_windows, json_ms, sample_figures
from harness.metrics.log_histogram import LogHistogram, duration_bin
from harness.metrics.metrics import GAPS, METRICS, delivered_tokens
from harness.metrics.scan import EventChunk, EventVisitor, within_window
from harness.metrics.token_gaps import pool_gaps
from harness.metrics.window_summary import WindowTokens
from harness.records.record_table import OK, RecordTable
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Floats, Ints
    from harness.core.load import Load
    from harness.metrics.evidence import Window

    Span = tuple[int, int]  # ns: both ends lie in it
    Windows = Sequence[Span]

Json = dict[str, Any]
STATISTICS: Final = {"mean": -1.0, "p50": 0.5, "p95": 0.95, "p99": 0.99}
PERCENTS: Final = (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)  # of a level's `figures`
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
        total = self.weight.sum()
        if not total > 0:
            return math.nan
        if q < 0:
            weighted_sum = (self.ns * self.weight).sum()
            return float(weighted_sum / total)
        order = np.argsort(self.ns, kind="stable")
        ns = self.ns[order]
        weight_upto = np.cumsum(self.weight[order])
        if rule == STEP_RULE:
            return _step_quantile(ns, weight_upto, q)
        return _linear_quantile(ns, weight_upto, q)

    def figures(self, rule: str) -> Json:
        """Mean, standard deviation, extremes and percentiles in ms; empty without any."""
        mean_ns = self.statistic(-1, rule)
        if math.isnan(mean_ns):
            return {}
        squares = self.weight * (self.ns - mean_ns) ** 2
        variance = squares.sum() / self.weight.sum()
        counted = self.ns[self.weight > 0]
        found = {
            "mean": mean_ns,
            "std": math.sqrt(variance),
            "min": counted.min(),
            "max": counted.max(),
        }
        for percent in PERCENTS:
            found[f"p{percent:g}"] = self.statistic(percent / 100, rule)
        return {name: json_ms(float(ns)) for name, ns in found.items()}


def _step_quantile(ns: Floats, weight_upto: Floats, q: float) -> float:
    share_upto = weight_upto / weight_upto[-1]
    place = int(np.searchsorted(share_upto, q))
    last = len(ns) - 1
    return float(ns[min(place, last)])


def _linear_quantile(ns: Floats, weight_upto: Floats, q: float) -> float:
    """Linear between two neighbors: a value that weighs k is k values."""
    last_rank = weight_upto[-1] - 1
    rank = q * last_rank
    rank_below = int(rank)
    rank_above = min(rank_below + 1, last_rank)
    places = np.searchsorted(weight_upto, [rank_below, rank_above], "right")
    low, high = ns[places]
    return float(low + (high - low) * (rank % 1))


def concat_values(parts: Sequence[WeightedValues]) -> WeightedValues:
    nothing = np.zeros(0)  # numpy concatenates no empty list
    ns = np.concatenate([nothing, *(part.ns for part in parts)])
    weight = np.concatenate([nothing, *(part.weight for part in parts)])
    return WeightedValues(ns, weight)


def output_tokens(table: RecordTable) -> Ints:
    """As the server counted them, else as many as arrived."""
    counted = table.output_tokens
    return np.where(counted >= 0, counted, delivered_tokens(table))


def instants_of(table: RecordTable, connect_ns: int = 0) -> dict[str, Ints]:
    """The instants that definitions run between, per request; NO_INSTANT where it has none.

    `connect_ns`: what an own connection costs a request that was sent on a kept one.
    """
    has_events = table.counts > 0
    # A request without events may point beyond the last event: any index will do there.
    event_ns = table.at_ns
    if not len(event_ns):
        event_ns = np.zeros(1, np.int64)
    begins = table.offsets[:-1]
    ends = table.offsets[1:]
    first_index = np.minimum(begins, len(event_ns) - 1)
    last_index = np.maximum(ends - 1, 0)
    first_token = np.where(has_events, event_ns[first_index], NO_INSTANT)
    last_token = np.where(has_events, event_ns[last_index], NO_INSTANT)
    own_connect_ns = np.where(table.connect_ns > 0, table.connect_ns, connect_ns)
    first_event_ns = table.first_event_ns
    return {
        "connect": table.sent_ns - table.connect_ns,
        "own connect": table.sent_ns - own_connect_ns,
        "sent": table.sent_ns,
        "first chunk": np.where(first_event_ns >= 0, first_event_ns, first_token),
        "first token": first_token,
        "last token": last_token,
        "last chunk": np.maximum(last_token, table.last_silent_ns),
        "done": table.done_ns,
    }


def values_of(d: Definition, table: RecordTable, connect_ns: int) -> WeightedValues:
    """What a definition makes of each request that has both of its instants."""
    instants = instants_of(table, connect_ns)
    start_ns = instants[d.start]
    end_ns = instants[d.end]
    tokens = output_tokens(table)
    divisors = {
        "request": np.ones_like(tokens),
        "token": tokens,
        "later token": tokens - 1,
    }
    divisor = divisors[d.per]
    has_both = (start_ns != NO_INSTANT) & (end_ns != NO_INSTANT)
    counts = has_both & (divisor > 0)
    own_divisor = divisor[counts].astype(np.float64)
    ns = (end_ns - start_ns)[counts] / own_divisor
    if d.by_tokens:
        return WeightedValues(ns, own_divisor)
    return WeightedValues(ns, np.ones(len(ns)))


class Gaps(NamedTuple):
    """Gaps between chunks."""

    ns: Ints
    times: Ints  # how many each stands for
    end_ns: Ints  # when each ended


class ChunkGaps:
    """An EventVisitor: gaps that ended in a window, of requests that ended well."""

    def __init__(self, window: Span, gaps_of: GapsOf) -> None:
        """`gaps_of`: which ones, one of GAPS_OF."""
        self.start_ns, self.end_ns = window
        self.gaps_of = gaps_of
        self.histogram = LogHistogram()

    def add(self, piece: EventChunk) -> None:
        well = piece.chunk.select(piece.chunk.outcome == OK)
        for gaps in self.gaps_of(well):
            here = within_window(gaps.end_ns, self.start_ns, self.end_ns)
            gap_ns = gaps.ns[here]
            times = gaps.times[here]
            self.histogram.add(gap_ns, duration_bin(gap_ns), weights=times)

    @property
    def values(self) -> WeightedValues:
        """Each bin's mean with its count."""
        _, counts, means = self.histogram.totals
        return WeightedValues(means, counts)


def token_chunk_gaps(table: RecordTable) -> list[Gaps]:
    """Between chunks with tokens; each stands for itself."""
    gaps = GAPS["itl"](table)
    return [Gaps(gaps.ns, np.ones_like(gaps.ns), gaps.at_ns)]


def token_gaps(table: RecordTable) -> list[Gaps]:
    """Between tokens: those of one chunk come at once."""
    further_tokens = table.tokens - 1
    at_once = Gaps(np.zeros_like(further_tokens), further_tokens, table.at_ns)
    return [*token_chunk_gaps(table), at_once]


def all_chunk_gaps(table: RecordTable) -> list[Gaps]:
    """Between all chunks with a choice, in four parts.

    An empty chunk between two tokens left its mark in the count of the next one: a gap that ended
    with k tokens is k gaps where the request had such chunks.
    """
    instants = instants_of(table)
    first_chunk = instants["first chunk"]
    first_token = instants["first token"]
    last_token = instants["last token"]
    last_chunk = instants["last chunk"]
    has_events = table.counts > 0

    # Old records do not say how many chunks came before the first token.
    n_before = table.events_before
    begins_empty = np.where(n_before >= 0, n_before > 0, first_chunk < first_token)
    begins_empty &= has_events
    ends_empty = has_events & (last_chunk > last_token)

    # Of the chunks before the first token only the first one's time is known: the others are taken
    # to have come together with it.
    more_before = np.where(has_events, n_before - 1, 0).clip(min=0)
    leading = Gaps(np.zeros_like(more_before), more_before, first_chunk)
    before = Gaps(first_token - first_chunk, begins_empty.astype(np.int64), first_token)
    after = Gaps(last_chunk - last_token, ends_empty.astype(np.int64), last_chunk)
    return [_divided_gaps(table, ends_empty), before, leading, after]


def _divided_gaps(table: RecordTable, ends_empty: Bools) -> Gaps:
    """Between tokens; those that empty chunks divide, divided evenly."""
    # When an empty chunk came between two tokens is not recorded: decision 6 says why.
    has_empty_between = table.silent_events - ends_empty > 0
    gaps = GAPS["itl"](table)
    request = table.request_of_event[gaps.end]
    times = np.where(has_empty_between[request], table.tokens[gaps.end], 1)
    even_ns = np.rint(gaps.ns / times).astype(np.int64)
    return Gaps(even_ns, times, gaps.at_ns)


GapsOf = Callable[["RecordTable"], list[Gaps]]
GAPS_OF: Final[dict[tuple[str, str], GapsOf]] = {  # by a definition's start and per
    ("first chunk", "gap"): all_chunk_gaps,
    ("first token", "gap"): token_chunk_gaps,
    ("first token", "token gap"): token_gaps,
}


class ToolComparison:
    """Ours and theirs in some windows: pass `visitors` to `walk`, then ask for `entry`."""

    def __init__(self, table: RecordTable, windows: Windows) -> None:
        """`table`: all requests; a thin one will do."""
        self.table = table
        self.ours = {window: WindowTokens(table, window) for window in windows}
        self.theirs: dict[tuple[Span, GapsOf], ChunkGaps] = {}
        for window in windows:
            for gaps_of in GAPS_OF.values():
                self.theirs[window, gaps_of] = ChunkGaps(window, gaps_of)

    @property
    def visitors(self) -> list[EventVisitor]:
        ours: list[EventVisitor] = []
        for tokens in self.ours.values():
            ours += [*tokens.gaps.values(), tokens.arrived]
        return [*ours, *self.theirs.values()]

    def entry(self, name: str, windows: Sequence[Window]) -> Json:
        """result.json's `compat` entry of a tool: its version, and the rows of each level.

        `levels` are by users, or by `rate_per_s`; each has `requests`, the number of those that
        both columns look at, and `left_out`, of those sent while the level was reached and warmed
        up: the tool would count them.
        """
        tool = COMPAT[name]
        by_load: dict[Load, list[Window]] = {}
        for window in windows:
            by_load.setdefault(window.load, []).append(window)
        levels = []
        for load, held in sorted(by_load.items(), key=lambda one: one[0].number):
            levels.append(self._level(tool, load, held))
        return {
            "title": tool.title,
            "version": tool.version,
            "note": tool.note,
            "levels": levels,
        }

    def _level(self, tool: Tool, load: Load, windows: Sequence[Window]) -> Json:
        measured = [(window.settled_ns, window.end_ns) for window in windows]
        warm_up = [(window.chosen_ns, window.settled_ns - 1) for window in windows]
        requests = sum(len(_sent_in(self.table, window)) for window in measured)
        left_out = sum(len(_sent_in(self.table, window)) for window in warm_up)
        return {
            "users": load.users,
            "rate_per_s": load.rate_per_s,
            "requests": requests,
            "left_out": left_out,
            "approximate": OLD_RECORDS if self._lacks_chunks(tool) else "",
            "rows": self.rows(tool, measured),
            "totals": self._totals(measured),
            "figures": self._figures(tool, measured),
        }

    def _figures(self, tool: Tool, windows: Windows) -> Json:
        """Theirs with further statistics, by the tool's names."""
        return {
            d.name: self._their_values(d, windows).figures(tool.quantile)
            for d in tool.definitions
            if d.per != "second"
        }

    def _totals(self, windows: Windows) -> Json:
        """What the rows are of: requests, their tokens, and seconds. No server counts: null."""
        sent = [_sent_in(self._ended_well, window) for window in windows]
        succeeded = sum(len(table) for table in sent)
        requests = sum(len(_sent_in(self.table, window)) for window in windows)
        counts_prompts = all((table.prompt_tokens >= 0).all() for table in sent)
        prompt_tokens = sum(int(table.prompt_tokens.sum()) for table in sent)
        span_ns = sum(end_ns - start_ns for start_ns, end_ns in windows)
        prompt_rate = self._rate("prompt_tokens_per_s", windows) if counts_prompts else None
        return {
            "succeeded": succeeded,
            "failed": requests - succeeded,
            "prompt_tokens": prompt_tokens if counts_prompts else None,
            "output_tokens": sum(int(output_tokens(table).sum()) for table in sent),
            "seconds": round(span_ns / SECOND, 6),
            "prompt_tokens_per_s": prompt_rate,
        }

    def _lacks_chunks(self, tool: Tool) -> bool:
        """Whether the tool looks at chunks without text, and the records do not have them."""
        is_old = bool((self._ended_well.events_before < 0).any())
        uses_chunks = any("chunk" in d.start + d.end for d in tool.definitions)
        return is_old and uses_chunks

    def rows(self, tool: Tool, windows: Windows) -> list[Json]:
        """One row for each figure: metric, name, statistic, unit, ours, theirs, why."""
        rows: list[Json] = []
        for d in tool.definitions:
            unit = METRICS[d.key].unit
            head = {"metric": d.key, "name": d.name, "unit": unit}
            if d.per == "second":
                our_rate = self._our_rate(d.key, windows)
                their_rate = self._rate(d.key, windows)
                pair = _pair(our_rate, their_rate, d.why)
                rows.append(head | {"statistic": ""} | pair)
                continue
            our_figures = self._our_figures(d.key, windows)
            their_values = self._their_values(d, windows)
            for name, q in STATISTICS.items():
                our_ns = our_figures.quantile(q) if q > 0 else our_figures.mean_ns
                their_ns = their_values.statistic(q, tool.quantile)
                why = _why(d, tool, our_figures, q)
                pair = _pair(json_ms(our_ns), json_ms(their_ns), why)
                rows.append(head | {"statistic": name} | pair)
        return rows

    def _our_figures(self, key: str, windows: Windows) -> LatencyFigures:
        if key in GAPS:
            by_window = [self.ours[window].gaps[key] for window in windows]
            return pool_gaps(by_window)
        return sample_figures(self.table, key, blocked_windows(self.table, windows))

    def _their_values(self, d: Definition, windows: Windows) -> WeightedValues:
        if gaps_of := GAPS_OF.get((d.start, d.per)):
            counted = [self.theirs[window, gaps_of] for window in windows]
            return concat_values([gaps.values for gaps in counted])
        well = self._ended_well
        connect_ns = _mean_connect_ns(well)
        parts = [values_of(d, _sent_in(well, window), connect_ns) for window in windows]
        return concat_values(parts)

    @property
    def _ended_well(self) -> RecordTable:
        return self.table.select(self.table.outcome == OK)

    def _our_rate(self, key: str, windows: Windows) -> float | None:
        if key == "requests_per_s":
            return self._rate(key, windows)
        tokens = sum(self.ours[window].arrived.tokens for window in windows)
        return _per_second(tokens, windows)

    def _rate(self, key: str, windows: Windows) -> float | None:
        """Tokens (or requests) a second, of the requests that ended in the windows.

        The tools divide by the time of their whole run. A window has neither its beginning nor its
        end, so requests are placed by when they ended, and divided by the window.
        """
        well = self._ended_well
        amounts_of = {
            "requests_per_s": np.ones(len(well), np.int64),
            "output_tokens_per_s": output_tokens(well),
            "prompt_tokens_per_s": well.prompt_tokens,
        }
        amounts = amounts_of[key]
        count = 0
        for start_ns, end_ns in windows:
            here = within_window(well.done_ns, start_ns, end_ns)
            count += int(amounts[here].sum())
        return _per_second(count, windows)


def _mean_connect_ns(table: RecordTable) -> int:
    """Over the requests that had to connect; 0 without any."""
    connected_ns = table.connect_ns[table.connect_ns > 0]
    if not len(connected_ns):
        return 0
    return round(float(connected_ns.mean()))


def _per_second(count: int, windows: Windows) -> float | None:
    span_ns = sum(end_ns - start_ns for start_ns, end_ns in windows)
    return round(count * SECOND / span_ns, 4) if span_ns > 0 else None


def _sent_in(table: RecordTable, window: Span) -> RecordTable:
    return table.select(between(table.sent_ns, *window))


def _pair(ours: Any, theirs: Any, why: str) -> Json:
    are_numbers = isinstance(ours, float) and isinstance(theirs, float)
    if are_numbers and math.isclose(ours, theirs, rel_tol=SAME_RTOL):
        why = ""
    return {"ours": ours, "theirs": theirs, "why": why}


def _why(d: Definition, tool: Tool, ours: LatencyFigures, q: float) -> str:
    """The definition's phrase, unless ours is missing or infinite for a reason of its own."""
    is_quantile = q > 0
    if is_quantile and math.isinf(ours.quantile(q)):
        return "failed requests are infinite in ours and left out of theirs"
    if d.why:
        return d.why
    if not is_quantile:
        return "failed requests are left out of theirs"
    if tool.quantile == STEP_RULE:
        return "theirs is the value before, ours the upper one"
    return "theirs is between two values, ours the upper one"
