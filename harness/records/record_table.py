"""RecordTable: records as columns, the input of every statistic.

Token times are flat with offsets (Arrow's list layout): the events of request i are
`at_ns[offsets[i]:offsets[i + 1]]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.core.arrays import totals_before
from harness.records.request_record import ARRAYS, Outcome, RequestRecord

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints


OUTCOMES: Final = tuple(Outcome)  # column `outcome` holds indices into this
OUTCOME_CODE: Final = {outcome: code for code, outcome in enumerate(OUTCOMES)}
OK: Final = OUTCOME_CODE[Outcome.ok]
OPEN: Final = OUTCOME_CODE[Outcome.open]
CANCELLED: Final = OUTCOME_CODE[Outcome.cancelled]
CONNECT: Final = OUTCOME_CODE[Outcome.connect]
DROPPED: Final = OUTCOME_CODE[Outcome.dropped]

CHUNK_EVENTS: Final = 1 << 14  # events
NUMBER_COLUMNS: Final = (
    "worker", "number", "user", "scheduled_ns", "connect_ns", "sent_ns", "head_ns",
    "first_event_ns", "done_ns", "status", "planned_tokens", "prompt_tokens", "output_tokens",
    "cached_tokens", "answer_index", "events_before", "silent_events", "last_silent_ns",
    "session", "turn", "think_ns", "new_tokens", "mix_row",
    "planned_prompt",
)  # fmt: skip
PER_REQUEST: Final = (*NUMBER_COLUMNS, "outcome", "name")


@dataclass(frozen=True, slots=True)
class RecordTable:
    """n requests with m token-bearing events in all; every column is int64.

    It implements `RecordSource`: all requests, and all events in chunks.
    """

    worker: Ints
    number: Ints
    user: Ints
    scheduled_ns: Ints
    connect_ns: Ints
    sent_ns: Ints
    head_ns: Ints
    first_event_ns: Ints
    done_ns: Ints
    outcome: Ints  # index into OUTCOMES
    status: Ints
    planned_tokens: Ints
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    answer_index: Ints
    events_before: Ints
    silent_events: Ints
    last_silent_ns: Ints
    session: Ints
    turn: Ints
    think_ns: Ints
    new_tokens: Ints
    mix_row: Ints
    planned_prompt: Ints
    name: Ints  # index into the names of the run; -1: it has none, or nobody asks (live)
    offsets: Ints  # n + 1: where each request's events begin among all, and where the last ones end
    at_ns: Ints  # m
    not_before_ns: Ints  # m
    tokens: Ints  # m
    whole: bool = True  # False: events are left out (`keep_three_events`), so gaps mean nothing

    @property
    def table(self) -> RecordTable:
        return self

    def chunks(self) -> Iterator[RecordTable]:
        """All events, about CHUNK_EVENTS at a time: intermediate arrays fit the CPU cache."""
        if not self.whole:
            raise ValueError("a thin table has no events to go through: pass what it was made of")
        if len(self.at_ns) <= CHUNK_EVENTS:
            yield self
            return
        events = np.arange(CHUNK_EVENTS, len(self.at_ns), CHUNK_EVENTS)
        cuts = np.searchsorted(self.offsets, events)
        ends = np.unique(np.append(cuts, len(self)))
        for first, last in pairwise([0, *ends.tolist()]):
            yield self._rows(first, last)

    def _rows(self, first: int, last: int) -> RecordTable:
        """The requests from `first` up to `last`; nothing is copied."""
        begin = self.offsets[first]
        end = self.offsets[last]
        return RecordTable(
            **self._columns(slice(first, last)),
            **self._events(slice(begin, end)),
            offsets=self.offsets[first : last + 1] - begin,
            whole=self.whole,
        )

    def _columns(self, rows: Bools | Ints | slice) -> dict[str, Ints]:
        return {name: _taken(getattr(self, name), rows) for name in PER_REQUEST}

    def _events(self, events: Bools | Ints | slice) -> dict[str, Ints]:
        return {name: getattr(self, name)[events] for name in ARRAYS}

    def __len__(self) -> int:
        return len(self.sent_ns)

    @property
    def is_open(self) -> Bools:
        """Requests without a known end: in flight at the horizon, or cut off by the harness."""
        return np.asarray((self.outcome == OPEN) | (self.outcome == CANCELLED))

    @property
    def begun_ns(self) -> Ints:
        """From when a request's latencies count: its schedule; in a closed loop, its sending."""
        return np.where(self.scheduled_ns >= 0, self.scheduled_ns, self.sent_ns)

    @property
    def counts(self) -> Ints:
        """Token-bearing events of each request."""
        return np.diff(self.offsets)

    @property
    def request_of_event(self) -> Ints:
        """For each event, the row of its request."""
        return np.repeat(np.arange(len(self)), self.counts)

    @classmethod
    def from_records(cls, records: Sequence[RequestRecord]) -> RecordTable:
        """Columns of whole records, in the order given."""
        n = len(records)
        columns = {}
        for name in NUMBER_COLUMNS:
            values = (getattr(record, name) for record in records)
            columns[name] = np.fromiter(values, np.int64, n)
        events = {}
        for name in ARRAYS:
            joined = b"".join(bytes(getattr(record, name)) for record in records)
            events[name] = np.frombuffer(joined, np.int64)
        codes = (OUTCOME_CODE[record.outcome] for record in records)
        lengths = (len(record.at_ns) for record in records)
        n_events = np.fromiter(lengths, np.int64, n)
        return cls(
            **columns,
            **events,
            outcome=np.fromiter(codes, np.int64, n),
            name=np.full(n, -1),
            offsets=totals_before(n_events),
            whole=True,
        )

    def ordered(self, order: Ints) -> RecordTable:
        """The same requests in another order: row i is the old row `order[i]`."""
        n_events = self.counts[order]
        offsets = totals_before(n_events)
        # All events of a request move by as much as its first one.
        old_begins = self.offsets[:-1][order]
        moved_by = np.repeat(old_begins - offsets[:-1], n_events)
        old_index = np.arange(offsets[-1]) + moved_by
        return RecordTable(
            **self._columns(order), **self._events(old_index), offsets=offsets, whole=self.whole
        )

    def select(self, rows: Bools) -> RecordTable:
        if rows.all():
            return self
        keep = np.repeat(rows, self.counts)
        return RecordTable(
            **self._columns(rows),
            **self._events(keep),
            offsets=totals_before(self.counts[rows]),
            whole=self.whole,
        )

    def until(self, horizon_ns: int) -> RecordTable:
        """What was known at `horizon_ns`: without later requests and events, unended ones `open`.

        This makes decisions repeatable offline: live and in a replay, the judge sees the same.
        """
        table = self.select(self.sent_ns <= horizon_ns)
        is_open = (table.done_ns > horizon_ns) | (table.outcome == OPEN)
        keep = table.at_ns <= horizon_ns
        if keep.all() and not is_open.any():
            return table
        n_kept_before = totals_before(keep)
        return replace(
            table,
            outcome=np.where(is_open, OPEN, table.outcome),
            done_ns=np.where(is_open, horizon_ns, table.done_ns),
            offsets=n_kept_before[table.offsets],
            at_ns=table.at_ns[keep],
            not_before_ns=table.not_before_ns[keep],
            tokens=table.tokens[keep],
        )


