"""A round of reads: each ready socket is read once, by `_drain.c` or by the same in Python.

What comes of a read is a call of `deliver`, or, in C and where Python has let go of the connection
(`fast_path`), rows in the batch for the decoder. `admit` and `dismiss` begin and end watching a
connection; between `read` and `over` nobody else reads.

An extension that does not load, or was compiled with another `LAYOUT`, counts as not built.
HARNESS_READER=c or =python forces one of the readers.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from harness.core.extensions import load_extension
from harness.errors import ConfigError
from harness.reader.fast_path import LAYOUT, ROUND, FastPath
from harness.reader.stamping import ANCILLARY, NO_STAMP, SocketStamps, stamp_of
from harness.records import codec

if TYPE_CHECKING:
    from harness.reader.client_connection import Connection
    from harness.reader.clock import Clock
    from harness.reader.raw_batch import Batch

END_OF_FILE: Final = "the server closed the connection"
LATE_NS: Final = 3_000_000  # since the last round: then the thread reads


class Sockets(NamedTuple):
    """The sockets to read, and the callbacks for them."""

    poll: select.epoll
    connections: dict[int, Connection]  # by descriptor: the poller's own
    clock: Clock
    deliver: Callable[[Connection, bytes, int, int, bool], None]  # a read: at, bound, exact
    closed: Callable[[Connection, str], None]  # why
    read_bytes: int  # a read that returns less has drained the socket
    stand_in: bool = True  # in C: a thread reads where the loop is late


class RoundCounts(NamedTuple):
    """What a round of reads came to."""

    ready: int = 0
    reads: int = 0
    stamped: int = 0
    n_bytes: int = 0
    latest_ns: int = 0  # arrival


class CReader:
    """Reads of whole events become rows; the others go to `deliver`, ends to `closed`."""

    def __init__(self, of: Sockets) -> None:
        """Read these. Raises OSError when there can be no thread."""
        from harness.reader._drain import Drain  # noqa: PLC0415 - it may not be built

        self._of = of
        late_ns = LATE_NS if of.stand_in else 0
        clock = of.clock
        poll_fd = of.poll.fileno()
        self._drain = Drain(poll_fd, of.read_bytes, clock.anchor_ns, clock.offset_ns, late_ns)
        self.close = self._drain.close

    def admit(self, connection: Connection, now_ns: int) -> None:
        path = FastPath(self._drain, now_ns, sealed=connection.tls is not None)
        # With the lock, as the thread that stands in for the loop reads these sockets too.
        with self._drain:
            path.cells[ROUND] = self._drain.watch(connection.fd, path.cells)
        connection.stamps = path
        connection.fast_path = path

    def dismiss(self, connection: Connection) -> None:
        assert connection.fast_path is not None  # noqa: S101 - it was admitted
        with self._drain:
            connection.fast_path.close()
            self._drain.forget(connection.fd)

    def read(self, batch: Batch, believe: bool, *_polls: int) -> RoundCounts:
        """One call for all of it. From here to `over` the lock is ours."""
        of = self._of
        drain = self._drain
        drain.lock()
        drain.trust(of.clock.offset_ns, believe)
        *counts, for_python = drain.round(batch.rows, batch.blob)
        for fd, data, at_ns, bound_ns, exact, code in for_python:
            connection = of.connections.get(fd)
            if connection is None:
                continue  # closed earlier in this round
            if data:
                of.deliver(connection, data, at_ns, bound_ns, exact)
            else:
                of.closed(connection, os.strerror(code) if code else END_OF_FILE)
        return RoundCounts(*counts)

    def take(
        self,
        connection: Connection,
        batch: Batch,
        data: bytes,
        at_ns: int,
        bound_ns: int,
        *,
        exact: bool,
    ) -> bool:
        """Make rows of what Python decrypted in this round; False: Python has to look at it."""
        return self._drain.take(connection.fd, data, at_ns, bound_ns, exact, batch.rows, batch.blob)

    def over(self, believe: bool) -> None:
        """The stamps were checked; whether those are believed that come before the next round."""
        self._drain.trust(self._of.clock.offset_ns, believe)
        self._drain.unlock()


class PythonReader:
    """Every read goes to `deliver`, every end of a connection to `closed`."""

    def __init__(self, of: Sockets) -> None:
        self._of = of
        self._round = 0
        self._stamps: dict[int, SocketStamps] = {}  # by descriptor

    def admit(self, connection: Connection, now_ns: int) -> None:
        """Nothing is known of its stamps."""
        stamps = SocketStamps(now_ns, self._round)
        self._stamps[connection.fd] = stamps
        connection.stamps = stamps
        # 1 is EPOLLIN. Level-triggered, unlike the C reader's: it tells again of what a read left
        # behind.
        self._of.poll.register(connection.fd, 1)

    def dismiss(self, connection: Connection) -> None:
        del self._stamps[connection.fd]

    def over(self, believe: bool) -> None:
        """No lock: there is no second reader."""

    def take(self, *_read: object, exact: bool) -> bool:  # noqa: ARG002 - as the other's
        """Python looks at everything."""
        return False

    def close(self) -> None:
        """Nothing was kept."""

    def read(self, batch: Batch, believe: bool, polled_ns: int, before_ns: int) -> RoundCounts:
        """One read of each ready socket, and when it arrived: the path of every token, so flat.

        `polled_ns` and `before_ns`: just before this poll, and the one before.
        """
        poll, connections, clock, deliver, closed, read_bytes, _ = self._of
        now_ns = clock.now_ns
        offset_ns = clock.offset_ns
        first_row = len(batch)
        self._round += 1
        # with room for one event more than there are sockets, so one not listed has nothing to read
        ready = poll.poll(0, len(connections) + 1)
        reads = 0
        stamped = 0
        n_bytes = 0
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
            stamps = self._stamps[fd]
            stamp = NO_STAMP
            if believe and ancillary:
                real_ns = stamp_of(ancillary)
                if real_ns != NO_STAMP:
                    stamped += 1
                    stamp = real_ns - offset_ns
            # The clock is asked only where the stamp cannot be right: a call for each token would
            # cost.
            read_ns = 0 if stamp >= stamps.drained_ns else now_ns()
            drained = size < read_bytes
            arrival = stamps.arrival(stamp, polled_ns, read_ns, drained, self._round, before_ns)
            deliver(connection, data, *arrival)
        return RoundCounts(len(ready), reads, stamped, n_bytes, batch.latest_ns(first_row))


VARIABLE: Final = "HARNESS_READER"
IN_C: Final = "c"
IN_PYTHON: Final = "python"


def which() -> str:
    """IN_C or IN_PYTHON. Raises ConfigError when the environment asks for what is not there."""
    wanted = os.environ.get(VARIABLE, "")
    why = why_not_c()
    if wanted not in ("", IN_C, IN_PYTHON):
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}: expected {IN_C} or {IN_PYTHON}; unset it to have the best."
        )
    if wanted == IN_C and why:
        raise ConfigError(
            f"{VARIABLE} is {IN_C}, but the extension cannot be used: {why}: expected a C compiler "
            "and Python's headers at the installation; install them and run `make setup` again."
        )
    if wanted == IN_PYTHON or why:
        return IN_PYTHON
    return IN_C


@cache
def why_not_c() -> str:
    """Why the extension cannot be used; "" if it can."""
    return load_extension("harness.reader._drain", LAYOUT)


def code_in_use() -> dict[str, str]:
    """For run.json: what reads and packs here, and where that is not C, why."""
    reader = which()
    code = {"reader": reader, "codec": IN_PYTHON if codec.WHY_PYTHON else IN_C}
    if reader == IN_PYTHON:
        code["reader_fallback"] = why_not_c() or f"{VARIABLE} is {IN_PYTHON}"
    if codec.WHY_PYTHON:
        code["codec_fallback"] = codec.WHY_PYTHON
    return code
