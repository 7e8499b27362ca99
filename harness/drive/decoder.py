"""The decoder process: raw reads in, records out. Imports neither gevent nor Locust.

Messages in both directions are length-prefixed marshal (same Python on both ends of one socket
pair). In: (sequence, now_ns, [items]); an item is
    ("o", stream, asked, skip)          a request was sent
    ("r", stream, data, at, bound, exact)
    ("c", stream, outcome or "", error, done_ns)    it is over; "" means judge by content
Out: (sequence, [records], events, exact events, CPU seconds); a record is a tuple of its fields.
"""

from __future__ import annotations

import gc
import marshal
import resource
import socket
import struct
import sys
from typing import Any, Final

from harness.measure.records import Outcome, RequestRecord, ns_array
from harness.wire.decode import Asked, Read, StreamDecoder

LENGTH: Final = struct.Struct("!I")
PART_NS: Final = 1_000_000_000  # open streams report this often
FIELDS: Final = tuple(RequestRecord.__slots__)
ARRAYS: Final = ("at_ns", "not_before_ns", "tokens")


def pack(message: Any) -> bytes:
    """One message with its length."""
    body = marshal.dumps(message)
    return LENGTH.pack(len(body)) + body


def record_out(record: RequestRecord) -> tuple[Any, ...]:
    """A record as plain values."""
    values = []
    for name in FIELDS:
        value = getattr(record, name)
        values.append(value.tobytes() if name in ARRAYS else value)
    values[FIELDS.index("outcome")] = record.outcome.value
    return tuple(values)


def record_in(values: tuple[Any, ...]) -> RequestRecord:
    """The inverse of `record_out`."""
    fields = dict(zip(FIELDS, values, strict=True))
    for name in ARRAYS:
        flat = ns_array()
        flat.frombytes(fields[name])
        fields[name] = flat
    fields["outcome"] = Outcome(fields["outcome"])
    return RequestRecord(**fields)


class Decoding:
    """The streams under way, pure: messages in, messages out."""

    def __init__(self) -> None:
        """None yet."""
        self.streams: dict[int, StreamDecoder] = {}
        self.events = 0
        self.exact_events = 0
        self._parted_ns = 0

    def take(self, now_ns: int, items: list[tuple[Any, ...]]) -> list[RequestRecord]:
        """Records that ended in these items, and parts of open ones when a second has passed."""
        records = []
        for item in items:
            kind, stream = item[0], item[1]
            if kind == "r":
                self.streams[stream].feed(Read(*item[2:]))
            elif kind == "o":
                self.streams[stream] = StreamDecoder(Asked(*item[2]), item[3])
            else:
                records.append(self._end(stream, *item[2:]))
        if now_ns - self._parted_ns >= PART_NS:
            self._parted_ns = now_ns
            records += [decoder.part(now_ns) for decoder in self.streams.values()]
        return records

    def _end(self, stream: int, outcome: str, error: str, done_ns: int) -> RequestRecord:
        decoder = self.streams.pop(stream)
        self.events += decoder.events
        self.exact_events += decoder.exact_events
        return decoder.end(Outcome(outcome) if outcome else None, error, done_ns)


def main(fd: int) -> None:
    """Serve until the other end closes."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    decoding = Decoding()
    with socket.socket(fileno=fd) as pipe:
        pipe.setblocking(True)  # gevent made the pair, and its sockets never block
        while head := _exactly(pipe, LENGTH.size):
            body = _exactly(pipe, LENGTH.unpack(head)[0])
            if not body:
                return
            sequence, now_ns, items = marshal.loads(body)  # noqa: S302 - our own parent wrote it
            records = [record_out(r) for r in decoding.take(now_ns, items)]
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu_s = used.ru_utime + used.ru_stime
            try:
                pipe.sendall(
                    pack((sequence, records, decoding.events, decoding.exact_events, cpu_s))
                )
            except OSError:
                return


def _exactly(pipe: socket.socket, count: int) -> bytes:
    """So many bytes; b"" when the other end is gone."""
    pieces = bytearray()
    while len(pieces) < count:
        try:
            piece = pipe.recv(min(count - len(pieces), 1 << 20))
        except OSError:
            return b""
        if not piece:
            return b""
        pieces += piece
    return bytes(pieces)


if __name__ == "__main__":
    main(int(sys.argv[1]))
