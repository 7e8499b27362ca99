"""The records that clients would have of simulated requests."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.records.record_table import NUMBER_COLUMNS, OK, OPEN, RecordTable

if TYPE_CHECKING:
    from harness.core.arrays import Ints
    from harness.engine.scheduler import Sequence


ROW: Final = 8  # numbers of a request: `_row`
PLACE, NUMBER, SENT, DONE, PROMPT, OUTPUT, SPANS, SCHEDULED = range(ROW)


class SimulatedRecords:
    """All requests of the engine; `table` returns those that matter at an instant."""

    # Ended requests are kept as rows of numbers, in the order of ending: they no longer change, and
    # a table every second of a long level would otherwise visit thousands of objects each time.

    def __init__(self) -> None:
        self._count = 0
        self._open: dict[int, tuple[int, int, Sequence]] = {}  # number -> (place, sent, sequence)
        self.scheduled: dict[int, int] = {}  # number -> when an open one was due
        self._ended: list[Sequence] = []
        self._rows = array("q")  # of each that ended, ROW numbers
        self._spans = array("q")  # of the same, [first step, end step) of each of its spans

    @property
    def sequences(self) -> list[Sequence]:
        """The engine's sequences, in the row order of a table of all requests."""
        ended = zip(self._rows[PLACE::ROW], self._ended, strict=True)
        under_way = ((place, sequence) for place, _, sequence in self._open.values())
        return [sequence for _, sequence in sorted(chain(ended, under_way))]

    def add(self, sent_ns: int, sequence: Sequence) -> None:
        self._open[sequence.request_id] = (self._count, sent_ns, sequence)
        self._count += 1

    def end(self, number: int, done_ns: int) -> None:
        """Record that the client of a request has its last token."""
        place, sent_ns, sequence = self._open.pop(number)
        self._ended.append(sequence)
        scheduled_ns = self.scheduled.pop(number, -1)
        self._rows.extend(_row(place, sent_ns, done_ns, sequence, scheduled_ns))
        self._spans.extend(chain.from_iterable(sequence.spans))

    def forget(self, before_ns: int) -> None:
        """Drop the oldest ended requests, up to the first that ended at `before_ns` or later."""
        rows, old, spans = self._rows, 0, 0
        while old < len(self._ended) and rows[old * ROW + DONE] < before_ns:
            spans += rows[old * ROW + SPANS]
            old += 1
        del self._ended[:old], self._rows[: old * ROW], self._spans[: 2 * spans]

    def table(self, ends: list[Ints], from_ns: int, horizon_ns: int) -> RecordTable:
        """Return requests that ended at `from_ns` or later or are open, as known at `horizon_ns`.

        Token times are slices of the step ends up to `horizon_ns`. `ends` has one array per API
        server; requests are assigned to the servers in turn.
        """
        # Ended requests and open ones become one array of rows, put in the order of sending
        # (`order`); `rank` is its inverse, by which the spans follow their rows.
        ended = np.array(self._rows, np.int64).reshape(-1, ROW)
        late = (ended[:, DONE] >= from_ns) & (ended[:, SENT] <= horizon_ns)
        late_spans = np.array(self._spans, np.int64).reshape(-1, 2)
        late_spans = late_spans[np.repeat(late, ended[:, SPANS])]
        under_way = [one for one in self._open.values() if one[1] <= horizon_ns]
        due = self.scheduled
        rows = np.array(
            [_row(at, sent, -1, s, due.get(s.request_id, -1)) for at, sent, s in under_way],
            np.int64,
        )
        spans = np.array([span for *_, s in under_way for span in s.spans], np.int64)
        rows = np.concatenate([ended[late], rows.reshape(-1, ROW)])
        spans = np.concatenate([late_spans, spans.reshape(-1, 2)])
        order = np.argsort(rows[:, PLACE])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        row_of = np.repeat(rank, rows[:, SPANS])
        by_row = np.argsort(row_of, kind="stable")
        at, counts = _tokens(rows[order], row_of[by_row], spans[by_row], ends, horizon_ns)
        return _table(rows[order], at, counts, horizon_ns)


def _row(
    place: int, sent_ns: int, done_ns: int, sequence: Sequence, scheduled_ns: int
) -> tuple[int, ...]:
    return (
        place,
        sequence.request_id,
        sent_ns,
        done_ns,
        sequence.prompt_tokens,
        sequence.output_tokens,
        len(sequence.spans),
        scheduled_ns,
    )


def _tokens(
    rows: Ints, row_of: Ints, spans: Ints, ends: list[Ints], horizon_ns: int
) -> tuple[Ints, Ints]:
    """Return (token times by request, number of tokens of each request).

    `spans` is (k, 2): steps [first, end) in which the request of row `row_of[k]` had a token each.
    """
    # A token's time is the end of its step, so nothing is kept for a token: each span becomes a
    # slice of its API server's step ends. All slices are taken at once by one flat index:
    # `arange` counts through all tokens, and each span shifts its own stretch of it to where its
    # slice begins in the concatenated ends (`place`: where each server's ends begin there).
    known = np.array([np.searchsorted(one, horizon_ns, "right") for one in ends], np.int64)
    place = np.cumsum([0, *(len(one) for one in ends[:-1])])
    whose = rows[row_of, NUMBER] % len(ends)
    first = spans[:, 0]
    sizes = (np.minimum(spans[:, 1], known[whose]) - first).clip(min=0)
    starts = np.cumsum(sizes) - sizes
    index = np.arange(int(sizes.sum())) - np.repeat(starts - first - place[whose], sizes)
    counts = np.bincount(row_of, weights=sizes, minlength=len(rows)).astype(np.int64)
    return np.concatenate(ends)[index], counts


def _table(rows: Ints, at: Ints, counts: Ints, horizon_ns: int) -> RecordTable:
    done = rows[:, DONE]
    ended = (done >= 0) & (done <= horizon_ns)
    zero = np.zeros(len(rows), np.int64)
    number, sent, prompt, output = np.ascontiguousarray(rows[:, [NUMBER, SENT, PROMPT, OUTPUT]].T)
    columns = dict.fromkeys(NUMBER_COLUMNS, zero - 1)
    columns |= dict.fromkeys(
        ("worker", "user", "connect_ns", "answer_index", "events_before", "silent_events"), zero
    )
    columns |= {"number": number, "sent_ns": sent, "prompt_tokens": prompt, "status": zero + 200}
    columns["scheduled_ns"] = rows[:, SCHEDULED]
    return RecordTable(
        **columns | {"planned_tokens": output, "done_ns": np.where(ended, done, horizon_ns)},
        outcome=np.where(ended, OK, OPEN),
        name=zero - 1,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        at_ns=at,
        not_before_ns=at,
        tokens=np.ones(len(at), np.int64),
    )


def merge_same_instant(table: RecordTable) -> RecordTable:
    """Merge tokens of a request that were sent at the same instant into one event."""
    # `new` marks the tokens that begin an event. The first token of each request does so even
    # where the one before it in the flat array, another request's last, has the same instant.
    at, offsets = table.at_ns, table.offsets
    new = np.ones(len(at), bool)
    new[1:] = at[1:] != at[:-1]
    new[offsets[:-1][table.counts > 0]] = True
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(new)])
    first = np.flatnonzero(new)
    return replace(
        table,
        offsets=before[offsets],
        at_ns=at[first],
        not_before_ns=at[first],
        tokens=np.diff(np.append(first, len(at))),
    )
