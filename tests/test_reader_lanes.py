"""`_drain.c` says what the Python beside it says."""

from __future__ import annotations

import random
import select
import socket
import time
from array import array
from contextlib import closing
from typing import Any

import pytest
from wire_examples import chunk, delta, event

from harness.drive.batch import BYTES, EXACT, ROW, TOKEN, Batch
from harness.drive.clock import CLOCK
from harness.drive.reading import END_OF_FILE, Round, Sockets, built
from harness.wire.stamps import NO_STAMP, SocketStamps

pytestmark = pytest.mark.skipif(not built(), reason="no C compiler at the installation")


@pytest.mark.parametrize("seed", range(20))
def test_arrivals_as_in_python(seed: int) -> None:
    """Any sequence of reads: stamps missing, too old or of the future, rounds left out."""
    from harness.drive._drain import Drain, arrived  # noqa: PLC0415 - it may not be built
    from harness.drive.lanes import CELLS, Lane  # noqa: PLC0415 - as above

    rng = random.Random(seed)  # noqa: S311 - a test's dice
    cells = memoryview(array("q", bytes(8 * CELLS)))
    with closing(select.epoll()) as poll, closing(Drain(poll.fileno(), cells, 1, 0, 0, 0)) as drain:
        lane, stamps = Lane(cells, drain, 0, 500, 0), SocketStamps(500, 0)
        polled = [0]
        for number in range(1, 200):
            polled.append(polled[-1] + rng.randint(1, 1000))
            now, before = polled[-1], polled[-2]
            if rng.random() < 0.1:
                for either in (lane, stamps):
                    either.asked(now - 50)
            if rng.random() < 0.1:
                for either in (lane, stamps):
                    either.forget(now - 20)
            if rng.random() < 0.7:
                stamp = rng.choice((NO_STAMP, now - rng.randint(-300, 1500)))
                drained = rng.random() < 0.7
                want = stamps.arrival(stamp, now, now + 100, drained, number, before)
                got = arrived(cells, stamp, now, now + 100, drained, number, before)
                assert got == want


class Lanes:
    """One lane on a socket pair, and what was left to Python."""

    def __init__(self, read_bytes: int = 65_536, *, stand_in: bool = False) -> None:
        """Let go for stream 7."""
        from harness.drive.lanes import Lane, LaneReads  # noqa: PLC0415 - it may not be built

        self.theirs, self.sock = socket.socketpair()
        self.fd = self.sock.fileno()
        self.lane: Lane | None = None
        self.left: list[Any] = []
        self.batch = Batch()
        self.poll = select.epoll()
        sockets = Sockets(
            self.poll, {self.fd: self}, CLOCK, lambda _, data, *__: self.left.append(data),
            lambda _, why: self.left.append(why), read_bytes, stand_in,
        )  # type: ignore[dict-item]  # fmt: skip
        self.reads = LaneReads(sockets)
        self.reads.admit(self, CLOCK.now_ns(), 0)  # type: ignore[arg-type]
        assert self.lane is not None
        self.lane.asked(CLOCK.now_ns())

    def close(self) -> None:
        """All three descriptors."""
        self.reads.close()
        for one in (self.poll, self.theirs, self.sock):
            one.close()

    def rows(self, data: bytes, taught: bytes = b"") -> list[tuple[int, int, int]]:
        """(stream, kind without exactness, value) of each row that one read makes."""
        assert self.lane is not None
        for _ in range(1 if taught else 8):
            self.lane.learn(taught)
        self.lane.let_go(7)
        self.theirs.sendall(data)
        self.round()
        return self.got()

    def round(self) -> None:
        """Read what there is."""
        self.reads.read(self.batch, Round(1, CLOCK.now_ns(), 0, True, 0))
        self.reads.over(believe=True)

    def got(self) -> list[tuple[int, int, int]]:
        """(stream, kind without exactness, value) of each row."""
        return [(s, k & ~EXACT, v) for s, _, _, k, v in ROW.iter_unpack(self.batch.rows)]


def token(n: int, text: str = "x", **more: Any) -> bytes:
    """An event with the running count n."""
    return event(delta(usage=n, content=text) | more)


ONE = token(1)
OTHER = token(9, other=True)
ERROR = event({"error": {"message": "out of room"}})
MANY = b"".join(chunk(token(n)) for n in range(2, 42))


