"""Which code reads the sockets: `_drain.c`, or, where it was not built, the same in Python.

Both take one round of reads: each ready socket is read once, and what came of it is a row in the
batch for the decoder or a call of `deliver`. HARNESS_READER=c or =python forces one of them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from harness.errors import ConfigError

if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    from harness.drive.batch import Batch
    from harness.drive.clock import Clock
    from harness.drive.connection import Connection

VARIABLE: Final = "HARNESS_READER"
IN_C, IN_PYTHON = "c", "python"
END_OF_FILE: Final = "the server closed the connection"


class Sockets(NamedTuple):
    """What is read, and who hears of it."""

    poll: select.epoll
    connections: dict[int, Connection]  # by descriptor: the poller's own
    clock: Clock
    deliver: Callable[[Connection, bytes, int, int, bool], None]  # a read: at, bound, exact
    closed: Callable[[Connection, str], None]  # why
    read_bytes: int  # a read that returns less has drained the socket
    stand_in: bool = True  # in C: a thread reads where the loop is late


class Round(NamedTuple):
    """When a round takes place, on the records' clock."""

    number: int
    polled_ns: int  # just before the poll
    before_ns: int  # just before the poll of the round before
    believe: bool  # the kernel's stamps
    first_row: int  # of the batch: rows before it are those of earlier rounds


class Seen(NamedTuple):
    """What a round found."""

    ready: int = 0
    reads: int = 0
    stamped: int = 0
    n_bytes: int = 0
    latest_ns: int = 0  # arrival


class Reads(Protocol):
    """Reads all sockets that are ready."""

    def admit(self, connection: Connection, now_ns: int, number: int) -> None:
        """Poll a new connection, with nothing to read in this round."""

    def dismiss(self, connection: Connection) -> None:
        """It is about to be closed."""

    def read(self, batch: Batch, when: Round) -> Seen:
        """Poll, and read what is ready. Nobody else reads until `over`."""

    def over(self, believe: bool) -> None:
        """The round's stamps were checked; whether those are believed that come before the next."""

    def close(self) -> None:
        """No more rounds."""


def which() -> str:
    """IN_C or IN_PYTHON. Raises ConfigError when the environment asks for what is not there."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", IN_C, IN_PYTHON):
        raise ConfigError(
            f"{VARIABLE} is {wanted!r}: expected {IN_C} or {IN_PYTHON}; unset it to have the best."
        )
    if wanted == IN_C and not built():
        raise ConfigError(
            f"{VARIABLE} is {IN_C}, but the extension was not built: expected a C compiler and "
            "Python's headers at the installation; install them and run `make setup` again."
        )
    return IN_PYTHON if wanted == IN_PYTHON or not built() else IN_C


def built() -> bool:
    """Whether the installation had a C compiler."""
    return find_spec("harness.drive._drain") is not None
