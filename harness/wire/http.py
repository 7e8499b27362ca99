"""HTTP/1.1 and TLS without sockets: bytes of a request, a response piece by piece, ciphertext.

llhttp (httptools) parses, and handles chunked bodies, content lengths and closing servers. TLS is
`ssl.MemoryBIO`: the stamp of a decrypted event is that of the read that completed its record.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import httptools
import orjson

from harness.errors import one_line
from harness.wire.sse import CHUNK_END, EVENT_END, EVENT_STREAM

OK_STATUS: Final = 200
MAX_TYPE: Final = 80  # characters of a media type or an encoding
# how nearly every read ends: in a chunk, without chunks
_PLAIN: Final = (b"}" + EVENT_END + CHUNK_END, b"}" + EVENT_END)
# what llhttp, which has no limit, may be made to hold before the body or behind it
MAX_HEAD_BYTES: Final = 256 << 10
_MIN_TAIL_BYTES: Final = 8  # a shorter piece of body could be mistaken for framing


def post(
    host: str,
    path: str,
    body: dict[str, Any],
    api_key: str = "",
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """Return the bytes of a POST that asks for a stream.

    `host` as in a URL: an IPv6 address in brackets. `headers` are additional ones. Raises
    ValueError, which does not quote the value, for an invalid header.
    """
    content = orjson.dumps(body)
    head = _head(host, path, api_key) + _lines(headers or {})
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(content), content)


@lru_cache(maxsize=16)
def _head(host: str, path: str, api_key: str) -> bytes:
    """Return the part of the head that all requests of a run share."""
    fields = {"Host": host, "Accept": EVENT_STREAM, "Content-Type": "application/json"}
    if api_key:
        fields["Authorization"] = f"Bearer {api_key}"
    return f"POST {path} HTTP/1.1\r\n".encode("ascii") + _lines(fields)


def _lines(fields: Mapping[str, str]) -> bytes:
    lines = []
    for name, value in fields.items():
        line = f"{name}: {value}"
        # An encoding error would quote the whole head in its message, including the API key.
        if not line.isascii() or not line.isprintable():
            raise ValueError(f"the header {name!r} must be printable ASCII")
        lines.append(line + "\r\n")
    return "".join(lines).encode("ascii")


class Response:
    """One response. `feed` gives the body's bytes; the rest are attributes.

    Only the parser's few callbacks run in Python, and a body's pieces go from C straight into a
    list: this is on the path of every token.
    """

    __slots__ = (
        "_bodiless",
        "_encoding",
        "_feed",
        "_parser",
        "_pieces",
        "between",
        "complete",
        "content_type",
        "keep_alive",
        "on_body",
        "problem",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.content_type = ""
        self.complete = False
        self.between = False  # only in `ChunkedResponse`
        self.problem = ""  # why the bytes cannot be read; what came before them counts
        self.keep_alive = True
        self._encoding = ""
        self._bodiless = 0  # bytes since the latest of the body
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._feed = self._parser.feed_data

    def feed(self, data: bytes) -> bytes:
        """Return the body's bytes in `data`, b"" if there are none; then check `problem`."""
        try:
            self._feed(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.complete:  # nobody asked for what follows a whole response
                self.keep_alive = False
            else:
                self.problem = f"the answer is not HTTP ({error})"
        pieces = self._pieces
        if len(pieces) == 1:
            self._bodiless = 0
            return pieces.pop()
        self._bodiless = 0 if pieces else self._bodiless + len(data)
        if self._bodiless > MAX_HEAD_BYTES and not self.complete:
            self.problem = f"the answer's head is longer than {MAX_HEAD_BYTES >> 10} KiB"
        body = b"".join(pieces)
        pieces.clear()
        return body

    def release(self) -> None:
        """Break the cycle of parser and callbacks: nothing is left to the garbage collector."""
        del self._parser, self._feed, self.on_body

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError  # `feed` takes it for the end

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-type":
            kind, _, _ = value.decode("latin-1").partition(";")
            self.content_type = one_line(kind.strip().lower(), MAX_TYPE)
        elif name == b"content-encoding":
            encoding = value.decode("latin-1")
            self._encoding = one_line(encoding.lower(), MAX_TYPE)

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keep_alive = bool(self._parser.should_keep_alive())
        if self._encoding not in ("", "identity") and self.status == OK_STATUS:
            self.problem = f"the answer is encoded ({self._encoding}), which was not asked for"

    def on_message_complete(self) -> None:
        self.complete = self.status >= OK_STATUS  # 1xx is not the answer


class ChunkedResponse(Response):
    """A response that also tracks `between`: whether the last byte ended a chunk of the body.

    If so, the next byte begins another chunk, and whole chunks that the C reader takes need not be
    fed to this parser.
    """

    __slots__ = ()

    def feed(self, data: bytes) -> bytes:
        body = super().feed(data)
        if not data.endswith(CHUNK_END):
            self.between = False  # inside the size of the next one
        return body

    def on_chunk_header(self) -> None:
        self.between = False

    def on_chunk_complete(self) -> None:
        self.between = not self.complete


def ends_with_body(data: bytes, body: bytes) -> bool:
    """Return whether `data` ends with the end of its `body`, or of the body's last chunk.

    Servers send an event in one segment with the line end that closes its chunk. If anything else
    follows (the head of the next chunk, the end of the response), the timestamp of the read may be
    that of a later segment.
    """
    if data.endswith(_PLAIN):  # no framing contains a brace and two line feeds
        return True
    tail = body[-64:]
    return len(tail) >= _MIN_TAIL_BYTES and data.endswith((tail + CHUNK_END, tail))


_MAX_RECORD_BYTES: Final = 1 << 14  # plaintext in one record, RFC 8446


class TlsClient:
    """TLS of one connection. The caller must send whatever `outgoing` returns.

    `whole`: whether the bytes of the latest `decrypt` ended with a record.
    """

    __slots__ = ("_in", "_out", "_tls", "whole")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """`host` is the name that the certificate must carry."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.whole = True

    def handshake(self, data: bytes) -> bool:
        """Take bytes of the handshake; return True when it is complete. Raises ssl.SSLError."""
        if data:
            self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> bytes:
        self._tls.write(data)
        return self.outgoing()

    def decrypt(self, data: bytes) -> bytes:
        """Return the plaintext of the records that `data` completed. Raises ssl.SSLError."""
        self._in.write(data)
        pieces: list[bytes] = []
        read = self._tls.read
        waiting = self._in
        pending = self._tls.pending
        self.whole = True
        try:
            # Ask only while something is left: one `read` too many raises SSLWantReadError, and an
            # exception per token is too expensive.
            while waiting.pending or pending():
                piece = read(_MAX_RECORD_BYTES)
                if not piece:
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            self.whole = False  # half a record, or one without plaintext
        except ssl.SSLZeroReturnError:
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def outgoing(self) -> bytes:
        return self._out.read()
