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
        deviation_ns = self.ns - mean_ns
        squares = self.weight * deviation_ns**2
        variance = squares.sum() / self.weight.sum()
        has_weight = self.weight > 0
        counted = self.ns[has_weight]
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
    ns_parts = [part.ns for part in parts]
    weight_parts = [part.weight for part in parts]
    nothing = np.zeros(0)  # numpy concatenates no empty list
    ns = np.concatenate([nothing, *ns_parts])
    weight = np.concatenate([nothing, *weight_parts])
    return WeightedValues(ns, weight)


def output_tokens(table: RecordTable) -> Ints:
    """As the server counted them, else as many as arrived."""
    counted = table.output_tokens
    is_counted = counted >= 0
    delivered = delivered_tokens(table)
    return np.where(is_counted, counted, delivered)


def instants_of(table: RecordTable, connect_ns: int = 0) -> dict[str, Ints]:
    """The instants that definitions run between, per request; NO_INSTANT where it has none.

    `connect_ns`: what an own connection costs a request that was sent on a kept one.
    """
    sent = table.sent_ns
    took_ns = table.connect_ns
    had_to_connect = took_ns > 0
    own_connect_ns = np.where(had_to_connect, took_ns, connect_ns)

    first_token, last_token = _token_instants(table)
    first_event = table.first_event_ns
    is_recorded = first_event >= 0
    first_chunk = np.where(is_recorded, first_event, first_token)
    last_chunk = np.maximum(last_token, table.last_silent_ns)
    return {
        "connect": sent - took_ns,
        "own connect": sent - own_connect_ns,
        "sent": sent,
        "first chunk": first_chunk,
        "first token": first_token,
        "last token": last_token,
        "last chunk": last_chunk,
        "done": table.done_ns,
    }


def _token_instants(table: RecordTable) -> tuple[Ints, Ints]:
    """When the first and the last chunk with tokens came, per request."""
    has_events = table.counts > 0
    event_ns = table.at_ns
    if not len(event_ns):
        event_ns = np.zeros(1, np.int64)
    # A request without events may point beyond the last event: any index will do there.
    begins = table.offsets[:-1]
    last_event = len(event_ns) - 1
    first_index = np.minimum(begins, last_event)
    ends = table.offsets[1:]
    last_index = np.maximum(ends - 1, 0)
    first_token = np.where(has_events, event_ns[first_index], NO_INSTANT)
    last_token = np.where(has_events, event_ns[last_index], NO_INSTANT)
    return first_token, last_token


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
    has_start = start_ns != NO_INSTANT
    has_end = end_ns != NO_INSTANT
    can_divide = divisor > 0
    counts = has_start & has_end & can_divide
    own_divisor = divisor[counts].astype(np.float64)
    span_ns = end_ns - start_ns
    ns = span_ns[counts] / own_divisor
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
        ended_well = piece.chunk.outcome == OK
        well = piece.chunk.select(ended_well)
        for gaps in self.gaps_of(well):
            here = within_window(gaps.end_ns, self.start_ns, self.end_ns)
            gap_ns = gaps.ns[here]
            times = gaps.times[here]
            bins = duration_bin(gap_ns)
            self.histogram.add(gap_ns, bins, weights=times)

    @property
    def values(self) -> WeightedValues:
        """Each bin's mean with its count."""
        _, counts, means = self.histogram.totals
        return WeightedValues(means, counts)


def token_chunk_gaps(table: RecordTable) -> list[Gaps]:
    """Between chunks with tokens; each stands for itself."""
    gaps = GAPS["itl"](table)
    once = np.ones_like(gaps.ns)
    return [Gaps(gaps.ns, once, gaps.at_ns)]


