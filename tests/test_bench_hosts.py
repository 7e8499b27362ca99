"""The benchmark of several hosts: what is counted and compared there; the whole of it, small."""

from __future__ import annotations

import shutil
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from accuracy import by_id
from namespaces import can_be_apart
from sent import Sends, Sent, sender_ids
from two_hosts import Asked, WorkerClock, ahead_ns, answer, corrected, facts, measured, misses

from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord
from harness.units import MS

if TYPE_CHECKING:
    from collections.abc import Callable

STREAMS, WORKERS, TOKENS = 32, 4, 16


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler: the server needs one")
@pytest.mark.process
@pytest.mark.long
def test_four_workers_with_clocks_off(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Nothing is lost, and clocks are as right as the harness says. Latencies are printed.

    Four clocks are off by 100 and 200 ms either way. An event that came before it was sent, by more
    than clocks may be off, is impossible on the busiest machine; a late stamp is not.
    """
    # Locust's time begins before load processes have started, which took seven seconds on a machine
    # that ran three other tests: of eight, one was left.
    asked = Asked(STREAMS, WORKERS, TOKENS, seconds=30.0, apart=can_be_apart())
    got = measured(asked, tmp_path)
    assert (got.arrived, got.records) == (got.sent, got.sent)
    assert got.sent >= WORKERS
    assert [clock.planted_ms for clock in got.clocks] == [-200, -100, 100, 200]
    assert got.bound_ms is not None
    assert got.clocks_wrong_ms <= got.bound_ms
    assert (got.row.events, got.early) == (got.sent * TOKENS, 0)
    figure(answer(asked, got))
    figure("; ".join(f"{name}: {shown}" for name, shown in facts(got)))


def read_by(worker: int, ahead_ms: int) -> RequestRecord:
    """A request that left at 100 ms and arrived 2 ms later; its answers took 1 and 3 ms back."""
    at_ns = array("q", ((ahead_ms + at) * MS for at in (201, 223)))
    sent_ns = (100 + ahead_ms) * MS
    times = {"at_ns": at_ns, "not_before_ns": at_ns, "tokens": array("q", (1, 1))}
    return RequestRecord(worker, 0, 0, sent_ns, at_ns[-1], Outcome.ok, **times)


def sent_to(worker: int) -> Sends:
    """The server's side of it."""
    at_ns = np.array((200, 220)) * MS
    sender = int(sender_ids(np.array(worker), np.array(0)))
    return Sends(102 * MS, 2, 0, at_ns, at_ns, sender)


@pytest.mark.parametrize(
    ("ahead_ms", "want_ahead_ms", "want_misses"),
    [
        # of two events, those that are too early and too late for clocks that agree within 4 ms
        (0, (-2, 1), (0, 0)),
        (5, (3, 6), (0, 2)),
        (2, (0, 3), (0, 1)),  # 3 and 5 ms after they were sent
        (-7, (-9, -6), (1, 0)),  # 6 and 4 ms before
        (-9, (-11, -8), (2, 0)),
    ],
)
def test_clocks_by_the_way_there_and_back(
    ahead_ms: int, want_ahead_ms: tuple[int, int], want_misses: tuple[int, int]
) -> None:
    """Of the second of two workers; the first's clock is right."""
    table = RecordTable.from_records([read_by(0, 0), read_by(1, ahead_ms)])
    sent = Sent.of([sent_to(1), sent_to(0)], 2)
    pairs = by_id(table, sent)
    low_ns, high_ns = ahead_ns(1, table, sent, pairs)
    assert (low_ns // MS, high_ns // MS) == want_ahead_ms
    assert misses(table, sent, pairs, 4 * MS) == want_misses
    low_ms, high_ms = want_ahead_ms
    moved = corrected(table, [WorkerClock(1, "w1", 0.0, low_ms, high_ms)])
    # by the requests' way: the 2 ms that the quickest took are not known
    assert (moved.sent_ns // MS).tolist() == [100, 102]
    assert (moved.at_ns // MS).tolist() == [201, 223, 203, 225]
    assert moved.not_before_ns.tolist() == moved.at_ns.tolist()
