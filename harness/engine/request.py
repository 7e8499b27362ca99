"""Requests out of a connection's bytes, cut anywhere: no socket, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Request:
    """One whole request."""

    method: str
    path: str
    body: bytes
    headers: dict[str, str]
    arrived_ns: int  # CLOCK_REALTIME: the kernel's stamp of the segment that completed it
    keep_alive: bool = True


class RequestParser:
    """`feed` it; each whole request goes to `on_request`, in order.

    `on_expect`: a client with a large body waits to be told to go on. A request for another
    protocol (`Upgrade: h2c`, as some clients send with all they ask) is read as if it had not
    asked: a server may, but llhttp takes such a request to end with its head. So the head is
    written again without that header, and what follows is parsed anew.
    """

    def __init__(
        self, on_request: Callable[[Request], None], on_expect: Callable[[], None]
    ) -> None:
        """Before the first byte."""
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
        """Take what was read. Raises HttpParserError when it makes no sense."""
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
        """The head so far without its wish; nothing when the request was handed on."""
        if not self._url:
            return b""
        parser, headers = self._parser, self._headers
        lines = [f"{name}: {value}" for name, value in headers.items() if name != "upgrade"]
        target = f"{parser.get_method().decode()} {self._url.decode('latin-1')}"
        head = "\r\n".join([f"{target} HTTP/{parser.get_http_version()}", *lines, "", ""])
        self._clear()
        return head.encode("latin-1")

    def _ignored(self) -> bool:
        """Whether this is a head to be read again; CONNECT stays what it is, and is refused."""
        return bool(self._parser.should_upgrade()) and self._parser.get_method() != b"CONNECT"

    # called by the parser

    def on_url(self, url: bytes) -> None:
        """A piece of the path."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The client may wait for a word before it sends the body."""
        if self._headers.get("expect", "").lower() == "100-continue" and not self._ignored():
            self._on_expect()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body.append(data)

    def on_message_complete(self) -> None:
        """A request is whole."""
        if self._ignored():
            return
        request = Request(
            self._parser.get_method().decode(),
            self._url.decode("latin-1").partition("?")[0],
            b"".join(self._body),
            self._headers,
            self._stamp_ns,
            bool(self._parser.should_keep_alive()),
        )
        self._clear()
        self._on_request(request)
