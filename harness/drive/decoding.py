"""The reader's end of the decoder process: what goes out is kept until its record has come back."""

from __future__ import annotations

import marshal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import gevent
import gevent.socket
from gevent.event import Event

from harness.drive.decoder import LENGTH, pack, record_in
from harness.drive.stamping import Socket
from harness.measure.records import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.drive.clock import Clock
    from harness.measure.records import RequestRecord

Item = tuple[Any, ...]
FLUSH_S: Final = 0.25
MOST_UNANSWERED: Final = 64  # batches; beyond it the next ones wait and grow
EXIT_S: Final = 5.0


class DecoderLink:
    """Batches items to the decoder, hands its records to `put`, restarts it when it dies."""

    def __init__(self, clock: Clock, put: Callable[[list[RequestRecord]], None]) -> None:
        """Starts the process."""
        self.clock = clock
        self.put = put
        self.events = 0
        self.exact_events = 0
        self.cpu_s = 0.0
        self.restarts = 0
        self._batch: list[Item] = []
        self._kept: dict[int, list[Item]] = {}  # stream -> all its items until its record is here
        self._given: dict[int, int] = {}  # stream -> events already given in parts
        self._sequence = 0
        self._answered = 0
        self._before = [0, 0, 0.0]  # figures of decoders that died
        self._changed = Event()
        self._closing = False
        self._process, self._pipe = self._start()
        self._sender = gevent.spawn(self._send_loop)
        self._receiver = gevent.spawn(self._receive_loop)

    def add(self, item: Item) -> None:
        """Queue one item: ("o", ...), ("r", ...) or ("c", ...); see decoder."""
        self._batch.append(item)
        self._kept.setdefault(item[1], []).append(item)

    @property
    def backlog(self) -> int:
        """Batches that the decoder has not answered."""
        return self._sequence - self._answered

    def flush(self, timeout_s: float) -> bool:
        """Send what is queued and wait for all answers; False when it took too long."""
        with gevent.Timeout(timeout_s, False):
            while self._batch or self.backlog:
                self._changed.clear()
                self._send()
                self._changed.wait(0.05)
        return not self._batch and not self.backlog

    def close(self) -> None:
        """Flush, then end the process."""
        if self._closing:
            return
        self.flush(EXIT_S)
        self._closing = True
        gevent.killall([self._sender, self._receiver], block=False)
        self._pipe.close()
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        fd = ours.detach()
        pipe = Socket(fileno=fd)
        pipe.setblocking(False)
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "harness.drive.decoder", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; it ends when the pair does
            )
        return process, pipe

    def _send_loop(self) -> None:
        while True:
            gevent.sleep(FLUSH_S)
            if self.backlog < MOST_UNANSWERED:
                self._send()

    def _send(self) -> None:
        """One batch, empty ones too: the decoder's parts depend on hearing the time."""
        items, self._batch = self._batch, []
        self._sequence += 1
        self._write(pack((self._sequence, self.clock.now_ns(), items)))

    def _write(self, data: bytes) -> None:
        view, pipe = memoryview(data), self._pipe
        while view and pipe is self._pipe:
            try:
                view = view[pipe.send(view) :]
            except BlockingIOError:
                gevent.socket.wait_write(pipe.fileno())
            except OSError:
                return  # it died; the receiver notices and sends everything again

    def _receive_loop(self) -> None:
        while True:
            head = self._exactly(LENGTH.size)
            body = self._exactly(LENGTH.unpack(head)[0]) if head else b""
            if body:
                self._take(*marshal.loads(body))  # noqa: S302 - our own child wrote it
            elif not self._closing:
                self._restart()

    def _exactly(self, count: int) -> bytes:
        pieces = bytearray()
        while len(pieces) < count:
            try:
                piece = self._pipe.recv(count - len(pieces))
            except BlockingIOError:
                gevent.socket.wait_read(self._pipe.fileno())
                continue
            except OSError:
                return b""
            if not piece:
                return b""
            pieces += piece
        return bytes(pieces)

    def _take(self, sequence: int, rows: list[Any], events: int, exact: int, cpu_s: float) -> None:
        self.events = int(self._before[0]) + events
        self.exact_events = int(self._before[1]) + exact
        self.cpu_s = self._before[2] + cpu_s
        records = [record_in(row) for row in rows]
        for record in records:
            stream = record.number
            if record.outcome is Outcome.open:
                self._given[stream] = self._given.get(stream, 0) + len(record.at_ns)
            else:
                self._kept.pop(stream, None)
                self._given.pop(stream, None)
        self._answered = sequence
        self._changed.set()
        if records:
            self.put(records)

    def _restart(self) -> None:
        """A new process gets every stream that has no record yet, from its first byte."""
        self.restarts += 1
        self._before = [self.events, self.exact_events, self.cpu_s]
        old = self._pipe
        self._process.wait()
        self._process, self._pipe = self._start()
        old.close()
        self._batch = [
            (*item[:3], self._given.get(item[1], 0)) if item[0] == "o" else item
            for items in self._kept.values()
            for item in items
        ]
        self._answered = self._sequence
