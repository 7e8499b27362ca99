"""Parses requests from a connection's bytes, which may be cut anywhere; no socket, no clock."""

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
        parser, headers = self._parser, self._headers
        lines = [f"{name}: {value}" for name, value in headers.items() if name != "upgrade"]
        target = f"{parser.get_method().decode()} {self._url.decode('latin-1')}"
        head = "\r\n".join([f"{target} HTTP/{parser.get_http_version()}", *lines, "", ""])
        self._clear()
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