@pytest.mark.parametrize(
    ("data", "taught", "rows", "blob", "left"),
    [
        # like the one before: its count is all that the decoder needs
        (chunk(token(12)), ONE, [(TOKEN, 12)], b"", []),
        (chunk(token(12, "\u20ac \\n")), ONE, [(TOKEN, 12)], b"", []),
        (MANY, ONE, [(TOKEN, n) for n in range(2, 42)], b"", []),
        (chunk(event(delta(content="y"))), event(delta(content="x")), [(TOKEN, -1)], b"", []),
        # unlike it: Python may learn from it, while it still learns
        (chunk(OTHER), ONE, [], b"", [chunk(OTHER)]),
        (chunk(token(12)) + chunk(OTHER), ONE, [], b"", [chunk(token(12)) + chunk(OTHER)]),
        (chunk(token(3, "")), ONE, [], b"", [chunk(token(3, ""))]),
        (chunk(token(3, 'a"')), ONE, [], b"", [chunk(token(3, 'a"'))]),
        # nothing was learnt, nothing will be: the decoder gets the bytes, without the chunks
        (chunk(ONE), b"", [(BYTES, len(ONE))], ONE, []),
        (chunk(ONE) + chunk(OTHER), b"", [(BYTES, len(ONE + OTHER))], ONE + OTHER, []),
        # what the user must hear of at once, and what is not whole
        (chunk(event(b"[DONE]")), b"", [], b"", [chunk(event(b"[DONE]"))]),
        (chunk(ONE) + chunk(ERROR), b"", [], b"", [chunk(ONE) + chunk(ERROR)]),
        (chunk(ONE)[:-1], b"", [], b"", [chunk(ONE)[:-1]]),
        (chunk(ONE) + b"0\r\n\r\n", b"", [], b"", [chunk(ONE) + b"0\r\n\r\n"]),
        (chunk(ONE) + b"5", b"", [], b"", [chunk(ONE) + b"5"]),
        (chunk(ONE[:20]), b"", [], b"", [chunk(ONE[:20])]),
        (chunk(b"event: x\n" + ONE), b"", [], b"", [chunk(b"event: x\n" + ONE)]),
        (b"ffffffffff\r\n" + ONE, b"", [], b"", [b"ffffffffff\r\n" + ONE]),
        (b"%x;a=b\r\n%b\r\n" % (len(ONE), ONE), b"", [], b"",
         [b"%x;a=b\r\n%b\r\n" % (len(ONE), ONE)]),
    ],
)  # fmt: skip
def test_what_a_read_becomes(
    data: bytes, taught: bytes, rows: list[tuple[int, int]], blob: bytes, left: list[bytes]
) -> None:
    """Rows for the decoder, their bytes, and what Python is to read."""
    with closing(Lanes()) as it:
        got = it.rows(data, taught)
        assert got == [(7, *row) for row in rows]
        assert (bytes(it.batch.blob), it.left) == (blob, left)
        assert it.lane is not None
        handed = sum(map(len, left))
        assert it.lane.since()[0] == len(data) - handed


def test_a_large_read() -> None:
    """Its events are moved together."""
    data = b"".join(chunk(OTHER) for _ in range(400))
    with closing(Lanes(read_bytes=250_000)) as it:
        it.rows(data)
        assert bytes(it.batch.blob) == OTHER * 400
        assert it.left == []


def test_ends() -> None:
    """A closed connection has its words."""
    with closing(Lanes()) as it:
        it.theirs.close()
        it.round()
        assert it.left == [END_OF_FILE]


def test_the_thread_keeps_the_order() -> None:
    """Read while nobody asks: a token, then what Python must see, and from there on all of it."""
    with closing(Lanes(stand_in=True)) as it:
        it.round()
        it.lane.learn(ONE)
        it.lane.let_go(7)
        for data in (chunk(token(2)), chunk(token(3)), chunk(OTHER), chunk(token(4))):
            it.theirs.sendall(data)
            time.sleep(0.02)
        assert it.poll.poll(0) != []  # the loop would wake up
        it.round()
        assert it.got() == [(7, TOKEN, 2), (7, TOKEN, 3)]
        assert it.left == [chunk(OTHER), chunk(token(4))]
        assert it.poll.poll(0) == []


def test_a_connection_that_is_gone() -> None:
    """What the thread has read of it is dropped: its descriptor may be another's by now."""
    with closing(Lanes(stand_in=True)) as it:
        it.round()
        it.theirs.sendall(b"HTTP/1.1 200 OK")
        time.sleep(0.02)
        it.reads.dismiss(it)
        it.round()
        assert it.left == []
