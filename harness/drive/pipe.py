"""Where decoding happens: in a child process, or, when that will not live, in this one.

Both take messages and give answers as `decoder` describes them, without blocking the loop.
"""

from __future__ import annotations

import marshal
import socket
import subprocess
import sys
from collections import deque
from typing import Any, Final, Protocol

import gevent
import gevent.socket
from gevent.event import Event

from harness.drive.batch import LENGTH, Message
from harness.drive.stamping import Socket

EXIT_S: Final = 5.0


class DecodesElsewhere(Protocol):
    """One end of a decoder."""

    pid: int

    def send(self, message: bytes) -> bool:
        """Give one packed message; False when the decoder is gone."""

    def receive(self) -> tuple[Any, ...] | None:
        """Wait for the next answer; None when the decoder is gone."""

    def close(self) -> None:
        """End it. No greenlet may wait on it any more."""


class Child:
    """A process at the other end of a socket pair."""

    def __init__(self) -> None:
        """Starts it. Raises OSError."""
        ours, theirs = socket.socketpair()
        self._pipe = Socket(fileno=ours.detach())
        self._pipe.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "harness.drive.decoder", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; it ends when the pair does
            )
        self.pid = self._process.pid

    def send(self, message: bytes) -> bool:
        """All of it; False when the process is gone."""
        view = memoryview(message)
        while view:
            try:
                view = view[self._pipe.send(view) :]
            except BlockingIOError:
                gevent.socket.wait_write(self._pipe.fileno())
            except OSError:
                return False
        return True

    def receive(self) -> tuple[Any, ...] | None:
        """The next answer; None when the process is gone."""
        head = self._exactly(LENGTH.size)
        body = self._exactly(LENGTH.unpack(head)[0]) if head else b""
        return marshal.loads(body) if body else None  # noqa: S302 - our own child wrote it

    def _exactly(self, count: int) -> bytes:
        pieces = bytearray(count)
        view = memoryview(pieces)
        while view:
            try:
                got = self._pipe.recv_into(view)
            except BlockingIOError:
                gevent.socket.wait_read(self._pipe.fileno())
                continue
            except OSError:
                return b""
            if not got:
                return b""
            view = view[got:]
        return bytes(pieces)

    def close(self) -> None:
        """It ends by itself when the pair is closed; waited for, killed when it does not."""
        self._pipe.close()
        try:
            self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Here:
    """The last resort: decoding costs the reader time, and the loop's lag will say so."""

    pid = -1

    def __init__(self) -> None:
        """Nothing was sent yet."""
        from harness.drive.decoder import Decoding  # noqa: PLC0415 - numpy, and hardly ever needed

        self._decoding = Decoding()
        self._answers: deque[tuple[Any, ...]] = deque()
        self._some = Event()

    def send(self, message: bytes) -> bool:
        """Decode it, with a pause after each answer."""
        for answer in self._decoding.take(Message.read(message[LENGTH.size :])):
            self._answers.append(answer)
            self._some.set()
            gevent.sleep(0)
        return True

    def receive(self) -> tuple[Any, ...] | None:
        """The next answer."""
        while not self._answers:
            self._some.clear()
            self._some.wait()
        return self._answers.popleft()

    def close(self) -> None:
        """Nothing to end."""
