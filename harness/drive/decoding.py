"""The reader's end of decoding: batches go out, records come back.

Every second or two the decoder reports every open stream with its state: a checkpoint. What was
sent since the last one is kept, so that a decoder that dies can be replaced and nothing is lost;
of what came before, the encoded parts of the streams that are open.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from gevent.hub import get_hub

from harness.drive.batch import ENDED, OPENED, SLICE, Batch
from harness.drive.opened import Opened
from harness.drive.pipe import Child, DecodesElsewhere, Here
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.drive.clock import Clock
    from harness.drive.decoder import Row
    from harness.measure.records import Outcome
    from harness.runfolder.codec import Sealed

FLUSH_S: Final = 0.5  # each flush costs as much as a token for every stream that is open
BREATH_S: Final = 0.0002  # a timer: after sleep(0) the loop may stay with us for another 5 ms
FLUSH_BYTES: Final = 768 << 10  # half a millisecond to pack
PARTS_NS: Final = SECOND  # how often open streams report: each report costs as much as 20 tokens
MANY_PARTS_NS: Final = 2 * SECOND
MANY: Final = 500  # streams, of which this is how often; in between, in proportion
MOST_UNSENT: Final = 256 << 20  # bytes that wait for the decoder before new requests wait too
MOST_RESTARTS: Final = 3  # without an answer in between; then decode here
CLOSE_S: Final = 5.0
START_S: Final = 10.0  # for the decoder to import everything on a busy machine


class DecoderLink:
    """Records and parts come to `put` at most 16 at a time, on this loop."""

    def __init__(self, clock: Clock, put: Callable[[list[Sealed]], None]) -> None:
        """Starts the decoder."""
        self.batch = Batch()
        self.opened = Opened()
        self.restarts = 0
        self.hold_ns = 0  # longest CPU time that the loop spent on decoding's behalf in one go
        self.held = 0  # requests that had to wait because the decoder was behind
        self.known_ns = 0  # all that happened before it was given to `put`
        self.read_until_ns: Callable[[], int] = clock.now_ns  # what is in the batch by now
        self._clock, self._give = clock, put
        # messages since the last checkpoint: number, until when all was in it or before, bytes
        self._kept: deque[tuple[int, int, bytes]] = deque()
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._staged: list[Row] = []  # parts of a checkpoint that is not complete yet
        self._sequence = self._answered = self._fruitless = 0
        self._parts_ns = 0
        self._cpu_s = self._cpu_before_s = 0.0
        self._wake, self._changed, self._room = Event(), Event(), Event()
        self._room.set()
        self._wake.set()  # the first message asks whether it is there
        self._closed = False
        self._decoder: DecodesElsewhere = Child()
        self._spawn()

    def _spawn(self) -> None:
        self._loops = [gevent.spawn(self._send_loop), gevent.spawn(self._receive_loop)]

    @property
    def pid(self) -> int:
        """Of the decoder process; -1: decoding happens here."""
        return self._decoder.pid

    @property
    def cpu_s(self) -> float:
        """CPU time of all decoder processes so far; decoding here is counted with the reader."""
        return self._cpu_before_s + (self._cpu_s if self.pid > 0 else 0.0)

    @property
    def backlog(self) -> int:
        """Batches without an answer."""
        return self._sequence - self._answered

    def ready(self) -> None:
        """Wait until it decodes: while it starts, it takes a processor from the reads.

        One that does not answer in START_S is done without.
        """
        with gevent.Timeout(START_S, False):
            while not self._answered:
                self._changed.clear()
                self._changed.wait()
        if not self._answered:
            self._replace(here=True)

    # what the reader says

    def open(self, stream: int, asked: tuple[int, ...]) -> None:
        """A request is about to be sent; called again when it has to be sent again."""
        self.opened.add(stream, asked)
        self.batch.notice(stream, OPENED, asked)

    def end(self, stream: int, outcome: Outcome | None, error: str, done_ns: int) -> None:
        """It is over."""
        self.batch.notice(stream, ENDED, outcome.value if outcome else "", error, done_ns)

    def round_is_over(self) -> None:
        """Ship early when much was read."""
        if self.batch.size > FLUSH_BYTES:
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
            self._wake.clear()
            self._pack()
            while self._unsent:
                if not self._decoder.send(self._unsent[0]):
                    return  # the receiver notices too, and replaces all of us
                self._unsent_bytes -= len(self._unsent.popleft())
                if self._unsent_bytes <= MOST_UNSENT:
                    self._room.set()

    def _pack(self) -> None:
        """Queue what was read; now and then with a request for parts."""
        begun_ns, now = time.thread_time_ns(), self._clock.now_ns()
        often_ns = MANY_PARTS_NS * min(len(self.opened), MANY) // MANY
        # also when none is open: nothing is news too
        parts = now - self._parts_ns >= max(often_ns, PARTS_NS)
        if not self.batch and not parts:
            return
        if parts:
            self._parts_ns = now
        batch, self.batch = self.batch, Batch()
        self._sequence += 1
        message = batch.message(self._sequence, now, parts)
        known_ns = self.read_until_ns() if parts else 0  # only a checkpoint's counts
        self._kept.append((self._sequence, known_ns, message))
        self._unsent.append(message)
        self._unsent_bytes += len(message)
        if self._unsent_bytes > MOST_UNSENT:
            self._room.clear()
        self._held_up(begun_ns)

    # back

    def _receive_loop(self) -> None:
        while (answer := self._decoder.receive()) is not None:
            self._take(*answer)
            gevent.sleep(BREATH_S)
        if not self._closed:
            self._replace()

    def _take(self, kind: str, *values: Any) -> None:
        if kind == "ended":
            self._put(self.opened.ended, values[0])
        elif kind == "parts":
            self._staged += values[0]
        else:
            sequence, parts, self._cpu_s = values
            if parts:
                self._checkpoint(sequence)
            if sequence > self._answered:  # further than the decoder before it came
                self._fruitless = 0
                self._answered = sequence
            self._changed.set()

    def _checkpoint(self, sequence: int) -> None:
        """All parts are here: what led to them need not be kept."""
        rows, self._staged = self._staged, []
        known_ns = self.known_ns
        while self._kept and self._kept[0][0] <= sequence:
            known_ns = self._kept.popleft()[1]
        slices = iter([rows[i : i + SLICE] for i in range(0, len(rows), SLICE)])
        try:
            for some in slices:
                self._put(self.opened.parts, some)
                gevent.sleep(BREATH_S)
        finally:  # the end may come amid it, and what led to the others is forgotten
            for some in slices:
                self._put(self.opened.parts, some)
        self.known_ns = known_ns

    def _put(self, make: Callable[[list[Row]], list[Sealed]], rows: list[Row]) -> None:
        begun_ns = time.thread_time_ns()
        records = make(rows)
        try:
            if records:
                self._give(records)
        except Exception:  # noqa: BLE001 - a sink's mistake must not stop the records of all others
            get_hub().handle_error(self._give, *sys.exc_info())
        self._held_up(begun_ns)

    def _held_up(self, begun_ns: int) -> None:
        """The reader could not read since then; CPU time, so that a busy machine is not counted."""
        self.hold_ns = max(self.hold_ns, time.thread_time_ns() - begun_ns)

    # when it dies

    def _replace(self, *, here: bool = False) -> None:
        """A new decoder gets each open stream's state and everything sent since."""
        self.restarts += 1
        self._fruitless += 1
        self._cpu_before_s += self._cpu_s
        self._cpu_s = 0.0
        self._staged = []
        gevent.killall([loop for loop in self._loops if loop is not gevent.getcurrent()])
        self._decoder.close()
        try:
            self._decoder = Here() if here or self._fruitless > MOST_RESTARTS else Child()
        except OSError:  # no more processes or descriptors
            self._decoder = Here()
        states = self.opened.states().message(0, 0, parts=False)
        self._unsent = deque([states, *(message for *_, message in self._kept)])
        self._unsent_bytes = sum(map(len, self._unsent))
        self._wake.set()
        self._spawn()

    # the end

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued and wait for all answers; False when it took too long."""
        with gevent.Timeout(timeout_s, False):
            while self.batch or self.backlog:
                self._changed.clear()
                self._wake.set()
                self._changed.wait(0.05)
        return not self.batch and not self.backlog

    def close(self) -> None:
        """Wait for all records, then end the decoder; one that is stuck is done without."""
        if self._closed:
            return
        if not self.flush(CLOSE_S):
            self._replace(here=True)
            self.flush(CLOSE_S)
        self._closed = True
        gevent.killall(self._loops)
        self._decoder.close()
