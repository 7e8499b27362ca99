"""The embedded engine's sockets: the listener, and the non-blocking ones of its clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httptools

from harness.engine.request import Request, RequestParser
from harness.engine.responses import INVALID_HTTP_ANSWER
from harness.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES: Final = 65_536
BACKLOG: Final = 4096
UNPACED_CONGESTION_CONTROLS: Final = (b"reno", b"cubic")
SO_TIMESTAMPNS: Final = 35  # Python has no name for it
_TIMESPEC: Final = struct.Struct("qq")
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size)


@dataclass(eq=False)
class Client:
    """Parses requests and passes each complete one to `on_request`, one at a time."""

    sock: socket.socket
    on_request: Callable[[Client, Request], None]
    busy: bool = False  # a response is in progress: the next request waits
    wanted: bool = False  # epoll watches for room to write
    closing: bool = False  # close once everything is sent
    number: int = -1  # of the request in the player; -1: none
    backlog: bytearray = field(default_factory=bytearray)
    waiting: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._parser = RequestParser(self._take, self._go_on)

    def read(self) -> bool:
        """Read what is available; return False if the client is gone or sent invalid HTTP."""
        try:
            data, ancillary, _, _ = self.sock.recvmsg(READ_BYTES, _ANCILLARY)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        stamp_ns = time.time_ns()
        for _, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, ns = _TIMESPEC.unpack_from(value)
                stamp_ns = seconds * 1_000_000_000 + ns
        try:
            self._parser.feed(data, stamp_ns)
        except httptools.HttpParserError:
            self.send(INVALID_HTTP_ANSWER)
            return False
        return True

    def send(self, data: bytes) -> bool:
        """Send what fits, keep the rest; return False if the client is gone."""
        if self.backlog:
            self.backlog += data
            return True
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False
        if sent < len(data):
            self.backlog += data[sent:]
        return True

    def flush(self) -> bool:
        rest, self.backlog = self.backlog, bytearray()
        return self.send(bytes(rest)) if rest else True

    def next(self) -> None:
        self.busy = False
        if self.waiting:
            self._begin(self.waiting.pop(0))

    def _begin(self, request: Request) -> None:
        self.busy = True
        self.closing = not request.keep_alive
        self.on_request(self, request)

    # called by the parser

    def _go_on(self) -> None:
        if not self.busy:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take(self, request: Request) -> None:
        if self.busy:
            self.waiting.append(request)
        else:
            self._begin(request)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; connections inherit its options. Port 0: any free port.

    Raises ConfigError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    disable_pacing(listener)
    try:
        listener.bind((host, port))
    except OSError as problem:
        listener.close()
        raise ConfigError(
            f"the engine cannot listen at {host}:{port} ({problem.strerror}): expected a free "
            "port of this machine; try --port 0."
        ) from None
    listener.listen(BACKLOG)
    return listener


def disable_pacing(sock: socket.socket) -> None:
    """Select a congestion control that does not pace, if the kernel allows it."""
    # BBR, the default of some hosts, spreads segments over time: they would leave later than the
    # send that the oracle records, and the error would be blamed on the client's timestamps.
    for name in UNPACED_CONGESTION_CONTROLS:
        with contextlib.suppress(OSError, AttributeError):  # no such name, or no such option
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return
