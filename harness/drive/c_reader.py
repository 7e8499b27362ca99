"""A round of reads by `_drain.c`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from harness.drive._drain import Drain
from harness.drive.fast_path import ROUND, FastPath
from harness.drive.reading import END_OF_FILE, Seen

if TYPE_CHECKING:
    from harness.drive.batch import Batch
    from harness.drive.connection import Connection
    from harness.drive.reading import Round, Sockets

LATE_NS: Final = 3_000_000  # since the last round: then the thread reads


class CReader:
    """Reads of whole events become rows; the others go to `deliver`, ends to `closed`."""

    def __init__(self, of: Sockets) -> None:
        """Read these. Raises OSError when there can be no thread."""
        self._of = of
        self._drain = Drain(
            of.poll.fileno(), of.read_bytes, of.clock.anchor_ns, of.clock.offset_ns,
            LATE_NS if of.stand_in else 0,
        )  # fmt: skip

    def admit(self, connection: Connection, now_ns: int, number: int) -> None:  # noqa: ARG002 - ours
        """Give it a lane, and watch it."""
        path = FastPath(self._drain, now_ns, allowed=connection.tls is None)
        with self._drain:
            path.cells[ROUND] = self._drain.watch(connection.fd, path.cells)
        connection.stamps = connection.fast_path = path

    def dismiss(self, connection: Connection) -> None:
        """Take it away."""
        if connection.fast_path is not None:
            with self._drain:
                connection.fast_path.close()
                self._drain.forget(connection.fd)

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
