"""HTTP/1.1 without sockets: the request's bytes, and a response read piece by piece.

Parsing is llhttp's (httptools), so chunked bodies, lengths and closing servers are its business.
"""

from __future__ import annotations

from typing import Any

import httptools
import orjson


class NotHttp(ValueError):  # noqa: N818 - says what it is
    """The bytes are no HTTP response."""


def post(host: str, path: str, body: dict[str, Any], api_key: str = "") -> bytes:
    """A POST of JSON that asks for a stream."""
    content = orjson.dumps(body)
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n{key}\r\n"
    )
    return head.encode("latin-1") + content


class Ending:
    """Finds a response's end and nothing else: no callback for its body, so it costs little."""

    __slots__ = ("_parser", "complete", "keep_alive", "status")

    def __init__(self) -> None:
        """Before the first byte."""
        self.status = 0
        self.complete = False
        self.keep_alive = True
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises NotHttp."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise NotHttp(f"the answer is not HTTP ({error})") from None

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()
        self.keep_alive = bool(self._parser.should_keep_alive())

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = self.status >= 200  # noqa: PLR2004 - 1xx is not the answer


class Body(Ending):
    """The same with the body: `take` gives what came since the last call."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        """Before the first byte."""
        super().__init__()
        self._pieces: list[bytes] = []

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._pieces.append(data)

    def take(self) -> bytes:
        """Body bytes since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
