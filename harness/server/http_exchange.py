"""Plain HTTP requests to the target, for the probe and the scraper: each response read to its end.

Standard library only: the probe must work before the measuring reader is used, and without it.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from harness.errors import ServerUnreachable, one_line
from harness.load.request_fields import PLACEHOLDERS, fill_headers
from harness.records.redact import redact_text
from harness.units import SECOND, say_ns

if TYPE_CHECKING:
    from harness.server.access import TargetAccess

MAX_BODY: Final = 4 << 20  # bytes; /metrics of a busy vLLM is 0.1 MB
MAX_QUOTED_CHARS: Final = 200  # characters quoted from a server's own text in a sentence
NAME_MISMATCH: Final = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH
SPEAKS_PLAIN: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
TRY_PRINTED_PORT: Final = "try the port that `vllm serve` printed."
CLOSED: Final = (ConnectionError, ssl.SSLError)  # raised if the server closed an idle connection


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response, read to its end."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    sent_ns: int = 0
    pieces: tuple[tuple[int, bytes], ...] = ()  # of the body, with their arrivals

    def json(self) -> object:
        """The body, parsed; None when it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def fetch(access: TargetAccess, path: str, body: object = None) -> HttpAnswer:
    """GET `path`, or POST `body` as JSON. Raises ServerUnreachable with a sentence."""
    with closing(HttpConnection(access)) as line:
        return line.fetch(path, body, last=True)


class HttpConnection:
    """Sends requests to one target over one connection, as long as the server keeps it open."""

    def __init__(self, access: TargetAccess) -> None:
        self._access = access
        self._kept: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection; safe to repeat, and the next request opens a new one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def fetch(self, path: str, body: object = None, *, last: bool = False) -> HttpAnswer:
        """Send one request, as `fetch` does; `last` tells the server to close after its answer."""
        access = self._access
        # Only a response that was read to its end leaves the connection usable, and brings it back.
        kept = self._kept
        self._kept = None
        try:
            if kept is not None:
                # Servers close idle connections without a warning; only that is tried once more, on
                # a new connection. A fresh connection that fails is reported.
                with suppress(*CLOSED):
                    return self._exchange(kept, path, body, last=last)
            return self._exchange(_connect(access), path, body, last=last)
        except (OSError, http.client.HTTPException) as error:
            if not isinstance(error, TimeoutError) and _speaks_tls(access):
                raise ServerUnreachable(
                    f"{access.address} speaks TLS: expected plain HTTP as the URL says; try "
                    "https:// in it."
                ) from error
            raise _no_answer(access, error) from error

    def _exchange(
        self, connection: http.client.HTTPConnection, path: str, body: object, *, last: bool
    ) -> HttpAnswer:
        access = self._access
        content = None if body is None else json.dumps(body).encode()
        method = "GET" if content is None else "POST"
        where = access.address.path + path
        deadline_ns = time.monotonic_ns() + access.answer_ns
        headers = _headers(access, has_content=content is not None, last=last)
        try:
            sent_ns = time.monotonic_ns()
            connection.request(method, where, content, headers)
            with connection.getresponse() as response:
                answer = _read_answer(response, sent_ns, deadline_ns)
                # What is left of a response would be read as the beginning of the next one.
                read_to_its_end = response.isclosed() or response.length == 0
                if read_to_its_end and not (last or response.will_close):
                    self._kept = connection
        finally:
            if self._kept is not connection:
                connection.close()
        return answer


def _headers(access: TargetAccess, *, has_content: bool, last: bool) -> dict[str, str]:
    headers = {"Accept": "*/*"}
    # Else the server would keep a connection that nobody uses again.
    if last:
        headers["Connection"] = "close"
    if access.api_key:
        headers["Authorization"] = f"Bearer {access.api_key}"
    if has_content:
        headers["Content-Type"] = "application/json"
    probe_words = dict.fromkeys(PLACEHOLDERS, "probe")
    return headers | fill_headers(access.headers, probe_words, os.environ)


def _speaks_tls(access: TargetAccess) -> bool:
    """Return whether a target with an http:// URL completes a TLS handshake."""
    # Its reaction to plain HTTP does not tell: some close the connection, some send a 400.
    if access.address.tls:
        return False
    try:
        with closing(_connect(access.over_tls())):
            return True
    except ServerUnreachable:
        return False


