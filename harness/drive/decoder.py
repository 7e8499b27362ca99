"""The decoder process: batches of raw reads in, records out. Imports neither gevent nor Locust.

In: `batch.Message`. Out, for each of these: any number of
("ended", rows) and ("parts", rows) of at most SLICE rows, so that the reader's loop is never held
up for long, then ("done", sequence, whether parts were wanted, CPU seconds). A row is (a sealed
record's fields, events in it that no part before it had, exact ones of these, the stream's state
after it or None).

Parts come for all open streams at once and carry each stream's state: they are a checkpoint, and
everything sent before it may be forgotten.
"""

from __future__ import annotations

import gc
import os
import resource
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from harness.drive.batch import (
    ENDED,
    HEAD,
    LENGTH,
    NOTICE,
    OPENED,
    RESUMED,
    SLICE,
    TOKEN,
    Message,
    pack,
)
from harness.drive.columns import Columns
from harness.drive.leaving import leave
from harness.measure.records import Outcome
from harness.runfolder.codec import decode, encode
from harness.wire.decode import Asked, StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.measure.records import RequestRecord

NICE: Final = 5  # on a busy machine the reader comes first: decoding can wait

Row = tuple[tuple[Any, ...], int, int, Any]


def sealed(record: RequestRecord) -> tuple[Any, ...]:
    """Plain values, for `Sealed`."""
    r = record
    return r.worker, r.number, r.outcome.value, r.done_ns, r.error, encode(r)


class Decoding:
    """The streams under way, pure: messages in, messages out."""

    def __init__(self) -> None:
        """None yet."""
        self.streams: dict[int, StreamDecoder] = {}

    def take(self, message: Message) -> Iterator[tuple[Any, ...]]:
        """The messages that answer one message."""
        ended: list[Row] = []
        find, columns = self.streams.get, Columns(message)
        for stream, kind, first, last in columns.runs():
            decoder = find(stream)  # None: it ended before the decoder before us died
            if kind == NOTICE:
                row = self._notice(stream, decoder, *columns.notice(first))
                if row is not None:
                    ended.append(row)
                    if len(ended) == SLICE:
                        yield ("ended", ended)
                        ended = []
            elif decoder is None:
                pass
            elif kind >= TOKEN:
                decoder.tokens(*columns.tokens(first, last))
            else:
                decoder.feed(*columns.read(first))
        if ended:
            yield ("ended", ended)
        if message.parts:
            yield from self._parts(message.now_ns)
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield ("done", message.sequence, message.parts, used.ru_utime + used.ru_stime)

    def _notice(
        self, stream: int, decoder: StreamDecoder | None, kind: str, *values: Any
    ) -> Row | None:
        if kind == OPENED:
            self.streams[stream] = StreamDecoder(Asked(*values[0]))
        elif kind == RESUMED:
            asked, state, parts = values
            parts = decode(parts).records
            self.streams[stream] = StreamDecoder.resumed(Asked(*asked), state, parts)
        elif decoder is None:
            pass
        elif kind == HEAD:
            decoder.head(*values)
        elif kind == ENDED:
            outcome, error, done_ns = values
            del self.streams[stream]
            record = decoder.end(Outcome(outcome) if outcome else None, error, done_ns)
            return sealed(record), decoder.new_events, decoder.exact_events, None
        return None

    def _parts(self, now_ns: int) -> Iterator[tuple[Any, ...]]:
        rows: list[Row] = []
        for decoder in self.streams.values():
            new, exact = decoder.new_events, decoder.exact_events
            rows.append((sealed(decoder.part(now_ns)), new, exact, decoder.state()))
            if len(rows) == SLICE:
                yield ("parts", rows)
                rows = []
        if rows:
            yield ("parts", rows)


def main(fd: int) -> None:
    """Serve until the other end closes."""
    os.nice(NICE)
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    decoding = Decoding()
    with socket.socket(fileno=fd) as pipe:
        pipe.setblocking(True)  # gevent made the pair, and its sockets never block
        while head := _exactly(pipe, LENGTH.size):
            body = _exactly(pipe, LENGTH.unpack(head)[0])
            if not body:
                return
            try:
                for answer in decoding.take(Message.read(body)):
                    pipe.sendall(pack(answer))
            except OSError:
                return


def _exactly(pipe: socket.socket, count: int) -> bytes:
    """So many bytes; b"" when the other end is gone."""
    pieces = bytearray(count)
    view = memoryview(pieces)
    while view:
        try:
            got = pipe.recv_into(view)
        except OSError:
            return b""
        if not got:
            return b""
        view = view[got:]
    return bytes(pieces)


if __name__ == "__main__":
    main(int(sys.argv[1]))
    leave()