def constants_once(table: RecordTable) -> RecordTable:
    """The same values; a column whose values are all alike takes the memory of one.

    Such a column is read-only: numpy's view of one value, repeated. Most columns of most runs are:
    what was asked for, the status, and what a workload does not have.
    """
    if not len(table):
        return table
    columns: dict[str, Ints] = {}
    for name in PER_REQUEST:
        column = getattr(table, name)
        if (column == column[0]).all():
            column = repeated(int(column[0]), len(column))
        columns[name] = column
    events = {name: getattr(table, name) for name in ARRAYS}
    return RecordTable(**columns, **events, offsets=table.offsets, whole=table.whole)


def repeated(value: int, n: int) -> Ints:
    """One value n times, which takes the memory of one; read-only."""
    return np.broadcast_to(np.int64(value), (n,))


def _is_repeated(column: Ints) -> bool:
    return len(column) > 1 and column.strides == (0,)


def _taken(column: Ints, rows: Bools | Ints | slice) -> Ints:
    """These rows of a column; of one whose values are repeated, too, without a copy of them."""
    if not _is_repeated(column):
        return column[rows]
    if isinstance(rows, slice):
        n = len(range(*rows.indices(len(column))))
    elif rows.dtype == bool:
        n = int(np.count_nonzero(rows))
    else:
        n = len(rows)
    return repeated(int(column[0]), n)


