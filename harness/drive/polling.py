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

NAP_S: Final = 0.002
END_OF_FILE: Final = "the server closed the connection"
FEW: Final = 32  # sockets; below, waking up for each read is cheap enough
_epoll: Final = monkey.get_original("select", "epoll")


class Poller:
    """Reads go to `deliver`, ends of connections to `closed`; both run inside a round."""

    def __init__(
        self,
        clock: Clock,
        link: DecoderLink,
        deliver: Callable[[Connection, bytes, int, int, bool], None],
        closed: Callable[[Connection, str], None],
        *,
        stamped: bool,
        nap_s: float = NAP_S,
    ) -> None:
        """`stamped` False: the time of the read counts, and it never naps."""
        self.reads = self.stamped_reads = self.n_bytes = 0
        self._clock, self._link = clock, link
        self._deliver, self._closed = deliver, closed
        self._stamped = stamped
        self._nap_s = nap_s if stamped else 0.0
        self._connections: dict[int, Connection] = {}
        self._poll = _epoll()
        self._round = 0
        self._polled_ns = self._before_ns = clock.sample()[0]
        self._distrust = False  # the next round's stamps are not believed
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
            ready = 0
            while True:
                # while rounds find something to read, the nap alone is the wait
                if not ready:
                    hub.wait(watcher)
                napping = self._nap_s > 0 and len(self._connections) >= FEW
                if napping:
                    gevent.sleep(self._nap_s)
                ready = self._read_round() * napping
        finally:
            watcher.close()

    def _read_round(self) -> int:
        """Sockets that were ready."""
        clock, connections, batch = self._clock, self._connections, self._link.batch
        self._before_ns, self._polled_ns = self._polled_ns, clock.now_ns()
        ready = self._poll.poll(0, len(connections) + 1)  # never full: what is not listed is empty
        self._round += 1
        first_row = len(batch)
        self._read_all(ready)
        now, stepped = clock.sample()
        if self._stamped:
            self._check_stamps(first_row, now, stepped=stepped)
        self._link.round_is_over()
        return len(ready)

    def _check_stamps(self, first_row: int, now: int, *, stepped: bool) -> None:
        """Take back what this round's stamps said if they cannot be true."""
        batch = self._link.batch
        latest = now + SHARP_NS
        if stepped or batch.latest_ns(first_row) > latest:
            batch.unsure(first_row, now, latest_ns=0 if stepped else latest)
            for connection in self._connections.values():
                connection.stamps.forget(now)
        self._distrust = stepped  # what was queued before the step may be read in the next round

    def _read_all(self, ready: list[tuple[int, int]]) -> None:
        """One read of each ready socket, and when it arrived: the path of every token, so flat."""
        connections, deliver = self._connections, self._deliver
        now_ns, offset_ns = self._clock.now_ns, self._clock.offset_ns
        polled_ns, before_ns, number = self._polled_ns, self._before_ns, self._round
        believe = self._stamped and not self._distrust
        reads = stamped = n_bytes = 0
        for fd, _ in ready:
            connection = connections.get(fd)
            if connection is None:
                continue  # closed earlier in this round
            try:
                data, ancillary, _, _ = connection.recvmsg(READ_BYTES, ANCILLARY)
            except BlockingIOError:
                continue
            except OSError as error:
                self._closed(connection, error.strerror or str(error))
                continue
            if not data:
                self._closed(connection, END_OF_FILE)
                continue
            size = len(data)
            reads += 1
            n_bytes += size
            stamps = connection.stamps
            stamp = NO_STAMP
            if believe and ancillary and (real_ns := stamp_of(ancillary)) != NO_STAMP:
                stamped += 1
                stamp = real_ns - offset_ns
            read_ns = 0 if stamp >= stamps.drained_ns else now_ns()
            drained = size < READ_BYTES
            arrival = stamps.arrival(stamp, polled_ns, read_ns, drained, number, before_ns)
            deliver(connection, data, *arrival)
        self.reads += reads
        self.stamped_reads += stamped
        self.n_bytes += n_bytes

    def close(self) -> None:
        """Close every connection."""
        self._loop.kill()
        for connection in self.connections:
            self.drop(connection)
        self._poll.close()
