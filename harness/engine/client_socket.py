"""The embedded engine's connections: its listener, its clients' sockets, and their requests."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import httptools

from harness.engine.responses import INVALID_HTTP_ANSWER
from harness.errors import ConfigError


@dataclass(slots=True)
class Request:
    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    arrived_ns: int  # CLOCK_REALTIME: the kernel's stamp of the segment that completed it
    keep_alive: bool = True


class RequestParser:
    """`feed` it bytes; it passes each complete request to `on_request`, in order.

    `on_expect` is called when a client waits for `100 Continue` before it sends the body.
    """

    # Some clients send `Upgrade: h2c` with every request. A server may ignore it, but llhttp takes
    # such a request to end with its head. So the head is rebuilt without that header and parsed
    # again, together with the bytes that follow it.

    def __init__(
        self, on_request: Callable[[Request], None], on_expect: Callable[[], None]
    ) -> None:
        self._on_request = on_request
        self._on_expect = on_expect
        self._stamp_ns = 0
        self._parser = httptools.HttpRequestParser(self)
        self._clear()

    def _clear(self) -> None:
        self._url = b""
        self._body: list[bytes] = []
        self._headers: dict[str, str] = {}

    def feed(self, data: bytes, stamp_ns: int) -> None:
        """Parse what was read. Raises HttpParserError for invalid HTTP."""
        self._stamp_ns = stamp_ns
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._as_it_is() + data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            else:
                return

    def _as_it_is(self) -> bytes:
        """Return the head without `upgrade`; b"" if the request was passed on already."""
        if not self._url:
            return b""
        method = self._parser.get_method().decode()
        version = self._parser.get_http_version()
        lines = [f"{method} {self._url.decode('latin-1')} HTTP/{version}"]
        for name, value in self._headers.items():
            if name != "upgrade":
                lines.append(f"{name}: {value}")
        self._clear()
        head = "\r\n".join([*lines, "", ""])
        return head.encode("latin-1")

    def _ignored(self) -> bool:
        """Return whether the head will be parsed again; CONNECT is not, and is refused."""
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    # called by the parser

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        # the client may wait for permission to send the body
        if self._headers.get("expect", "").lower() == "100-continue" and not self._ignored():
            self._on_expect()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        if self._ignored():
            return
        path, _, _ = self._url.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode(),
            path=path,
            body=b"".join(self._body),
            headers=self._headers,
            arrived_ns=self._stamp_ns,
            keep_alive=bool(self._parser.should_keep_alive()),
        )
        self._clear()
        self._on_request(request)


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
        # Without a stamp the read is the next best; it comes later.
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
        """Send what is kept; return False if the client is gone."""
        if not self.backlog:
            return True
        rest = bytes(self.backlog)
        self.backlog = bytearray()  # what does not fit comes back into it
        return self.send(rest)

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
    # On the listener: a connection's first segment may come before `accept` returns.
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
