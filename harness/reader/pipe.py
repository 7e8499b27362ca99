"""The reader's end of the pipe to its decoder: a child process at the other end of a socket pair.

Nothing here blocks the loop: a greenlet that has to wait for the pipe lets the others run.
"""

from __future__ import annotations

import marshal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import gevent.socket

from harness.reader.raw_batch import LENGTH, pack
from harness.reader.stamping import Socket

if TYPE_CHECKING:
    from harness.reader.raw_batch import Output

EXIT_S: Final = 5.0


class DecoderProcess:
    """Takes messages and gives answers as `decoder` describes them."""

    def __init__(self, output: Output) -> None:
        """Starts it. Raises OSError."""
        ours, theirs = socket.socketpair()
        self._pipe = Socket(fileno=ours.detach())
        self._pipe.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "harness.reader.decoder_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for us; it ends when the pair does
            )
        self.pid = self._process.pid
        self._pipe.send(pack(tuple(output)))  # by pipe: arguments are for everybody to read

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

    def close(self, timeout_s: float = EXIT_S) -> int:
        """It ends by itself when the pair is closed; killed when it does not. Its exit code."""
        self._pipe.close()
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
