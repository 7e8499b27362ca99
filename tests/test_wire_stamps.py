"""From reads to intervals: the rules as arithmetic, one socket at a time.

Rounds are numbered from 1; round n polls at 1000 n and reads at 1000 n + 100. The socket was
connected at 500, in round 0.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from harness.reader.stamping import NO_STAMP, Arrival, SocketStamps


class Read(NamedTuple):
    """One read: the round it happened in, its stamp, and whether it drained the socket."""

    round: int
    stamp: int
    drained: bool = True


@pytest.mark.parametrize(
    ("reads", "want"),
    [
        # drained: exact at its stamp; what came before in the read is bounded by the connect
        ([Read(1, 900)], [(900, 500, True)]),
        # a stamp later than the poll: it came while the round was reading
        ([Read(1, 1050)], [(1050, 500, True)]),
        # read in the round before too: bounded by that read, at the earliest when it polled
        ([Read(1, 900), Read(2, 1900)], [(900, 500, True), (1900, 1000, True)]),
        # rounds 2 and 3 did not report it: not there before round 3 polled
        ([Read(1, 900), Read(4, 3900)], [(900, 500, True), (3900, 3000, True)]),
        # not drained: anywhere up to the stamp, and the next read is not bounded by it
        ([Read(1, 900, drained=False), Read(2, 900)], [(900, 500, False), (900, 500, True)]),
        # a stamp older than the last drain (polled at 1000): between the stamp and the read
        ([Read(1, 900), Read(2, 990)], [(900, 500, True), (2100, 990, False)]),
        # one older than what is known to have come since: a running maximum, not exact
        (
            [Read(1, 1080), Read(2, 1040)],
            [(1080, 500, True), (1080, 1000, False)],
        ),
        # no stamps: the time of the read, and the same bounds
        ([Read(1, NO_STAMP)], [(1100, 500, False)]),
        ([Read(1, NO_STAMP), Read(4, NO_STAMP)], [(1100, 500, False), (4100, 3000, False)]),
        # a segment that was stamped before stamping had begun has none: uncertain, then exact
        ([Read(1, NO_STAMP), Read(2, 1500)], [(1100, 500, False), (1500, 1000, True)]),
        # not drained, then not reported: still not bounded by the read that left something behind
        (
            [Read(1, 900, drained=False), Read(3, 2500)],
            [(900, 500, False), (2500, 2000, True)],
        ),
    ],
)
def test_arrivals(reads: list[Read], want: list[Arrival]) -> None:
    """(at_ns, bound_ns, exact) of each read."""
    stamps = SocketStamps(500, 0)
    got = []
    for read in reads:
        began = 1000 * read.round
        before = 1000 * (read.round - 1)
        arrival = stamps.arrival(read.stamp, began, began + 100, read.drained, read.round, before)
        got.append(arrival)
    assert got == want


def test_an_answer_comes_after_its_request() -> None:
    """An idle connection that nobody polled for long: the request's time is the bound."""
    stamps = SocketStamps(500, 0)
    stamps.mark_request_sent(700)
    assert stamps.arrival(900, 1000, 1100, True, 1, 0) == (900, 700, True)


def test_a_stamp_of_the_future_is_forgotten() -> None:
    """After the clock was set, its maximum would stay for ever."""
    stamps = SocketStamps(500, 0)
    assert stamps.arrival(99_000, 1000, 1100, True, 1, 0) == (99_000, 500, True)
    stamps.clamp_bounds(1200)
    assert stamps.arrival(1900, 2000, 2100, True, 2, 1000) == (1900, 1000, True)
