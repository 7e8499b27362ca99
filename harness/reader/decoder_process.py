"""The decoder process: batches of raw reads in, records out. Imports neither gevent nor Locust.

It writes what it makes itself: whole records to the run folder, whole records and parts of open
ones to Locust's master. The reader hears only how far it got. In from the reader: an `Output`, then
`Message`s. Back, for each message: ("done", sequence, known_ns of the message, counts, CPU
seconds, bytes of records that the master lacks, nanoseconds by which its clock is at most apart);
the counts are of streams that are open, and so far of requests that ended, of events, and of exact
ones.

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
#   as invalid (`DecoderLink.trouble`). The file holds whole frames up to that moment.

from __future__ import annotations

import contextlib
import gc
import marshal
import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from harness.core.fast_exit import leave
from harness.errors import HarnessError
from harness.reader.raw_batch import (
    COLUMNS,
    EXACT,
    HEAD,
    NOTICE,
    OPENED,
    TOKEN,
    Message,
    Output,
    pack,
    receive,
)
from harness.records.codec import encode
from harness.records.folder_writer import CUT_SHORT, AppendFile
from harness.records.redact import redact_text
from harness.records.request_record import Outcome
from harness.wire.decode import SentRequest, StreamDecoder

if TYPE_CHECKING:
    from harness.core.arrays import Bools, Ints

# Strategy: everything that would be a loop over tokens is one numpy pass over the whole batch, done
# once in `__init__`, and what is asked later for a run of tokens is two look-ups in a running sum.
#
# - A stable sort by stream keeps each stream's rows in the order of time.
# - A running sum over a flag makes "how many of rows first .. last - 1 have it" a difference of two
#   of its entries (`_exact`), and "none after the first has it" an equality (`_uneven`).
# - Columns that are handed on whole stay numpy; those of which single values are asked become lists
#   once, for a numpy scalar costs ten times a list's item.
# - A slice of a column travels as a memoryview of its bytes: an array takes these in one copy
#   (`array.frombytes`), and no int is made for a time.


class Columns:
    """The rows of one message, sorted by stream. An index is a row's, in this order."""

    def __init__(self, message: Message) -> None:
        # (n, 5) int64: stream, at_ns, bound_ns, kind, value
        rows = np.frombuffer(message.rows, np.int64).reshape(-1, COLUMNS)
        begins = _begins(rows)
        order = np.argsort(rows[:, 0], kind="stable")
        self._blob = message.blob
        self._notices = message.notices
        self._begin: list[int] = begins[order].tolist()
        # the copy after .T makes each column contiguous, which a cast to bytes needs
        self._stream, self._at, self._bound, kinds, values = rows[order].T.copy()
        self._kinds: list[int] = kinds.tolist()
        self._values: list[int] = values.tolist()
        # an exact stamp is its own lower bound; a token's bound may happen to be its stamp, and
        # then it is exact as well: so the times are compared, not the flag
        low = np.where(kinds & EXACT, self._at, self._bound)
        self._at_bytes = memoryview(self._at).cast("B")
        self._low_bytes = memoryview(low).cast("B")
        n_exact_until = np.cumsum(low == self._at)
        self._exact = [0, *n_exact_until.tolist()]
        # A run is even when this sum has not grown after its first row: the step to that one is
        # from another stream's row, and says nothing.
        self._uneven = np.cumsum(_are_uneven(values)).tolist()
        self._first = _first_rows(self._stream, kinds)

    def runs(self) -> Iterator[tuple[int, int, int, int]]:
        """(stream, kind, first index, index after the last): tokens in one, others alone.

        The kind is the first one's, as in `raw_batch`.
        """
        first = self._first.tolist()
        if not first:
            return iter(())
        last = [*first[1:], len(self._kinds)]
        streams = self._stream[self._first].tolist()
        kinds = [self._kinds[row] for row in first]
        return zip(streams, kinds, first, last, strict=True)

    def notice(self, row: int) -> tuple[Any, ...]:
        return self._notices[self._begin[row]]

    def read(self, row: int) -> tuple[bytes, int, int, int]:
        begin = self._begin[row]
        n_bytes = self._values[row]
        body = bytes(self._blob[begin : begin + n_bytes])
        at_ns = int(self._at[row])
        bound_ns = int(self._bound[row])
        exact = self._kinds[row]  # a read's kind is BYTES, which is 0, or EXACT
        return body, at_ns, bound_ns, exact

    def tokens(self, first: int, last: int) -> tuple[memoryview, memoryview, list[int], bool, int]:
        """For `StreamDecoder.tokens`: the rows first .. last - 1, int64 times as bytes."""
        in_bytes = slice(first * 8, last * 8)
        at = self._at_bytes[in_bytes]
        low = self._low_bytes[in_bytes]
        counts = self._values[first:last]
        is_even = self._uneven[last - 1] == self._uneven[first]
        n_exact = self._exact[last] - self._exact[first]
        return at, low, counts, is_even, n_exact


