"""What was played, as the records that clients would have of it."""

from __future__ import annotations

from array import array
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.measure.table import OK, OPEN, RecordTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.engine.scheduler import Sequence

    Ints = NDArray[np.int64]

ROW: Final = 7  # numbers of a request: `_row`
PLACE, NUMBER, SENT, DONE, PROMPT, OUTPUT, SPANS = range(ROW)


class Played:
    """All requests that the engine was given; `table` has those that matter at an instant.

    Those that ended are kept as numbers, in the order of ending: nothing about them changes, and
    a table every second of a long level would go through thousands of objects each time.
    """

    def __init__(self) -> None:
        """None yet."""
        self._count = 0
        self._open: dict[int, tuple[int, int, Sequence]] = {}  # number -> (place, sent, sequence)
        self._ended: list[Sequence] = []
        self._rows = array("q")  # of each that ended, ROW numbers
        self._spans = array("q")  # of the same, [first step, end step) of each of its spans

    @property
    def sequences(self) -> list[Sequence]:
        """What the engine knows of each request, in the order of a table of all of them."""
        ended = zip(self._rows[PLACE::ROW], self._ended, strict=True)
        under_way = ((place, sequence) for place, _, sequence in self._open.values())
        return [sequence for _, sequence in sorted(chain(ended, under_way))]

    def add(self, sent_ns: int, sequence: Sequence) -> None:
        """A request reached the engine."""
        self._open[sequence.request_id] = (self._count, sent_ns, sequence)
        self._count += 1

    def end(self, number: int, done_ns: int) -> None:
        """Its client has its last token."""
        place, sent_ns, sequence = self._open.pop(number)
        self._ended.append(sequence)
        self._rows.extend(_row(place, sent_ns, done_ns, sequence))
        self._spans.extend(chain.from_iterable(sequence.spans))

    def forget(self, before_ns: int) -> None:
        """Let those go that ended before this, as far as no later one ended before them."""
        rows, old, spans = self._rows, 0, 0
        while old < len(self._ended) and rows[old * ROW + DONE] < before_ns:
            spans += rows[old * ROW + SPANS]
            old += 1
        del self._ended[:old], self._rows[: old * ROW], self._spans[: 2 * spans]

    def table(self, ends: list[Ints], from_ns: int, horizon_ns: int) -> RecordTable:
        """Requests that ended at `from_ns` or later or are open, as known at `horizon_ns`.

        Token times are slices of the step ends, known ones only. `ends` has one array for each API
        server; they take turns in the requests.
        """
        ended = np.array(self._rows, np.int64).reshape(-1, ROW)
        late = (ended[:, DONE] >= from_ns) & (ended[:, SENT] <= horizon_ns)
        late_spans = np.array(self._spans, np.int64).reshape(-1, 2)
        late_spans = late_spans[np.repeat(late, ended[:, SPANS])]
        under_way = [one for one in self._open.values() if one[1] <= horizon_ns]
        rows = np.array([_row(place, sent, -1, s) for place, sent, s in under_way], np.int64)
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


def _row(place: int, sent_ns: int, done_ns: int, sequence: Sequence) -> tuple[int, ...]:
    return (
        place,
        sequence.request_id,
        sent_ns,
        done_ns,
        sequence.prompt_tokens,
        sequence.output_tokens,
        len(sequence.spans),
    )


def _tokens(
    rows: Ints, row_of: Ints, spans: Ints, ends: list[Ints], horizon_ns: int
) -> tuple[Ints, Ints]:
    """(token times by request, how many each request has)."""
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
    return RecordTable(
        worker=zero,
        number=number,
        user=zero,
        scheduled_ns=zero - 1,
        connect_ns=zero,
        sent_ns=sent,
        head_ns=zero - 1,
        first_event_ns=zero - 1,
        done_ns=np.where(ended, done, horizon_ns),
        outcome=np.where(ended, OK, OPEN),
        status=zero + 200,
        planned_tokens=output,
        prompt_tokens=prompt,
        output_tokens=zero - 1,
        cached_tokens=zero - 1,
        answer_index=zero,
        events_before=zero,
        silent_events=zero,
        last_silent_ns=zero - 1,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        at_ns=at,
        not_before_ns=at,
        tokens=np.ones(len(at), np.int64),
    )


def merged(table: RecordTable) -> RecordTable:
    """Tokens of a request that were sent at the same instant are one event."""
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
