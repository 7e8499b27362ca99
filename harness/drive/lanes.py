"""A round of reads by `_drain.c`, and the table through which it and Python share each connection.

A lane is a row of the table, at the index of its connection's descriptor; its first cells are
below, and the rest holds what a token's event of this stream looks like. Once Python has read a
response's head it lets go of the lane: reads of whole events then go straight to the decoder, and
Python sees only those that say something else.
"""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, Final

from harness.drive import _drain
from harness.drive.reading import END_OF_FILE, Seen
from harness.wire.alike import likeness

if TYPE_CHECKING:
    from harness.drive.batch import Batch
    from harness.drive.connection import Connection
    from harness.drive.reading import Round, Sockets

# as in _drain.c
CELLS: Final = 128
CLOSED, HAND_OVER, WHOLE_EVENTS, LEARNING = range(4)
(MODE, STREAM, DRAINED, LAST, ROUND, BODY, BYTES, BEFORE_SIZE, REST_SIZE, SHAPE) = range(10)

SHAPE_BYTES: Final = 8 * (CELLS - SHAPE)
MOST_LESSONS: Final = 8  # events of a stream that Python looks at: they may all be different


class Lane:
    """One connection's, with the interface of `wire.stamps.SocketStamps` as far as it is used."""

    __slots__ = ("_at", "_cells", "_lessons")

    def __init__(self, cells: array[int], fd: int, now_ns: int, number: int) -> None:
        """A socket that was connected, with nothing to read, in this round."""
        self._cells, self._at = cells, fd * CELLS
        self._lessons = 0
        cells[self._at : self._at + SHAPE] = array(
            "q", [HAND_OVER, 0, now_ns, now_ns, number, -1, 0, 0, 0]
        )

    def asked(self, sent_ns: int) -> None:
        """A request is about to be sent on this idle connection: its answer comes after."""
        cells, drained = self._cells, self._at + DRAINED
        cells[drained] = max(cells[drained], sent_ns)
        cells[self._at + BEFORE_SIZE] = 0  # another stream, another shape
        self._lessons = MOST_LESSONS

    def forget(self, now_ns: int) -> None:
        """What the last stamps said is void: nothing has arrived after now."""
        for cell in (self._at + DRAINED, self._at + LAST):
            self._cells[cell] = min(self._cells[cell], now_ns)

    def learn(self, body: bytes) -> None:
        """What was read last; perhaps a token like those to come."""
        if self._lessons <= 0:
            return
        self._lessons -= 1
        found = likeness(body[body.rfind(b"data: ") + 6 : -2])
        if found is None or len(found[0]) + len(found[1]) > SHAPE_BYTES:
            return
        before, rest = found
        begin = (self._at + SHAPE) * 8
        with memoryview(self._cells) as cells, cells.cast("B") as raw:
            raw[begin : begin + len(before) + len(rest)] = before + rest
        self._cells[self._at + BEFORE_SIZE] = len(before)
        self._cells[self._at + REST_SIZE] = len(rest)

    def let_go(self, stream: int) -> None:
        """Reads of whole events need not come here any more; none of this stream's is under way."""
        cells, at = self._cells, self._at
        known = cells[at + BEFORE_SIZE] > 0
        if known or not self._lessons:
            cells[at + STREAM] = stream
            cells[at + MODE] = LEARNING if self._lessons else WHOLE_EVENTS

    def take_back(self) -> tuple[int, int]:
        """Every read comes here again; (bytes, latest arrival or -1) of what did not since."""
        cells, at = self._cells, self._at
        cells[at + MODE] = HAND_OVER
        return self.since()

    def since(self) -> tuple[int, int]:
        """(bytes, latest arrival or -1) that were read since this was last asked."""
        cells, at = self._cells, self._at
        n_bytes, body_ns = cells[at + BYTES], cells[at + BODY]
        cells[at + BYTES], cells[at + BODY] = 0, -1
        return n_bytes, body_ns

    def close(self) -> None:
        """The descriptor is about to become another's."""
        self._cells[self._at + MODE] = CLOSED


class LaneReads:
    """Reads of whole events become rows; the others go to `deliver`, ends to `closed`."""

    def __init__(self, of: Sockets) -> None:
        """Read these."""
        self._of = of
        self._epoll = of.poll.fileno()
        self._cells = array("q")

    def admit(self, connection: Connection, now_ns: int, number: int) -> None:
        """Give it a lane, and watch it."""
        short = (connection.fd + 1) * CELLS - len(self._cells)
        if short > 0:
            self._cells.frombytes(bytes(8 * max(short, len(self._cells))))
        connection.lane = Lane(self._cells, connection.fd, now_ns, number)
        _drain.watch(self._epoll, connection.fd)

    def dismiss(self, connection: Connection) -> None:
        """Take it away."""
        if connection.lane is not None:
            connection.lane.close()

    def read(self, batch: Batch, when: Round) -> Seen:
        """One call for all of it."""
        _, connections, clock, deliver, closed, read_bytes = self._of
        number, polled_ns, before_ns, believe, _ = when
        # room for one more than there are: never full, so what is not listed is empty
        *seen, others = _drain.drain(
            self._epoll, self._cells, batch.rows, batch.blob, len(connections) + 1, read_bytes,
            number, polled_ns, before_ns, clock.offset_ns, clock.anchor_ns, believe,
        )  # fmt: skip
        for fd, data, at_ns, bound_ns, exact, code in others:
            if data:
                deliver(connections[fd], data, at_ns, bound_ns, exact)
            else:
                closed(connections[fd], os.strerror(code) if code else END_OF_FILE)
        return Seen(*seen)
