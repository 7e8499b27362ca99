"""One client connection of the embedded engine: requests in, bytes out, never blocking."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import httptools

from harness.engine.framing import NONSENSE

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES: Final = 65_536
SO_TIMESTAMPNS: Final = 35  # Python has no name for it
_TIMESPEC: Final = struct.Struct("qq")
_ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size)


@dataclass(slots=True)
class Request:
    """One whole request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    arrived_ns: int  # CLOCK_REALTIME: the kernel's stamp of the segment that completed it
    keep_alive: bool = True


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
    _stamp_ns: int = 0
    _url: bytes = b""
    _body: list[bytes] = field(default_factory=list)
    _headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """A fresh parser."""
        self._parser = httptools.HttpRequestParser(self)

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
        self._stamp_ns = time.time_ns()
        for _, kind, value in ancillary:
            if kind == SO_TIMESTAMPNS:
                seconds, ns = _TIMESPEC.unpack_from(value)
                self._stamp_ns = seconds * 1_000_000_000 + ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # no other protocol here: answered as it is
            self._parser = httptools.HttpRequestParser(self)
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

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """A client with a large body may wait to be told to go on."""
        if self._headers.get("expect", "").lower() == "100-continue" and not self.busy:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """A request is whole."""
        request = Request(
            self._parser.get_method().decode(),
            self._url.decode("latin-1").partition("?")[0],
            b"".join(self._body),
            self._headers,
            self._stamp_ns,
            bool(self._parser.should_keep_alive()),
        )
        self._url, self._body, self._headers = b"", [], {}
        if self.busy:
            self.waiting.append(request)
        else:
            self._begin(request)
