"""One client connection of the embedded engine: requests in, bytes out, never blocking."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httptools

from harness.engine.framing import NONSENSE
from harness.engine.request import Request, RequestParser

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES: Final = 65_536
SO_TIMESTAMPNS: Final = 35  # Python has no name for it
_TIMESPEC: Final = struct.Struct("qq")
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size)


@dataclass(eq=False)
class Client:
    """Parses requests and hands each whole one to `on_request`, one at a time."""

    sock: socket.socket
    on_request: Callable[[Client, Request], None]
    busy: bool = False  # a response is under way: the next request waits
    wanted: bool = False  # the poll watches for room to write
    closing: bool = False  # close when everything is sent
    number: int = -1  # of the request in the player; -1: none
    backlog: bytearray = field(default_factory=bytearray)
    waiting: list[Request] = field(default_factory=list)

    def __post_init__(self) -> None:
        """A fresh parser."""
        self._parser = RequestParser(self._take, self._go_on)

    def read(self) -> bool:
        """Take what is there; False when the client is gone or makes no sense."""
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
            self.send(NONSENSE)
            return False
        return True

    def send(self, data: bytes) -> bool:
        """Send what fits now, keep the rest; False when the client is gone."""
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
        """Send the rest."""
        rest, self.backlog = self.backlog, bytearray()
        return self.send(bytes(rest)) if rest else True

    def next(self) -> None:
        """The response is out: the next request, if one waits."""
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
