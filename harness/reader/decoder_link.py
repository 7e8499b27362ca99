"""The reader's end of decoding: batches go out, and how far they were decoded comes back.

What the decoder makes of them goes from there to the run folder and to the master
(`decoder_process`). Only where no master is, and the records' consumers therefore live in this
process, do records come back here, to `put`.
"""

# Strategy:
#
# - Two greenlets, one for each direction, so that a decoder that is behind never keeps its answers
#   from being read. Both only ever wait for the pipe; the rest of the loop reads sockets meanwhile.
# - Every second or two a message also asks the open streams for parts (what came since the part
#   before) and says until when all is in it. When its answer comes, all of that is where records
#   go: `known_ns`, which live decisions wait for.
# - There is one decoder for a reader's whole life. When it dies or is stuck, what it had not
#   written is gone and nobody can say how much: `trouble` is a sentence, the run ends as invalid,
#   and until it has ended, batches are dropped. Nothing waits for a dead decoder.
# - Ctrl-C does not reach the decoder: the reader first ends its streams, as cancelled.

from __future__ import annotations

import marshal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import gevent
import gevent.socket
from gevent.event import Event
from gevent.hub import get_hub

from harness.reader.raw_batch import ENDED, OPENED, Batch, Output, pack, receive
from harness.records.codec import decode
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.reader.clock import Clock
    from harness.records.request_record import Outcome, RequestRecord

    Put = Callable[[list[RequestRecord]], None]

FLUSH_S: Final = 0.5  # each flush costs as much as a token for every stream that is open
BREATH_S: Final = 0.0002  # a timer: after sleep(0) the loop may stay with us for another 5 ms
FLUSH_BYTES: Final = 768 << 10  # half a millisecond to pack
PARTS_NS: Final = SECOND  # how often open streams report: each report costs as much as 20 tokens
MANY_PARTS_NS: Final = 2 * SECOND
MANY: Final = 500  # streams, of which this is how often; in between, in proportion
MOST_UNSENT: Final = 256 << 20  # bytes that wait for the decoder, or at it for the master: then
# new requests wait too
CLOSE_S: Final = 5.0
ASK_S: Final = 0.02  # between two questions at the end
ENDED_ITSELF: Final = "ended in the middle of the run"
EXIT_S: Final = 5.0
START_S: Final = 60.0  # for the decoder to import everything on a busy machine