def _joined(columns: Sequence[Ints]) -> Ints:
    """One after another; of the same value only, it is that value, repeated."""
    filled = [column for column in columns if len(column)]
    if filled and all(len(column) == 1 or _is_repeated(column) for column in filled):
        values = {int(column[0]) for column in filled}
        if len(values) == 1:
            return repeated(values.pop(), sum(map(len, filled)))
    return np.concatenate(columns)


def concat_tables(tables: Sequence[RecordTable]) -> RecordTable:
    if not tables:
        return RecordTable.from_records([])
    joined = {}
    for name in (*PER_REQUEST, *ARRAYS):
        joined[name] = _joined([getattr(table, name) for table in tables])
    n_events = np.concatenate([table.counts for table in tables])
    return RecordTable(
        **joined,
        offsets=totals_before(n_events),
        whole=all(table.whole for table in tables),
    )


def keep_three_events(table: RecordTable) -> RecordTable:
    """The same requests with at most three events each: the first, the answer's first, the last.

    An event takes over the tokens of the dropped events before it. So the tokens of the first event
    and their sum stay the same, and with them every figure that has one value per request.
    """
    n_events = table.counts
    answer_index = table.answer_index
    # The answer's first event is a third one if it is neither the first nor the last.
    has_middle = (answer_index > 0) & (answer_index < n_events - 1)
    n_kept = np.minimum(n_events, 2) + has_middle
    offsets = totals_before(n_kept)
    kept = _three_events(table, offsets, has_middle)
    # One running sum over the tokens of all requests: its difference between two kept events is
    # what arrived since the earlier one. A request's first event has only its own tokens.
    arrived = np.cumsum(table.tokens)
    tokens = np.diff(arrived[kept], prepend=0)
    firsts = offsets[:-1][n_events > 0]
    tokens[firsts] = table.tokens[kept[firsts]]
    # A table may have been cut before the answer's first event (`until`): the index stays as far
    # beyond the last event as it was. Else it is the first, the middle (1) or the last.
    new_index = np.select(
        [answer_index <= 0, answer_index >= n_events, has_middle],
        [answer_index, answer_index - n_events + n_kept, 1],
        n_kept - 1,
    )
    return replace(
        table,
        answer_index=new_index,
        offsets=offsets,
        at_ns=table.at_ns[kept],
        not_before_ns=table.not_before_ns[kept],
        tokens=tokens,
        whole=False,
    )


def _three_events(table: RecordTable, offsets: Ints, has_middle: Bools) -> Ints:
    """For each kept event its index among all events; `offsets`: of the kept ones, by request."""
    has_events = table.counts > 0
    begins = table.offsets[:-1]
    ends = table.offsets[1:]
    new_begins = offsets[:-1]
    new_ends = offsets[1:]
    kept = np.zeros(int(offsets[-1]), np.int64)
    # the last event first: of a request with a single one it is the first, too
    kept[new_ends[has_events] - 1] = ends[has_events] - 1
    answer_begins = begins + table.answer_index
    kept[new_begins[has_middle] + 1] = answer_begins[has_middle]
    kept[new_begins[has_events]] = begins[has_events]
    return kept
