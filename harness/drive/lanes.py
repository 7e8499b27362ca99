"""A round of reads by `_drain.c`, and the table through which it and Python share each connection.

A lane is a row of the table, at the index of its connection's descriptor; its first cells are
below, and the rest holds what a token's event of this stream looks like. Once Python has read a
response's head it lets go of the lane: reads of whole events then go straight to the decoder, and
Python sees only those that say something else.

A thread of `_drain` reads too, where the loop is late. So a lane is touched under the drain's lock
only; it may be taken again by whoever has it.
"""

from __future__ import annotations

import os
import resource
from array import array
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap
from typing import TYPE_CHECKING, Final

from harness.drive._drain import Drain
from harness.drive.reading import END_OF_FILE, Seen
from harness.wire.alike import likeness

if TYPE_CHECKING:
    from harness.drive.batch import Batch
    from harness.drive.connection import Connection
    from harness.drive.reading import Round, Sockets

# as in _lane.h
CELLS: Final = 128
CLOSED, HAND_OVER, WHOLE_EVENTS, LEARNING = range(4)
(MODE, STREAM, DRAINED, LAST, ROUND, BODY, BYTES, BEFORE_SIZE, REST_SIZE, WAITING, SHAPE) = range(
    11
)

SHAPE_BYTES: Final = 8 * (CELLS - SHAPE)
MOST_LESSONS: Final = 8  # events of a stream that Python looks at: they may all be different
MOST_LANES: Final = 1 << 20  # what Linux allows a process unless told otherwise
MAP_NORESERVE: Final = 0x4000  # Linux; `mmap` names it from Python 3.13 on
LATE_NS: Final = 3_000_000  # since the last round: then the thread reads


def table() -> memoryview[int]:
    """A lane for every descriptor that there may be; memory is taken where one is touched."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n = MOST_LANES if hard == resource.RLIM_INFINITY else min(hard, MOST_LANES)
    memory = mmap(-1, 8 * CELLS * n, flags=MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)
    return memoryview(memory).cast("q")


class Lane:
    """One connection's, with the interface of `wire.stamps.SocketStamps` as far as it is used."""

    __slots__ = ("_at", "_cells", "_drain", "_lessons")

    def __init__(
        self, cells: memoryview[int], drain: Drain, fd: int, now_ns: int, number: int
    ) -> None:
        """A socket that was connected, with nothing to read, in this round."""
        self._cells, self._drain, self._at = cells, drain, fd * CELLS
        self._lessons = 0
        cells[self._at : self._at + SHAPE] = memoryview(
            array("q", [HAND_OVER, 0, now_ns, now_ns, number, -1, 0, 0, 0, 0])
        )

    def asked(self, sent_ns: int) -> None:
        """A request is about to be sent on this idle connection: its answer comes after."""
        cells, drained = self._cells, self._at + DRAINED
        self._drain.lock()
        cells[drained] = max(cells[drained], sent_ns)
        cells[self._at + BEFORE_SIZE] = 0  # another stream, another shape
        self._drain.unlock()
        self._lessons = MOST_LESSONS

    def forget(self, now_ns: int) -> None:
        """What the last stamps said is void: nothing has arrived after now."""
        self._drain.lock()
        for cell in (self._at + DRAINED, self._at + LAST):
            self._cells[cell] = min(self._cells[cell], now_ns)
        self._drain.unlock()

    def learn(self, body: bytes) -> None:
        """What was read last, in this round; perhaps a token like those to come."""
        if self._lessons <= 0:
            return
        self._lessons -= 1
        found = likeness(body[body.rfind(b"data: ") + 6 : -2])
        if found is None or len(found[0]) + len(found[1]) > SHAPE_BYTES:
            return
        before, rest = found
        begin = (self._at + SHAPE) * 8
        with self._cells.cast("B") as raw:
            raw[begin : begin + len(before) + len(rest)] = before + rest
        self._cells[self._at + BEFORE_SIZE] = len(before)
        self._cells[self._at + REST_SIZE] = len(rest)

    def let_go(self, stream: int) -> None:
        """In its round: from now on reads of whole events need not come here any more."""
        cells, at = self._cells, self._at
        known = cells[at + BEFORE_SIZE] > 0
        if known or not self._lessons:
            cells[at + STREAM] = stream
            cells[at + MODE] = LEARNING if self._lessons else WHOLE_EVENTS

    def take_back(self) -> tuple[int, int]:
        """Every read comes here again; (bytes, latest arrival or -1) of what did not since."""
        self._drain.lock()
        self._cells[self._at + MODE] = HAND_OVER
        since = self.since()
        self._drain.unlock()
        return since

    def since(self) -> tuple[int, int]:
        """(bytes, latest arrival or -1) that were read since this was last asked."""
        cells, at = self._cells, self._at
        self._drain.lock()
        n_bytes, body_ns = cells[at + BYTES], cells[at + BODY]
        cells[at + BYTES], cells[at + BODY] = 0, -1
        self._drain.unlock()
        return n_bytes, body_ns

    def close(self) -> None:
        """The descriptor is about to become another's."""
        self._cells[self._at + MODE] = CLOSED


class LaneReads:
    """Reads of whole events become rows; the others go to `deliver`, ends to `closed`."""

    def __init__(self, of: Sockets) -> None:
        """Read these. Raises OSError when there can be no thread."""
        self._of = of
        self._cells = table()
        self._drain = Drain(
            of.poll.fileno(), self._cells, of.read_bytes, of.clock.anchor_ns, of.clock.offset_ns,
            LATE_NS if of.stand_in else 0,
        )  # fmt: skip

    def admit(self, connection: Connection, now_ns: int, number: int) -> None:
        """Give it a lane, and watch it."""
        self._drain.lock()
        try:
            number = self._drain.watch(connection.fd)
            connection.lane = Lane(self._cells, self._drain, connection.fd, now_ns, number)
        finally:
            self._drain.unlock()

    def dismiss(self, connection: Connection) -> None:
        """Take it away."""
        if connection.lane is not None:
            self._drain.lock()
            connection.lane.close()
            self._drain.forget(connection.fd)
            self._drain.unlock()

    def read(self, batch: Batch, when: Round) -> Seen:
        """One call for all of it. From here to `over` the lock is ours."""
        _, connections, clock, deliver, closed, *_ = self._of
        drain = self._drain
        drain.lock()
        drain.trust(clock.offset_ns, when.believe)
        *seen, others = drain.round(batch.rows, batch.blob)
        for fd, data, at_ns, bound_ns, exact, code in others:
            connection = connections.get(fd)
            if connection is None:
                continue  # closed earlier in this round
            if data:
                deliver(connection, data, at_ns, bound_ns, exact)
            else:
                closed(connection, os.strerror(code) if code else END_OF_FILE)
        return Seen(*seen)

    def over(self, believe: bool) -> None:
        """The round has been checked: others may read."""
        self._drain.trust(self._of.clock.offset_ns, believe)
        self._drain.unlock()

    def close(self) -> None:
        """No more rounds."""
        self._drain.close()
