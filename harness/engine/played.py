"""What was played, as the records that clients would have of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from harness.measure.table import OK, OPEN, RecordTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from harness.engine.scheduler import Sequence

    Ints = NDArray[np.int64]


def columns(
    rows: list[tuple[int, int, Sequence]], ends: list[Ints], horizon_ns: int
) -> RecordTable:
    """Of (sent, done or -1, sequence): token times are slices of the step ends, known ones only.

    `ends` has one array for each API server; they take turns in the requests.
    """
    known = np.array([np.searchsorted(one, horizon_ns, "right") for one in ends], np.int64)
    place = np.cumsum([0, *(len(one) for one in ends[:-1])])
    spans = [(i, s.request_id % len(ends), *span) for i, (*_, s) in enumerate(rows)
             for span in s.spans]  # fmt: skip
    flat = np.array(spans, np.int64).reshape(-1, 4)
    row, whose, first = flat[:, 0], flat[:, 1], flat[:, 2]
    last = np.minimum(flat[:, 3], known[whose])
    sizes = (last - first).clip(min=0)
    starts = np.cumsum(sizes) - sizes
    index = np.arange(int(sizes.sum())) - np.repeat(starts - first - place[whose], sizes)
    counts = np.bincount(row, weights=sizes, minlength=len(rows)).astype(np.int64)
    at = np.concatenate(ends)[index]
    done = np.array([done for _, done, _ in rows], np.int64)
    ended = (done >= 0) & (done <= horizon_ns)
    sent = np.array([sent for sent, *_ in rows], np.int64)
    zero = np.zeros(len(rows), np.int64)
    return RecordTable(
        worker=zero,
        number=np.array([s.request_id for *_, s in rows], np.int64),
        user=zero,
        scheduled_ns=zero - 1,
        connect_ns=zero,
        sent_ns=sent,
        head_ns=zero - 1,
        first_event_ns=zero - 1,
        done_ns=np.where(ended, done, horizon_ns),
        outcome=np.where(ended, OK, OPEN),
        status=zero + 200,
        planned_tokens=np.array([s.output_tokens for *_, s in rows], np.int64),
        prompt_tokens=np.array([s.prompt_tokens for *_, s in rows], np.int64),
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
