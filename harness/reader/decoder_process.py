"""The decoder process: batches of raw reads in, records out. Imports neither gevent nor Locust.

It writes what it makes itself: whole records to the run folder, whole records and parts of open
ones to Locust's master. The reader hears only how far it got. In from the reader: an `Output`, then
`batch.Message`s. Back, for each message: ("done", sequence, known_ns of the message, counts, CPU
seconds, whether the master has every record); the counts are of streams that are open, and so far
of requests that ended, of events, and of exact ones.

Where there is no master, the records' consumers live in the reader's process: then any number of
("records", frames of SLICE records at most) come before "done".
"""

# Strategy:
#
# - Who owns the file. `records.<worker>.msgpack` has one writer at a time: the decoder of the
#   worker of that number. AppendFile takes a write back that did not fit, which is safe for a lone
#   writer only; a worker starts its next decoder when the one before it has exited.
# - Order. The pipe keeps the order of messages. A message is written to the file and given to the
#   master's stream before it is answered, so an answered message is at least with the kernel.
#   `known_ns` travels behind the records that it speaks for, on each of the two ways.
# - Ctrl-C. The decoder has a session of its own and never sees the terminal's signals. The reader
#   ends its streams as cancelled and closes the pipe: end of file is the one order to exit.
# - A dead reader. Its end of the pipe closes as well; what it had sent is still read to the end.
#   Streams that are open then cannot have been ended by anybody: they are recorded as cut short.
# - A dead decoder. Nothing is kept to start it again: its end of the pipe closes, and the run ends
#   as invalid (`decoding.DecoderLink.trouble`). The file holds whole frames up to that moment.

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import resource
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.errors import HarnessError
from harness.fast_exit import leave
from harness.measure.records.request_record import Outcome
from harness.reader.batch_columns import Columns
from harness.reader.raw_batch import HEAD, LENGTH, NOTICE, OPENED, TOKEN, Message, Output, pack
from harness.runfolder.codec import encode
from harness.runfolder.folder_writer import AppendFile
from harness.runfolder.record_writer import CUT_SHORT
from harness.runfolder.redact import redact_text
from harness.wire.decode import SentRequest, StreamDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

NICE: Final = 5  # on a busy machine the reader comes first: decoding can wait
SLICE: Final = 16  # records in one answer, so that the reader's loop is never held up for long


class Decoding:
    """The streams under way, pure: messages in, frames out."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        """`secrets` are hidden in errors."""
        self.streams: dict[int, StreamDecoder] = {}
        self.ended = 0  # requests
        self.events = self.exact_events = 0  # in records and parts
        self._secrets = secrets
        self._now_ns = 0

    def take(self, message: Message) -> tuple[list[bytes], list[bytes]]:
        """(whole records, parts of open ones if they are to report)."""
        self._now_ns = message.now_ns
        whole: list[bytes] = []
        columns = Columns(message)
        for stream, kind, first, last in columns.runs():
            decoder = self.streams.get(stream)  # None: not opened yet, or ended
            if kind == NOTICE:
                notice, *values = columns.notice(first)
                if notice == OPENED:
                    self.streams[stream] = StreamDecoder(SentRequest(*values[0]))
                elif decoder is None:
                    continue
                elif notice == HEAD:
                    decoder.head(*values)
                else:
                    outcome, error, done_ns = values
                    whole.append(
                        self._end(stream, Outcome(outcome) if outcome else None, error, done_ns)
                    )
            elif decoder is None:
                continue
            elif kind >= TOKEN:
                decoder.tokens(*columns.tokens(first, last))
            else:
                decoder.feed(*columns.read(first))
        return whole, self._parts() if message.known_ns else []

    def cut_short(self) -> list[bytes]:
        """Whole records of what is open when nothing more can come."""
        ends = Outcome.cancelled, CUT_SHORT, self._now_ns
        return [self._end(stream, *ends) for stream in list(self.streams)]

    def _end(self, stream: int, outcome: Outcome | None, error: str, done_ns: int) -> bytes:
        decoder = self.streams.pop(stream)
        self._count(decoder)
        self.ended += 1
        record = decoder.end(outcome, error, done_ns)
        if record.error:  # it may quote a URL or a header
            record = replace(record, error=redact_text(record.error, self._secrets))
        return encode(record)

    def _parts(self) -> list[bytes]:
        parts = []
        for decoder in self.streams.values():
            self._count(decoder)
            parts.append(encode(decoder.part(self._now_ns)))
        return parts

    def _count(self, decoder: StreamDecoder) -> None:
        self.events += decoder.new_events
        self.exact_events += decoder.exact_events


class Outlets:
    """Where frames go: the file, and the master or else the pipe home."""

    def __init__(self, pipe: socket.socket, output: Output) -> None:
        """Raises RunFolderError when the file cannot be opened."""
        self._pipe = pipe
        self._file = AppendFile(Path(output.file)) if output.file else None
        self._master = None
        if output.master is not None:
            from harness.reader.master_stream import MasterStream  # noqa: PLC0415 - pyzmq: only here

            self._master = MasterStream(output, output.master)

    def next_message(self) -> bytes:
        """From the reader; b"" when it is gone. Meanwhile the master gets what it lacks."""
        if self._master is not None:
            self._master.wait_for(self._pipe.fileno())
        return receive(self._pipe)

    def put(self, whole: list[bytes], parts: list[bytes], known_ns: int) -> None:
        if self._file is not None and whole:
            self._file.append(b"".join(whole), len(whole))
        frames = whole + parts
        if self._master is not None:
            self._master.put(frames, known_ns)
            return
        for i in range(0, len(frames), SLICE):
            self.answer("records", b"".join(frames[i : i + SLICE]))

    @property
    def delivered(self) -> bool:
        """Whether the master has every record, if there is one."""
        return self._master is None or self._master.outbox.empty

    def answer(self, *values: object) -> None:
        with contextlib.suppress(OSError):  # nobody listens, but what was sent is still to be read
            self._pipe.sendall(pack(values))

    def close(self) -> None:
        """Bring everything to the disk and to the master."""
        if self._file is not None:
            self._file.close()
        if self._master is not None:
            self._master.close()


def serve(pipe: socket.socket, output: Output) -> None:
    """Until the other end closes. Raises RunFolderError."""
    decoding, outlets = Decoding(output.secrets), Outlets(pipe, output)
    while body := outlets.next_message():
        message = Message.read(body)
        outlets.put(*decoding.take(message), message.known_ns)
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = used.ru_utime + used.ru_stime
        counts = len(decoding.streams), decoding.ended, decoding.events, decoding.exact_events
        outlets.answer("done", message.sequence, message.known_ns, counts, cpu_s, outlets.delivered)
    outlets.put(decoding.cut_short(), [], 0)
    outlets.close()


def receive(pipe: socket.socket) -> bytes:
    """One message without its length; b"" when the other end is gone."""
    head = _exactly(pipe, LENGTH.size)
    return _exactly(pipe, LENGTH.unpack(head)[0]) if head else b""


def _exactly(pipe: socket.socket, count: int) -> bytes:
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


def main(fd: int) -> None:
    """Serve the reader at the other end of this socket."""
    os.nice(NICE)
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    with socket.socket(fileno=fd) as pipe:
        pipe.setblocking(True)  # gevent made the pair, and its sockets never block
        if first := receive(pipe):
            serve(pipe, Output(*marshal.loads(first)))  # noqa: S302 - our own parent wrote it


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except HarnessError as refused:
        sys.stderr.write(f"{refused}\n")
        leave(refused.exit_code)
    leave()
