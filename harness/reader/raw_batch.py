"""What the reader tells the decoder, many streams at once, in as few Python objects as possible.

A batch is columns: one row of five integers for each read, token or notice, and the reads' bytes
one after another. It travels as one message (the same Python is on both ends). The first message
of all is an `Output`; then come batches.
"""

from __future__ import annotations

import marshal
import struct
from socket import socket
from typing import Any, Final, NamedTuple

LENGTH: Final = struct.Struct("!I")
_HEAD: Final = struct.Struct("=qqqII")  # of a message: sequence, now, known, sizes of rows and blob
ROW: Final = struct.Struct("=qqqqq")
COLUMNS: Final = 5

# a row's kind: what it is, and for a read or a token plus one if its stamp is exact
BYTES: Final = 0  # the value is how many
NOTICE: Final = 2
TOKEN: Final = 4  # an event with one token that the reader knew; the value is its running count
EXACT: Final = 1

# notices; every one names its stream in the row
OPENED: Final = "opened"  # (fields of a SentRequest)
HEAD: Final = "head"  # (status, head_ns, content_type)
ENDED: Final = "ended"  # (outcome or "", error, done_ns); "" means judge by content


class Output(NamedTuple):
    """Where a decoder's records go. One that has no master sends them home through the pipe."""

    file: str = ""  # a file of the run folder, which it appends whole records to; "": none
    secrets: tuple[str, ...] = ()  # never to be written, not even in a server's error message
    worker: int = 0
    run: str = ""  # as `RecordBatch` has it
    master: tuple[str, int, str] | None = None  # host, port, the worker's id at Locust's master
    anchor_ns: int = 0  # of the worker's clock: to be added to the monotonic one
    shared: bool = True  # the file is in the run folder: the master need not write it too


class Batch:
    """Rows in order: (stream, at_ns, bound_ns, kind, value)."""

    __slots__ = ("blob", "notices", "rows")

    def __init__(self) -> None:
        self.rows = bytearray()
        self.blob = bytearray()
        self.notices: list[tuple[Any, ...]] = []

    def read(self, stream: int, at_ns: int, bound_ns: int, exact: bool, body: bytes) -> None:
        self.rows += ROW.pack(stream, at_ns, bound_ns, exact, len(body))
        self.blob += body

    def notice(self, stream: int, *values: Any) -> None:
        self.rows += ROW.pack(stream, 0, 0, NOTICE, 0)
        self.notices.append(values)

    def latest_ns(self, first_row: int) -> int:
        """The latest arrival from row `first_row` on; 0: none."""
        with memoryview(self.rows) as raw, raw[first_row * ROW.size :].cast("q") as cells:
            return max(cells[1::COLUMNS], default=0)

    def unsure(self, first_row: int, now_ns: int, *, latest_ns: int) -> None:
        """From row `first_row` on, reads stamped after `latest_ns` came at some time up to now."""
        with memoryview(self.rows) as raw, raw.cast("q") as cells:
            for i in range(first_row * COLUMNS, len(cells), COLUMNS):
                if cells[i + 3] != NOTICE and cells[i + 1] > latest_ns:
                    cells[i + 1] = now_ns
                    cells[i + 2] = min(cells[i + 2], now_ns)
                    cells[i + 3] &= ~EXACT

    def __len__(self) -> int:
        return len(self.rows) // ROW.size

    @property
    def size(self) -> int:
        return len(self.rows) + len(self.blob)

    def message(self, sequence: int, now_ns: int, known_ns: int = 0) -> bytes:
        """For the decoder, with its length; `Message.read` takes it, less the length."""
        notices = marshal.dumps(self.notices)
        head = _HEAD.pack(sequence, now_ns, known_ns, len(self.rows), len(self.blob))
        length = len(head) + len(self.rows) + len(self.blob) + len(notices)
        return b"".join((LENGTH.pack(length), head, self.rows, self.blob, notices))


class Message(NamedTuple):
    """A batch as it arrives."""

    sequence: int
    now_ns: int
    # all that happened before is in this message or an earlier one, and open streams are to report
    # what they have; 0: nothing is said, and they need not
    known_ns: int
    rows: memoryview
    blob: memoryview
    notices: list[tuple[Any, ...]]

    @classmethod
    def read(cls, data: bytes) -> Message:
        """The inverse of `Batch.message`."""
        view = memoryview(data)
        sequence, now_ns, known_ns, rows_size, blob_size = _HEAD.unpack_from(view)
        rows_end = _HEAD.size + rows_size
        blob_end = rows_end + blob_size
        rows = view[_HEAD.size : rows_end]
        blob = view[rows_end:blob_end]
        notices = marshal.loads(view[blob_end:])  # noqa: S302 - our own parent wrote it
        return cls(sequence, now_ns, known_ns, rows, blob, notices)


def pack(message: Any) -> bytes:
    """Plain values with their length: an answer, or the `Output` that comes first."""
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


def receive(pipe: socket) -> bytes:
    """One message without its length; b"" when the other end is gone."""
    head = _exactly(pipe, LENGTH.size)
    if not head:
        return b""
    (length,) = LENGTH.unpack(head)
    return _exactly(pipe, length)


def _exactly(pipe: socket, count: int) -> bytes:
    data = bytearray(count)
    missing = memoryview(data)
    while missing:
        try:
            n_bytes = pipe.recv_into(missing)
        except OSError:
            return b""
        if not n_bytes:
            return b""
        missing = missing[n_bytes:]
    return bytes(data)