def _begins(rows: Ints) -> Ints:
    """By row, in the order that they came: where a read's bytes begin; a notice's place.

    The reads' bytes lie one after another in this order, and a read's value is its size.
    """
    kinds = rows[:, 3]
    is_read = kinds < NOTICE
    sizes = np.where(is_read, rows[:, 4], 0)
    bytes_before = np.cumsum(sizes) - sizes
    notices_before = np.cumsum(kinds == NOTICE) - 1
    return np.where(is_read, bytes_before, notices_before)


def _are_uneven(counts: Ints) -> Bools:
    """By row: whether its running count does not go on from the row before.

    It goes on when it is one more, or when both are -1, "the server does not count".
    """
    step = np.diff(counts, prepend=0)
    is_next = step == 1
    is_uncounted = (step == 0) & (counts == -1)
    return np.asarray(~(is_next | is_uncounted))


def _first_rows(streams: Ints, kinds: Ints) -> Ints:
    """Where a run begins: at each row but a token that follows a token of its stream."""
    is_token = kinds >= TOKEN
    begins = np.diff(streams, prepend=-1) != 0  # no stream is -1, so the first row begins one
    begins[1:] |= ~(is_token[1:] & is_token[:-1])
    return np.flatnonzero(begins)


NICE: Final = 5  # on a busy machine the reader comes first: decoding can wait
SLICE: Final = 16  # records in one answer, so that the reader's loop is never held up for long


class Decoding:
    """The streams under way, pure: messages in, frames out."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        """`secrets` are hidden in errors."""
        self.streams: dict[int, StreamDecoder] = {}
        self.ended = 0  # requests
        self.events = 0  # in records and parts
        self.exact_events = 0  # of them
        self._secrets = secrets
        self._now_ns = 0

    def take(self, message: Message) -> tuple[list[bytes], list[bytes]]:
        """(whole records, parts of open ones if they are to report)."""
        self._now_ns = message.now_ns
        whole: list[bytes] = []
        columns = Columns(message)
        for stream, kind, first, last in columns.runs():
            if kind == NOTICE:
                notice, *values = columns.notice(first)
                whole += self._take_notice(stream, notice, values)
                continue
            decoder = self.streams.get(stream)
            if decoder is None:  # not opened yet, or ended
                continue
            if kind >= TOKEN:  # EXACT may have been added to it
                decoder.tokens(*columns.tokens(first, last))
            else:
                decoder.feed(*columns.read(first))
        parts: list[bytes] = []
        if message.known_ns:
            parts = self._parts()
        return whole, parts

    def _take_notice(self, stream: int, notice: str, values: list[Any]) -> list[bytes]:
        """The whole record, if this notice ends its stream."""
        if notice == OPENED:
            fields = values[0]
            self.streams[stream] = StreamDecoder(SentRequest(*fields))
            return []
        decoder = self.streams.get(stream)
        if decoder is None:
            return []
        if notice == HEAD:
            decoder.head(*values)
            return []
        outcome, error, done_ns = values
        judged = Outcome(outcome) if outcome else None  # None: by its content
        return [self._end(stream, judged, error, done_ns)]

    def cut_short(self) -> list[bytes]:
        """Whole records of what is open when nothing more can come."""
        records = []
        for stream in list(self.streams):  # which `_end` takes out
            record = self._end(stream, Outcome.cancelled, CUT_SHORT, self._now_ns)
            records.append(record)
        return records

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
            self._file.append(b"".join(whole))
        frames = whole + parts
        if self._master is not None:
            self._master.put(frames, known_ns)
            return
        for i in range(0, len(frames), SLICE):
            some = frames[i : i + SLICE]
            self.answer("records", b"".join(some))

    @property
    def stands(self) -> tuple[int, int]:
        """Bytes of records that the master has not acknowledged; how far the clocks are apart."""
        if self._master is None:
            return 0, 0
        return self._master.outbox.bytes, self._master.clock.apart_ns

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
    decoding = Decoding(output.secrets)
    outlets = Outlets(pipe, output)
    while body := outlets.next_message():
        message = Message.read(body)
        whole, parts = decoding.take(message)
        outlets.put(whole, parts, message.known_ns)
        counts = (len(decoding.streams), decoding.ended, decoding.events, decoding.exact_events)
        cpu_s = time.process_time()
        outlets.answer("done", message.sequence, message.known_ns, counts, cpu_s, *outlets.stands)
    outlets.put(decoding.cut_short(), [], 0)
    outlets.close()


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
