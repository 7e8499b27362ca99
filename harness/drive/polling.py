"""One greenlet, one epoll over all sockets: each round reads every ready socket once.

It naps a little before each round so that reads come in bunches: with kernel stamps a late read
costs no accuracy, and waking up is what costs most. The clock is sampled once a round, after the
reads: when it was set meanwhile, or a stamp lies in the future, the round's stamps are taken back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import gevent
from gevent import monkey
from gevent.hub import get_hub

from harness.drive.clock import SHARP_NS
from harness.drive.connection import READ_BYTES
from harness.drive.stamping import ANCILLARY, stamp_of
from harness.wire.stamps import NO_STAMP, SocketStamps

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.drive.clock import Clock
    from harness.drive.connection import Connection
    from harness.drive.decoding import DecoderLink
    from harness.wire.stamps import Arrival

NAP_S: Final = 0.002
FEW: Final = 32  # sockets; below, waking up for each read is cheap enough
_epoll: Final = monkey.get_original("select", "epoll")

Deliver = "Callable[[Connection, bytes, Arrival], None]"
Closed = "Callable[[Connection, str], None]"


class Poller:
    """Reads go to `deliver`, ends of connections to `closed`; both run inside a round."""

    def __init__(
        self,
        clock: Clock,
        link: DecoderLink,
        deliver: Callable[[Connection, bytes, Arrival], None],
        closed: Callable[[Connection, str], None],
        *,
        stamped: bool,
        nap_s: float = NAP_S,
    ) -> None:
        """`stamped` False: the time of the read counts, and it never naps."""
        self.reads = self.stamped_reads = self.undrained_reads = 0
        self.n_bytes = 0
        self._clock, self._link = clock, link
        self._deliver, self._closed = deliver, closed
        self._stamped = stamped
        self._nap_s = nap_s if stamped else 0.0
        self._connections: dict[int, Connection] = {}
        self._poll = _epoll()
        self._round = 0
        self._polled_ns = self._before_ns = clock.sample()[0]
        self._distrust = 0  # rounds during which no stamp is believed
        self._loop = gevent.spawn(self._run)

    @property
    def connections(self) -> list[Connection]:
        """All that are polled, idle ones too."""
        return list(self._connections.values())

    def add(self, connection: Connection) -> None:
        """Poll this new connection from now on."""
        connection.stamps = SocketStamps(self._clock.now_ns(), self._round)
        self._connections[connection.fd] = connection
        self._poll.register(connection.fd, 1)

    def has(self, connection: Connection) -> bool:
        """Whether it is still open."""
        return self._connections.get(connection.fd) is connection

    def drop(self, connection: Connection) -> None:
        """Close it; harmless when repeated."""
        if self.has(connection):
            del self._connections[connection.fd]
            self._poll.unregister(connection.fd)
        connection.close()

    def _run(self) -> None:
        hub = get_hub()
        watcher = hub.loop.io(self._poll.fileno(), 1)
        try:
            while True:
                hub.wait(watcher)
                if self._nap_s and len(self._connections) >= FEW:
                    gevent.sleep(self._nap_s)
                self._read_round()
        finally:
            watcher.close()

    def _read_round(self) -> None:
        clock, connections = self._clock, self._connections
        self._before_ns, self._polled_ns = self._polled_ns, clock.now_ns()
        ready = self._poll.poll(0, len(connections) + 1)  # never full: what is not listed is empty
        self._round += 1
        first_row = len(self._link.batch)
        offset_ns, believe = clock.offset_ns, self._stamped and not self._distrust
        for fd, _ in ready:
            connection = connections.get(fd)
            if connection is not None:
                self._read(connection, offset_ns, believe)
        now, stepped = clock.sample()
        if self._stamped:
            self._check_stamps(first_row, now, stepped=stepped)
        self._link.round_is_over()

    def _read(self, connection: Connection, offset_ns: int, believe: bool) -> None:
        """One read of one socket, and when it arrived."""
        try:
            data, ancillary, _, _ = connection.recvmsg(READ_BYTES, ANCILLARY)
        except BlockingIOError:
            return
        except OSError as error:
            self._closed(connection, error.strerror or str(error))
            return
        if not data:
            self._closed(connection, "the server closed the connection")
            return
        size = len(data)
        drained = size < READ_BYTES
        self.reads += 1
        self.n_bytes += size
        self.undrained_reads += not drained
        stamps = connection.stamps
        stamp = NO_STAMP
        if believe and ancillary:
            stamp = stamp_of(ancillary)
            if stamp != NO_STAMP:
                self.stamped_reads += 1
                stamp -= offset_ns
        read_ns = 0 if stamp >= stamps.drained_ns else self._clock.now_ns()
        arrival = stamps.arrival(
            stamp, self._polled_ns, read_ns, drained, self._round, self._before_ns
        )
        self._deliver(connection, data, arrival)

    def _check_stamps(self, first_row: int, now: int, *, stepped: bool) -> None:
        """Take back what this round's stamps said if they cannot be true."""
        latest = now + SHARP_NS
        rows = self._link.batch.rows
        future = stepped or any(at > latest for at in rows[first_row * 4 + 1 :: 4])
        if future:
            self._link.batch.unsure(first_row, now, latest_ns=0 if stepped else latest)
            for connection in self._connections.values():
                connection.stamps.forget(now)
        # what was queued before the step may be read in the next round
        self._distrust = 1 if stepped else 0

    def close(self) -> None:
        """Close every connection."""
        self._loop.kill()
        for connection in self.connections:
            self.drop(connection)
        self._poll.close()
