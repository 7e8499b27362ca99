"""One greenlet, one epoll over all sockets: each round reads every ready socket once.

It naps a little before each round so that reads come in bunches: with kernel stamps a late read
costs no accuracy, and waking up is what costs most. The clock is sampled once a round, after the
reads: when it was set meanwhile, or a stamp lies in the future, the round's stamps are taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import gevent
from gevent import monkey
from gevent.hub import get_hub

from harness.reader.backends import IN_C, CReader, PythonReader, Sockets, which
from harness.reader.client_connection import READ_BYTES, Connection
from harness.reader.clock import SHARP_NS, Clock

if TYPE_CHECKING:
    from harness.reader.decoder_link import DecoderLink

NAP_S: Final = 0.002
FEW: Final = 32  # sockets; below, waking up for each read is cheap enough
# the system's own: gevent's patches leave no epoll, and a poll that lets other greenlets run
_epoll: Final = monkey.get_original("select", "epoll")
_poll: Final = monkey.get_original("select", "poll")


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
        read_bytes: int = READ_BYTES,
        stand_in: bool = True,
    ) -> None:
        """`stamped` False: the time of the read counts, and it never naps.

        `stand_in`: see `backends.Sockets`.
        """
        self.reads = 0
        self.stamped_reads = 0
        self.n_bytes = 0
        self.code = which()
        self._clock = clock
        self._link = link
        self._stamped = stamped
        self._connections: dict[int, Connection] = {}
        self._poll = _epoll()
        self._asks = _poll()
        self._asks.register(self._poll, 1)
        sockets = Sockets(
            self._poll, self._connections, clock, deliver, closed, read_bytes, stand_in
        )
        self._reads = CReader(sockets) if self.code == IN_C else PythonReader(sockets)
        self._polled_ns, _ = clock.sample()  # just before the latest poll
        self._before_ns = self._polled_ns  # just before the poll before it
        self._distrust = False  # the next round's stamps are not believed
        self._loop = gevent.spawn(self._run)

    def add(self, connection: Connection) -> None:
        self._reads.admit(connection, self._clock.now_ns())
        self._connections[connection.fd] = connection

    def has(self, connection: Connection) -> bool:
        return self._connections.get(connection.fd) is connection

    def take(
        self, connection: Connection, data: bytes, at_ns: int, bound_ns: int, *, exact: bool
    ) -> bool:
        """Whether C has made rows of a read of this round that was decrypted."""
        return self._reads.take(connection, self._link.batch, data, at_ns, bound_ns, exact=exact)

    def drop(self, connection: Connection) -> None:
        """Close it; harmless when repeated."""
        if self.has(connection):
            del self._connections[connection.fd]
            self._poll.unregister(connection.fd)
            self._reads.dismiss(connection)
        connection.close()

    def known_ns(self) -> int:
        """Whatever arrived before this instant has been read."""
        # Taken before the question: what arrives between the two is later than this.
        now_ns = self._clock.now_ns()
        # the epoll itself is asked whether it has something: polling it would take that away
        idle = self._poll.closed or not self._asks.poll(0)
        return now_ns if idle else self._before_ns

    def _run(self) -> None:
        hub = get_hub()
        watcher = hub.loop.io(self._poll.fileno(), 1)
        try:
            must_wait = True
            while True:
                if must_wait:
                    hub.wait(watcher)
                napping = self._stamped and len(self._connections) >= FEW
                if napping:
                    gevent.sleep(NAP_S)
                n_ready = self.read_round()
                # while rounds find something to read, the nap alone is the wait
                must_wait = not napping or n_ready == 0
        finally:
            watcher.close()

    def read_round(self) -> int:
        """Read what there is to read; sockets that were ready.

        Not from within a round: `deliver` and `closed` run in one.
        """
        if self._poll.closed:
            return 0
        clock = self._clock
        batch = self._link.batch
        self._before_ns = self._polled_ns
        self._polled_ns = clock.now_ns()
        believe = self._stamped and not self._distrust
        first_row = len(batch)
        try:
            counts = self._reads.read(batch, believe, self._polled_ns, self._before_ns)
            self.reads += counts.reads
            self.stamped_reads += counts.stamped
            self.n_bytes += counts.n_bytes
            now_ns, stepped = clock.sample()
            if self._stamped:
                self._check_stamps(first_row, now_ns, counts.latest_ns, stepped=stepped)
        finally:
            # Also where the round failed: until then nobody else gets the lock that `read` took.
            self._reads.over(self._stamped and not self._distrust)
        self._link.round_is_over()
        return counts.ready

    def _check_stamps(self, first_row: int, now_ns: int, latest_ns: int, *, stepped: bool) -> None:
        """Take back what this round's stamps said if they cannot be true."""
        possible_ns = now_ns + SHARP_NS  # a later stamp lies in the future
        if stepped or latest_ns > possible_ns:
            believed_ns = 0 if stepped else possible_ns
            self._link.batch.unsure(first_row, now_ns, latest_ns=believed_ns)
            for connection in self._connections.values():
                connection.stamps.clamp_bounds(now_ns)
        self._distrust = stepped  # what was queued before the step may be read in the next round

    def close(self) -> None:
        self._loop.kill()
        self._reads.close()
        for connection in list(self._connections.values()):
            self.drop(connection)
        self._poll.close()
