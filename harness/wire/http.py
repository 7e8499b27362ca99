"""HTTP/1.1 without sockets: the request's bytes, and a response read piece by piece.

Parsing is llhttp's (httptools), so chunked bodies, lengths and closing servers are its business.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import httptools
import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping

OK_STATUS: Final = 200
EVENT_STREAM: Final = "text/event-stream"
_PLAIN: Final = (b"}\n\n\r\n", b"}\n\n")  # how nearly every read ends: in a chunk, without chunks
_SURE: Final = 8  # bytes; a shorter piece of body could be mistaken for framing


def post(
    host: str,
    path: str,
    body: dict[str, Any],
    api_key: str = "",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A POST of JSON that asks for a stream. Raises ValueError, without the value, on bad headers.

    `host` as in a URL: an IPv6 address in its brackets. `headers` are further ones.
    """
    content = orjson.dumps(body)
    own = _lines(headers) if headers else b""
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (
        _head(host, path, api_key),
        own,
        len(content),
        content,
    )


@lru_cache(maxsize=16)
def _head(host: str, path: str, api_key: str) -> bytes:
    """What all requests of a run begin with."""
    fields = {"Host": host, "Accept": EVENT_STREAM, "Content-Type": "application/json"}
    if api_key:
        fields["Authorization"] = f"Bearer {api_key}"
    return f"POST {path} HTTP/1.1\r\n".encode("ascii") + _lines(fields)


def _lines(fields: Mapping[str, str]) -> bytes:
    lines = []
    for name, value in fields.items():
        line = f"{name}: {value}"
        # what cannot be encoded would end in an exception that quotes the whole head, key too
        if not line.isascii() or not line.isprintable():
            raise ValueError(f"the header {name!r} must be printable ASCII")
        lines.append(line + "\r\n")
    return "".join(lines).encode("ascii")


class Response:
    """One response. `feed` gives the body's bytes; the rest are attributes.

    Only the parser's few callbacks run in Python, and a body's pieces go from C straight into a
    list: this is on the path of every token.
    """

    __slots__ = ("_feed", "_parser", "_pieces", "between", "complete", "content_type", "keep_alive",
                 "on_body", "problem", "status")  # fmt: skip

    def __init__(self) -> None:
        """Before the first byte."""
        self.status = 0
        self.content_type = ""
        self.complete = False
        self.between = False  # only in `ChunkedResponse`
        self.problem = ""  # why the bytes are no HTTP response; what came before them counts
        self.keep_alive = True
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    def feed(self, data: bytes) -> bytes:
        """The body's bytes in `data`, b"" if there are none; look at `problem` after it."""
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self.complete:  # what follows a whole response is not ours to judge
                self.problem = f"the answer is not HTTP ({error})"
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces.pop()
        body = b"".join(pieces)
        pieces.clear()
        return body

    def release(self) -> None:
        """Break the cycle of parser and callbacks: nothing is left to the garbage collector."""
        del self._parser, self._feed, self.on_body

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() == b"content-type":
            self.content_type = value.decode("latin-1").partition(";")[0].strip().lower()

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        self.status = self._parser.get_status_code()
        self.keep_alive = bool(self._parser.should_keep_alive())

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.complete = self.status >= OK_STATUS  # 1xx is not the answer


class ChunkedResponse(Response):
    """One that also says `between`: the last byte ended a chunk of a chunked body.

    The next byte then begins another: whole chunks that somebody else reads need not be fed.
    """

    __slots__ = ()

    def feed(self, data: bytes) -> bytes:
        """As above."""
        body = super().feed(data)
        if not data.endswith(b"\r\n"):
            self.between = False  # amid the next one's size
        return body

    def on_chunk_header(self) -> None:
        """Called by the parser."""
        self.between = False

    def on_chunk_complete(self) -> None:
        """Called by the parser."""
        self.between = not self.complete


def ends_with_body(data: bytes, body: bytes) -> bool:
    """Whether what `data` ends with is the end of its `body`, or of the chunk that the body ends.

    An event's last byte on the wire is the line end that closes its chunk: servers send it in one
    piece with the event. After anything else (the head of the next chunk, the end of the response)
    the read's stamp may be that of a later segment.
    """
    if data.endswith(_PLAIN):  # a brace and two line feeds are no framing
        return True
    tail = body[-64:]
    return len(tail) >= _SURE and data.endswith((tail + b"\r\n", tail))
