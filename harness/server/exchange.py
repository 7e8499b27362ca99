"""One request to the target, read to its end: what the probe is made of.

Only the standard library: the probe must not depend on the reader that it clears the way for.
"""

from __future__ import annotations

import http.client
import json
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from harness.errors import ServerUnreachable
from harness.server import why
from harness.units import SECOND

if TYPE_CHECKING:
    from harness.server.access import Access

MAX_BODY: Final = 4 << 20  # bytes; /metrics of a busy vLLM is 0.1 MB


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, read to its end."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> object:
        """The body, parsed; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def ask(access: Access, path: str, body: object = None) -> Answer:
    """GET `path`, or POST `body` as JSON. Raises ServerUnreachable with its sentence."""
    deadline_ns = time.monotonic_ns() + access.answer_ns
    headers = {"Accept": "*/*", "Connection": "close"}
    if access.api_key:
        headers["Authorization"] = f"Bearer {access.api_key}"
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    with closing(_connect(access)) as connection:
        try:
            connection.request("POST" if data else "GET", access.address.path + path, data, headers)
            with connection.getresponse() as response:
                kind = response.headers.get_content_type()
                return Answer(response.status, kind, _read(response, deadline_ns))
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, TimeoutError) and _speaks_tls(access):
                raise why.speaks_tls(access) from error
            raise why.no_answer(access, error) from error


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
