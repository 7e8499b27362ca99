"""Requests to the target, each read to its end: what the probe and the scraper are made of.

Only the standard library: the probe must not depend on the reader that it clears the way for.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from harness.errors import ServerUnreachable
from harness.server import why
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.server.access import Access

MAX_BODY: Final = 4 << 20  # bytes; /metrics of a busy vLLM is 0.1 MB
CLOSED: Final = (ConnectionError, ssl.SSLError)  # what an idle connection's end looks like


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read to its end."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # by their names in lower case

    def json(self) -> object:
        """The body, parsed; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(access: Access, path: str, body: object = None) -> Answer:
    """GET `path`, or POST `body` as JSON. Raises ServerUnreachable with its sentence."""
    with closing(Line(access)) as line:
        return line.ask(path, body, last=True)


class Line:
    """Questions to one target over one connection, for as long as the server keeps it."""

    def __init__(self, access: Access) -> None:
        """Nothing is opened yet."""
        self._access = access
        self._kept: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Hang up; harmless when repeated, and the next question opens a new connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def ask(self, path: str, body: object = None, *, last: bool = False) -> Answer:
        """As `ask` does; `last` tells the server to close after its answer."""
        access = self._access
        kept, self._kept = self._kept, None  # only a whole answer brings it back
        try:
            if kept is not None:
                with suppress(*CLOSED):  # while it was idle, as servers do: once more on a new one
                    return self._exchange(kept, path, body, last=last)
            return self._exchange(_connect(access), path, body, last=last)
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, TimeoutError) and _speaks_tls(access):
                raise why.speaks_tls(access) from error
            raise why.no_answer(access, error) from error

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, body: object, *, last: bool
    ) -> Answer:
        access, data = self._access, None if body is None else json.dumps(body).encode()
        deadline_ns = time.monotonic_ns() + access.answer_ns
        where, headers = access.address.path + path, _headers(access, data, last=last)
        try:
            connection.request("POST" if data else "GET", where, data, headers)
            with connection.getresponse() as response:
                kind = response.headers.get_content_type()
                headers = {name.lower(): value for name, value in response.getheaders()}
                answer = Answer(response.status, kind, _read(response, deadline_ns), headers)
                whole = response.isclosed() or response.length == 0
                if whole and not (last or response.will_close):
                    self._kept = connection
        finally:
            if self._kept is not connection:
                connection.close()
        return answer


def _headers(access: Access, data: bytes | None, *, last: bool) -> dict[str, str]:
    return {
        "Accept": "*/*",
        **({"Connection": "close"} if last else {}),
        **({"Authorization": f"Bearer {access.api_key}"} if access.api_key else {}),
        **({"Content-Type": "application/json"} if data is not None else {}),
    }


def _speaks_tls(access: Access) -> bool:
    """Whether a plain address answers a TLS handshake: what it says to plain HTTP does not tell."""
    if access.address.tls:
        return False
    try:
        with closing(_connect(access.as_tls())):
            return True
    except ServerUnreachable:
        return False


def _read(response: http.client.HTTPResponse, deadline_ns: int) -> bytes:
    """The body, bounded in size and in time even if it comes in drips."""
    body = bytearray()
    while len(body) < MAX_BODY and (piece := response.read1(1 << 16)):
        body += piece
        if time.monotonic_ns() > deadline_ns:
            raise TimeoutError
    if response.length and len(body) < MAX_BODY:  # less came than Content-Length said
        raise http.client.IncompleteRead(bytes(body), response.length)
    return bytes(body)


def _connect(access: Access) -> http.client.HTTPConnection:
    where, seconds = access.address, access.connect_ns / SECOND
    connection = (
        http.client.HTTPSConnection(
            where.host, where.port, timeout=seconds, context=access.tls_context()
        )
        if where.tls
        else http.client.HTTPConnection(where.host, where.port, timeout=seconds)
    )
    try:
        connection.connect()
    except OSError as error:  # ssl.SSLError is one
        connection.close()
        raise why.not_connected(access, error) from error
    connection.sock.settimeout(access.answer_ns / SECOND)
    return connection
