"""Small tables for the tests of `measure`: one line per request, times in ms; counts per level."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.core.load import Users
from harness.metrics.evidence import BINS_PER_SIDE, RATIO_BINS, Evidence, Window
from harness.records.folder_reader import Run
from harness.records.record_table import RecordTable
from harness.records.record_tables import Damage
from harness.records.request_record import Outcome, RequestRecord, ns_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.records.samples import ServerSample

MS = 1_000_000
SECOND = 1_000_000_000


def record(
    number: int,
    sent: float,
    events: list[float],
    done: float | None = None,
    outcome: Outcome = Outcome.ok,
    planned: int = 0,
    lows: list[float] | None = None,
    tokens: list[int] | None = None,
    worker: int = 0,
) -> RequestRecord:
    """A request sent at `sent` whose token-bearing events arrive at `events` (ms)."""
    at_ns = [round(event_ms * MS) for event_ms in events]
    not_before_ns = [round(low_ms * MS) for low_ms in lows] if lows else at_ns
    if done is None:
        done = max([sent, *events])
    return RequestRecord(
        worker=worker,
        number=number,
        user=number,
        sent_ns=round(sent * MS),
        done_ns=round(done * MS),
        outcome=outcome,
        planned_tokens=planned or len(events),
        answer_index=0 if events else -1,
        at_ns=ns_array(at_ns),
        not_before_ns=ns_array(not_before_ns),
        tokens=ns_array(tokens or [1] * len(events)),
    )


def table(*records: RequestRecord) -> RecordTable:
    """Columns of these records."""
    return RecordTable.from_records(records)


def window(users: int, start_s: float = 0, end_s: float = 60, index: int = 0) -> Window:
    """A step of `users` measured from `start_s` to `end_s`."""
    start, end = round(start_s * SECOND), round(end_s * SECOND)
    return Window(index, Users(users), "up", start, start, start, end, end)


def evidence(
    users: int,
    *counts: tuple[float, float],
    failed: float = 0,
    ended: float = 0,
    tokens: float = 0,
    seconds: float = 60,
    blocks: int = 8,
) -> Evidence:
    """A level with `counts` of (observations, over the limit) for each SLO.

    All are spread evenly over the blocks, so that the design effect is 1.
    """
    grids = []
    for n, over in counts:
        grid = np.zeros((blocks, RATIO_BINS))
        grid[:, BINS_PER_SIDE], grid[:, BINS_PER_SIDE + 1] = (n - over) / blocks, over / blocks
        grids.append(grid)
    each = [np.full(blocks, total / blocks) for total in (ended or 400, failed, tokens)]
    return Evidence(window(users, 0, seconds), SECOND, seconds, tuple(grids), *each)


def run_with(samples: Sequence[ServerSample]) -> Run:
    """A run of which nothing but the server's samples is looked at."""
    info = {"config": {}}
    return Run(Path(), info, table(), [], [], list(samples), [], [], Damage())
