"""A round of reads in Python: what `_drain.c` does, for machines without a compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.drive.reading import END_OF_FILE, Seen
from harness.drive.stamping import ANCILLARY, stamp_of
from harness.wire.stamps import NO_STAMP, SocketStamps

if TYPE_CHECKING:
    from harness.drive.batch import Batch
    from harness.drive.connection import Connection
    from harness.drive.reading import Round, Sockets


class PlainReads:
    """Every read goes to `deliver`, every end of a connection to `closed`."""

    def __init__(self, of: Sockets) -> None:
        """Read these."""
        self._of = of

    def admit(self, connection: Connection, now_ns: int, number: int) -> None:
        """Nothing is known of its stamps."""
        connection.stamps = SocketStamps(now_ns, number)
        self._of.poll.register(connection.fd, 1)

    def dismiss(self, connection: Connection) -> None:
        """Nothing was kept."""

    def over(self, believe: bool) -> None:
        """Nobody else reads."""

    def close(self) -> None:
        """Nothing was kept."""

    def read(self, batch: Batch, when: Round) -> Seen:
        """One read of each ready socket, and when it arrived: the path of every token, so flat."""
        poll, connections, clock, deliver, closed, read_bytes, _ = self._of
        now_ns, offset_ns = clock.now_ns, clock.offset_ns
        number, polled_ns, before_ns, believe, first_row = when
        # never full: what is not listed is empty
        ready = poll.poll(0, len(connections) + 1)
        reads = stamped = n_bytes = 0
        for fd, _ in ready:
            connection = connections.get(fd)
            if connection is None:
                continue  # closed earlier in this round
            try:
                data, ancillary, _, _ = connection.recvmsg(read_bytes, ANCILLARY)
            except BlockingIOError:
                continue
            except OSError as error:
                closed(connection, error.strerror or str(error))
                continue
            if not data:
                closed(connection, END_OF_FILE)
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
            drained = size < read_bytes
            arrival = stamps.arrival(stamp, polled_ns, read_ns, drained, number, before_ns)
            deliver(connection, data, *arrival)
        return Seen(len(ready), reads, stamped, n_bytes, batch.latest_ns(first_row))