def _read_answer(response: http.client.HTTPResponse, sent_ns: int, deadline_ns: int) -> HttpAnswer:
    headers = {name.lower(): value for name, value in response.getheaders()}
    pieces = _read_body(response, deadline_ns)
    return HttpAnswer(
        status=response.status,
        content_type=response.headers.get_content_type(),
        body=b"".join(piece for _, piece in pieces),
        headers=headers,
        sent_ns=sent_ns,
        pieces=pieces,
    )


def _read_body(
    response: http.client.HTTPResponse, deadline_ns: int
) -> tuple[tuple[int, bytes], ...]:
    """Read the body, bounded in size, and in time even if it arrives byte by byte."""
    pieces: list[tuple[int, bytes]] = []
    size = 0
    # A socket's timeout begins anew with each byte: the deadline is for all of them.
    while size < MAX_BODY and (piece := response.read1(1 << 16)):
        arrived_ns = time.monotonic_ns()
        pieces.append((arrived_ns, piece))
        size += len(piece)
        if arrived_ns > deadline_ns:
            raise TimeoutError
    if response.length and size < MAX_BODY:  # shorter than its Content-Length
        body = b"".join(piece for _, piece in pieces)
        raise http.client.IncompleteRead(body, response.length)
    return tuple(pieces)


def _connect(access: TargetAccess) -> http.client.HTTPConnection:
    where = access.address
    timeout_s = access.connect_ns / SECOND
    connection: http.client.HTTPConnection
    if where.tls:
        context = access.tls_context()
        connection = http.client.HTTPSConnection(
            where.host, where.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(where.host, where.port, timeout=timeout_s)
    if access.via:  # in place of one that http.client chooses; Host and TLS keep the name
        to_one = partial(socket.create_connection, (access.via, where.port))
        vars(connection)["_create_connection"] = lambda _, *rest: to_one(*rest)
    try:
        connection.connect()
    except OSError as error:  # ssl.SSLError is one
        connection.close()
        raise _not_connected(access, error) from error
    connection.sock.settimeout(access.answer_ns / SECOND)
    return connection


def _not_connected(access: TargetAccess, error: OSError) -> ServerUnreachable:
    """Explain why there is no connection: name, network, listener or TLS."""
    where = access.address
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in NAME_MISMATCH:
        problem = (
            f"{where} presents a certificate for another name ({error.verify_message}): "
            "expected one for the host in the URL; try the name that the certificate carries"
        )
    elif isinstance(error, ssl.SSLCertVerificationError):
        problem = (
            f"{where} presents a certificate that is not trusted ({error.verify_message}): "
            "expected one signed by a known authority; try --ca-file FILE with its authority"
        )
    elif isinstance(error, ssl.SSLError) and error.reason in SPEAKS_PLAIN:
        problem = f"{where} does not speak TLS: expected HTTPS as the URL says; try http:// in it"
    elif isinstance(error, ssl.SSLError):
        problem = (
            f"{where} fails the TLS handshake ({error.reason or error}): expected HTTPS; "
            f"try `openssl s_client -connect {where.host}:{where.port}`"
        )
    elif isinstance(error, socket.gaierror):
        problem = (
            f"the host {where.host!r} has no address: expected a known name; try its IP address"
        )
    elif isinstance(error, ConnectionRefusedError):
        problem = (
            f"nothing listens at {where}: expected a vLLM server; start it with "
            f"`vllm serve MODEL --port {where.port}` or correct the port"
        )
    else:
        reason: object = error.strerror or error
        if isinstance(error, TimeoutError):
            reason = f"no answer in {say_ns(access.connect_ns)}"
        problem = (
            f"{where} cannot be reached ({reason}): expected a vLLM server; "
            f"try `curl {where}/v1/models` from this machine"
        )
    return ServerUnreachable(f"{problem}.")


def _no_answer(access: TargetAccess, error: Exception) -> ServerUnreachable:
    """Explain why a connection brought no whole HTTP response."""
    where = access.address
    if isinstance(error, TimeoutError):
        return ServerUnreachable(
            f"{where} takes the connection but does not finish an answer within "
            f"{say_ns(access.answer_ns)}: expected an HTTP response; try `curl {where}/health`."
        )
    if isinstance(error, ConnectionError | http.client.IncompleteRead):
        symptom = "it closes the connection early"
    else:
        symptom = one_line(f"it says {str(error)!r}", MAX_QUOTED_CHARS)
    return ServerUnreachable(
        f"{where} does not answer in HTTP, {symptom}: expected a vLLM server; {TRY_PRINTED_PORT}"
    )


def quoted(access: TargetAccess, text: str) -> str:
    """Return a server's words, which may repeat what it was sent, for a sentence."""
    return one_line(redact_text(text, access.secrets), MAX_QUOTED_CHARS)