class DecoderProcess:
    """The child at the other end of a socket pair: takes messages, answers as it says itself.

    Nothing here blocks the loop: a greenlet that has to wait for the pipe lets the others run.
    """

    def __init__(self, output: Output) -> None:
        ours, theirs = socket.socketpair()
        # Detached: two objects that close one descriptor would close a stranger's the second time.
        self._pipe = gevent.socket.socket(fileno=ours.detach())
        # Our copy of the decoder's end is closed: while it is open, we see no end when that dies.
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "harness.reader.decoder_process", str(fd)]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                pass_fds=[fd],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; it ends when the pair does
            )
        self.pid = self._process.pid
        self.send(pack(tuple(output)))  # by pipe: arguments are for everybody to read

    def send(self, message: bytes) -> bool:
        """All of it; False when the process is gone."""
        try:
            self._pipe.sendall(message)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[Any, ...] | None:
        """The next answer; None when the process is gone."""
        body = receive(self._pipe)
        return marshal.loads(body) if body else None  # noqa: S302 - our own child wrote it

    def close(self, timeout_s: float = EXIT_S) -> int:
        """It ends by itself when the pair is closed; killed when it does not. Its exit code."""
        self._pipe.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class DecoderLink:
    """One decoder process and what is known of it."""

    def __init__(self, clock: Clock, put: Put | None, output: Output) -> None:
        """Starts it. `put` gets records and parts, at most 16 at a time, on this loop."""
        self.batch = Batch()
        self.ended = 0  # requests whose record is where records go
        self.events = self.exact_events = 0
        self.trouble = ""  # a sentence once the decoder is lost
        self.on_trouble: Callable[[str], None] = lambda _: None
        self.hold_ns = 0  # longest CPU time that the loop spent on decoding's behalf in one go
        self.held = 0  # requests that had to wait because the decoder was behind
        self.known_ns = 0  # all that happened before it is where records go
        self.cpu_s = 0.0  # of the decoder
        self.read_until_ns: Callable[[], int] = clock.now_ns  # what is in the batch by now
        self._clock = clock
        self._give = put
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sequence = 0  # messages packed so far
        self._answered = 0  # the latest of them that was answered
        self._n_open = 0  # streams, as of the latest answer
        self._undelivered = 0  # bytes of records that the master lacks, as of the latest answer
        self.clock_apart_ns = 0  # from the master's, at most
        self._asked = False  # for an answer, even if there is nothing to send
        self._parts_ns = 0  # when parts were asked for last
        self._sent_ns = 0  # all that happened before it is on its way to the decoder
        self._wake = Event()  # there is something to send
        self._wake.set()  # the first message asks whether the decoder is there
        self._changed = Event()  # an answer came, or none will come any more
        self._room = Event()  # new requests may be sent
        self._room.set()
        self._closed = False
        self._decoder = DecoderProcess(output)
        # Two: a decoder whose answer waits to be taken reads nothing, so a lone greenlet that waits
        # to send to it would wait for ever.
        sending = gevent.spawn(self._send_loop)
        receiving = gevent.spawn(self._receive_loop)
        self._loops = [sending, receiving]

    @property
    def pid(self) -> int:
        return self._decoder.pid

    @property
    def backlog(self) -> int:
        return self._sequence - self._answered

    def ready(self) -> bool:
        """Wait until it decodes: while it starts, it takes a processor from the reads.

        False when it never did; `trouble` says why.
        """
        if self._answered:  # asked before each request: a timeout takes 15 us
            return True
        with gevent.Timeout(START_S, False):
            while not self._answered and not self.trouble:
                self._changed.clear()
                self._changed.wait()
        if not self._answered:
            self._lost(f"did not answer within {START_S:.0f} s of its start")
        return self._answered > 0

    # what the reader says

    def open(self, stream: int, request: tuple[int | str, ...]) -> None:
        """A request is about to be sent; called again when it has to be sent again.

        `request`: the fields of a SentRequest.
        """
        self.batch.notice(stream, OPENED, request)

    def end(self, stream: int, outcome: Outcome | None, error: str, done_ns: int) -> None:
        judged = outcome.value if outcome else ""
        self.batch.notice(stream, ENDED, judged, error, done_ns)

    def round_is_over(self) -> None:
        """Ship early when much was read."""
        if self.trouble:
            self.batch = Batch()
        elif self.batch.size > FLUSH_BYTES:
            self._wake.set()

    def wait_for_room(self) -> None:
        """While the decoder is hopelessly behind new requests wait, and are counted."""
        if not self._room.is_set():
            self.held += 1
            self._room.wait()

    # out

    def _send_loop(self) -> None:
        while True:
            self._wake.wait(FLUSH_S)
            # Cleared before packing: what is read while this packs or sends sets it again.
            self._wake.clear()
            self._pack()
            while self._unsent:
                if not self._decoder.send(self._unsent[0]):
                    return  # the receiver notices too
                self._unsent_bytes -= len(self._unsent.popleft())
                self._make_room()

    def _pack(self) -> None:
        """Queue what was read; now and then with a request for parts."""
        begun_ns = time.thread_time_ns()
        now_ns = self._clock.now_ns()
        n_open = min(self._n_open, MANY)
        interval_ns = max(MANY_PARTS_NS * n_open // MANY, PARTS_NS)
        # also when no stream is open: that there is nothing to report is news too
        parts_due = now_ns - self._parts_ns >= interval_ns
        if not (self.batch or parts_due or self._asked):
            return
        self._asked = False
        # No greenlet runs from here to `read_until_ns`: what that vouches for is in this batch.
        batch = self.batch
        self.batch = Batch()
        self._sequence += 1
        known_ns = 0
        if parts_due:
            self._parts_ns = now_ns
            # what was known once stays so, even if the reader can say less of late rounds
            self._sent_ns = max(self._sent_ns, self.read_until_ns())
            known_ns = self._sent_ns
        message = batch.message(self._sequence, now_ns, known_ns)
        self._unsent.append(message)
        self._unsent_bytes += len(message)
        self._make_room()
        self._held_up(begun_ns)

    def _make_room(self) -> None:
        """Let new requests wait, or go on."""
        behind = max(self._unsent_bytes, self._undelivered) > MOST_UNSENT
        if behind and not self.trouble:
            self._room.clear()
        else:
            self._room.set()

    # back

    def _receive_loop(self) -> None:
        while (answer := self._decoder.receive()) is not None:
            self._take(*answer)
            gevent.sleep(BREATH_S)
        if not self._closed:
            self._lost(ENDED_ITSELF)

    def _take(self, kind: str, *values: Any) -> None:
        if kind == "records":
            self._put(values[0])
            return
        self._answered, known_ns, counts, self.cpu_s, undelivered, clock_apart_ns = values
        self._undelivered = undelivered
        self.clock_apart_ns = clock_apart_ns
        self._make_room()
        self._n_open, self.ended, self.events, self.exact_events = counts
        if known_ns:  # 0: the message said nothing of it
            self.known_ns = known_ns
        self._changed.set()

    def _put(self, frames: bytes) -> None:
        begun_ns = time.thread_time_ns()
        try:
            if self._give is not None:
                self._give(decode(frames).records)
        except Exception:  # noqa: BLE001 - a sink's mistake must not stop the records of all others
            get_hub().handle_error(self._give, *sys.exc_info())
        self._held_up(begun_ns)

    def _held_up(self, begun_ns: int) -> None:
        """The reader could not read since then; CPU time, so that a busy machine is not counted."""
        self.hold_ns = max(self.hold_ns, time.thread_time_ns() - begun_ns)

    # the end

    def _lost(self, how: str) -> None:
        """Nothing more can be recorded: say so once, and let nobody wait any more."""
        if self.trouble:
            return
        # not the greenlet that found out; the other one may be waiting for the pipe's descriptor
        others = [loop for loop in self._loops if loop is not gevent.getcurrent()]
        gevent.killall(others)
        code = self._decoder.close(EXIT_S if how == ENDED_ITSELF else 0.0)
        if how == ENDED_ITSELF:
            how += f" by signal {-code}" if code < 0 else f" with exit code {code}"
        self.trouble = (
            f"the decoder of a load process (pid {self.pid}) {how}: what it had not written is "
            "lost; what was measured before is kept; see its message above, and run again."
        )
        self._room.set()
        self._changed.set()
        self.on_trouble(self.trouble)

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued and wait until all of it is where records go; False: it is not."""
        with gevent.Timeout(max(timeout_s, 0.0), False):
            while not self.trouble and not self._is_flushed():
                if not self.batch and not self.backlog:  # ask again: has the master taken it?
                    self._asked = True
                    gevent.sleep(ASK_S)
                self._changed.clear()
                self._wake.set()
                self._changed.wait(ASK_S)
        return not self.trouble and self._is_flushed()

    def _is_flushed(self) -> bool:
        return not self.batch and not self.backlog and not self._undelivered

    def close(self) -> None:
        """Wait until everything is decoded, then end the decoder; one that is stuck is killed."""
        if self._closed:
            return
        with gevent.Timeout(CLOSE_S, False):
            while (self.batch or self.backlog) and not self.trouble:
                self._changed.clear()
                self._wake.set()
                self._changed.wait(ASK_S)
        if self.batch or self.backlog:
            self._lost(f"did not answer for {CLOSE_S:.0f} s at the end of the run")
        self._closed = True
        gevent.killall(self._loops)
        if not self.trouble:
            self._decoder.close()