def token_gaps(table: RecordTable) -> list[Gaps]:
    """Between tokens: those of one chunk come at once."""
    further_tokens = table.tokens - 1
    no_time = np.zeros_like(further_tokens)
    at_once = Gaps(no_time, further_tokens, table.at_ns)
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
    is_known = n_before >= 0
    came_earlier = first_chunk < first_token
    begins_empty = np.where(is_known, n_before > 0, came_earlier)
    begins_empty &= has_events
    came_later = last_chunk > last_token
    ends_empty = has_events & came_later

    # Of the chunks before the first token only the first one's time is known: the others are taken
    # to have come together with it.
    further = np.where(has_events, n_before - 1, 0)
    more_before = further.clip(min=0)
    no_time = np.zeros_like(more_before)
    leading = Gaps(no_time, more_before, first_chunk)

    before_ns = first_token - first_chunk
    n_begins = begins_empty.astype(np.int64)
    before = Gaps(before_ns, n_begins, first_token)

    after_ns = last_chunk - last_token
    n_ends = ends_empty.astype(np.int64)
    after = Gaps(after_ns, n_ends, last_chunk)

    between_tokens = _divided_gaps(table, ends_empty)
    return [between_tokens, before, leading, after]


def _divided_gaps(table: RecordTable, ends_empty: Bools) -> Gaps:
    """Between tokens; those that empty chunks divide, divided evenly."""
    # When an empty chunk came between two tokens is not recorded: decision 6 says why.
    n_between = table.silent_events - ends_empty
    has_empty_between = n_between > 0
    gaps = GAPS["itl"](table)
    request = table.request_of_event[gaps.end]
    is_divided = has_empty_between[request]
    ended_with = table.tokens[gaps.end]
    times = np.where(is_divided, ended_with, 1)
    part_ns = gaps.ns / times
    even_ns = np.rint(part_ns).astype(np.int64)
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
            held = by_load.setdefault(window.load, [])
            held.append(window)
        upwards = sorted(by_load, key=lambda load: load.number)
        levels = [self._level(tool, load, by_load[load]) for load in upwards]
        return {
            "title": tool.title,
            "version": tool.version,
            "note": tool.note,
            "levels": levels,
        }

    def _level(self, tool: Tool, load: Load, windows: Sequence[Window]) -> Json:
        measured = [(window.settled_ns, window.end_ns) for window in windows]
        warm_up = [(window.chosen_ns, window.settled_ns - 1) for window in windows]
        approximate = ""
        if self._lacks_chunks(tool):
            approximate = OLD_RECORDS
        return {
            "users": load.users,
            "rate_per_s": load.rate_per_s,
            "requests": self._requests_in(measured),
            "left_out": self._requests_in(warm_up),
            "approximate": approximate,
            "rows": self.rows(tool, measured),
            "totals": self._totals(measured),
            "figures": self._figures(tool, measured),
        }

    def _requests_in(self, windows: Windows) -> int:
        """How many were sent in them, however they ended."""
        sent = [_sent_in(self.table, window) for window in windows]
        return sum(map(len, sent))

    def _figures(self, tool: Tool, windows: Windows) -> Json:
        """Theirs with further statistics, by the tool's names."""
        figures = {}
        for d in tool.definitions:
            if d.per == "second":
                continue
            values = self._their_values(d, windows)
            figures[d.name] = values.figures(tool.quantile)
        return figures

    def _totals(self, windows: Windows) -> Json:
        """What the rows are of: requests, their tokens, and seconds. No server counts: null."""
        well = self._ended_well
        succeeded = 0
        n_output = 0
        n_prompt = 0
        lacks_prompts = False
        for window in windows:
            sent = _sent_in(well, window)
            succeeded += len(sent)
            n_output += int(output_tokens(sent).sum())
            n_prompt += int(sent.prompt_tokens.sum())
            is_unknown = sent.prompt_tokens < 0
            lacks_prompts |= bool(is_unknown.any())

        prompt_tokens = None
        prompt_rate = None
        if not lacks_prompts:
            prompt_tokens = n_prompt
            prompt_rate = self._rate("prompt_tokens_per_s", windows)
        seconds = _span_ns(windows) / SECOND
        return {
            "succeeded": succeeded,
            "failed": self._requests_in(windows) - succeeded,
            "prompt_tokens": prompt_tokens,
            "output_tokens": n_output,
            "seconds": round(seconds, 6),
            "prompt_tokens_per_s": prompt_rate,
        }

    def _lacks_chunks(self, tool: Tool) -> bool:
        """Whether the tool looks at chunks without text, and the records do not have them."""
        is_unknown = self._ended_well.events_before < 0
        if not is_unknown.any():
            return False
        return any("chunk" in d.start + d.end for d in tool.definitions)

    def rows(self, tool: Tool, windows: Windows) -> list[Json]:
        """One row for each figure: metric, name, statistic, unit, ours, theirs, why."""
        rows: list[Json] = []
        for d in tool.definitions:
            if d.per == "second":
                rows.append(self._rate_row(d, windows))
            else:
                rows += self._latency_rows(d, tool, windows)
        return rows

    def _rate_row(self, d: Definition, windows: Windows) -> Json:
        ours = self._our_rate(d.key, windows)
        theirs = self._rate(d.key, windows)
        pair = _pair(ours, theirs, d.why)
        return _row_head(d, "") | pair

    def _latency_rows(self, d: Definition, tool: Tool, windows: Windows) -> list[Json]:
        """One for each of STATISTICS."""
        rows = []
        ours = self._our_figures(d.key, windows)
        theirs = self._their_values(d, windows)
        for name, q in STATISTICS.items():
            our_ns = ours.mean_ns
            if q > 0:
                our_ns = ours.quantile(q)
            their_ns = theirs.statistic(q, tool.quantile)
            why = _why(d, tool, ours, q)
            pair = _pair(json_ms(our_ns), json_ms(their_ns), why)
            row = _row_head(d, name) | pair
            rows.append(row)
        return rows

    def _our_figures(self, key: str, windows: Windows) -> LatencyFigures:
        if key in GAPS:
            by_window = [self.ours[window].gaps[key] for window in windows]
            return pool_gaps(by_window)
        blocks = blocked_windows(self.table, windows)
        return sample_figures(self.table, key, blocks)

    def _their_values(self, d: Definition, windows: Windows) -> WeightedValues:
        if gaps_of := GAPS_OF.get((d.start, d.per)):
            counted = [self.theirs[window, gaps_of] for window in windows]
            return concat_values([gaps.values for gaps in counted])
        well = self._ended_well
        connect_ns = _mean_connect_ns(well)
        parts = []
        for window in windows:
            sent = _sent_in(well, window)
            parts.append(values_of(d, sent, connect_ns))
        return concat_values(parts)

    @property
    def _ended_well(self) -> RecordTable:
        ended_well = self.table.outcome == OK
        return self.table.select(ended_well)

    def _our_rate(self, key: str, windows: Windows) -> float | None:
        if key == "requests_per_s":
            return self._rate(key, windows)
        ours = [self.ours[window] for window in windows]
        tokens = sum(one.arrived.tokens for one in ours)
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
    had_to_connect = table.connect_ns > 0
    connected_ns = table.connect_ns[had_to_connect]
    if not len(connected_ns):
        return 0
    mean_ns = float(connected_ns.mean())
    return round(mean_ns)


def _span_ns(windows: Windows) -> int:
    return sum(end_ns - start_ns for start_ns, end_ns in windows)


def _per_second(count: int, windows: Windows) -> float | None:
    span_ns = _span_ns(windows)
    if span_ns <= 0:
        return None
    rate = count * SECOND / span_ns
    return round(rate, 4)


def _sent_in(table: RecordTable, window: Span) -> RecordTable:
    start_ns, end_ns = window
    is_inside = between(table.sent_ns, start_ns, end_ns)
    return table.select(is_inside)


def _row_head(d: Definition, statistic: str) -> Json:
    """A row of `rows`, but for the two figures."""
    return {
        "metric": d.key,
        "name": d.name,
        "unit": METRICS[d.key].unit,
        "statistic": statistic,
    }


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
