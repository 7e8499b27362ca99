"""The sentence for each way in which a target can fail the probe: found, expected, to try."""

from __future__ import annotations

import http.client
import socket
import ssl
from typing import TYPE_CHECKING, Final

from harness.errors import ServerUnreachable
from harness.units import say_ns

if TYPE_CHECKING:
    from harness.server.access import Access
    from harness.server.exchange import Answer

NAME_MISMATCH: Final = (62, 64)  # OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and _IP_ADDRESS_MISMATCH
SPEAKS_PLAIN: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
OUR_PORT: Final = "try the port that `vllm serve` printed."


def not_connected(access: Access, error: OSError) -> ServerUnreachable:
    """No connection stands: name, network, listener or TLS."""
    where = access.address
    if isinstance(error, ssl.SSLError):
        return ServerUnreachable(_tls(access, error))
    if isinstance(error, socket.gaierror):
        found = f"the host {where.host!r} has no address: expected a known name; try its IP address"
    elif isinstance(error, ConnectionRefusedError):
        found = (
            f"nothing listens at {where}: expected a vLLM server; start it with "
            f"`vllm serve MODEL --port {where.port}` or correct the port"
        )
    else:
        slow = isinstance(error, TimeoutError)
        reason = f"no answer in {say_ns(access.connect_ns)}" if slow else error.strerror or error
        found = (
            f"{where} cannot be reached ({reason}): expected a vLLM server; "
            f"try `curl {where}/v1/models` from this machine"
        )
    return ServerUnreachable(f"{found}.")


def _tls(access: Access, error: ssl.SSLError) -> str:
    where = access.address
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in NAME_MISMATCH:
            return (
                f"{where} presents a certificate for another name ({error.verify_message}): "
                "expected one for the host in the URL; try the name that the certificate carries."
            )
        return (
            f"{where} presents a certificate that is not trusted ({error.verify_message}): "
            "expected one signed by a known authority; try --ca-file FILE with its authority."
        )
    if error.reason in SPEAKS_PLAIN:
        return f"{where} does not speak TLS: expected HTTPS as the URL says; try http:// in it."
    return (
        f"{where} fails the TLS handshake ({error.reason or error}): expected HTTPS; "
        f"try `openssl s_client -connect {where.host}:{where.port}`."
    )


def no_answer(access: Access, error: Exception) -> ServerUnreachable:
    """The connection stood, but what came back was no whole HTTP response."""
    where = access.address
    if isinstance(error, TimeoutError):
        return ServerUnreachable(
            f"{where} takes the connection but does not finish an answer within "
            f"{say_ns(access.answer_ns)}: expected an HTTP response; try `curl {where}/health`."
        )
    cut = isinstance(error, ConnectionError | http.client.IncompleteRead)
    seen = "it closes the connection early" if cut else clean(f"it says {str(error)!r}")
    return ServerUnreachable(
        f"{where} does not answer in HTTP, {seen}: expected a vLLM server; {OUR_PORT}"
    )


def speaks_tls(access: Access) -> ServerUnreachable:
    """A TLS server behind an http:// URL."""
    return ServerUnreachable(
        f"{access.address} speaks TLS: expected plain HTTP as the URL says; try https:// in it."
    )


def refused(access: Access, path: str, answer: Answer) -> ServerUnreachable:
    """An HTTP status other than 200."""
    where, status = f"{access.address}{path}", answer.status
    if status in (401, 403):
        key = (
            f"the key in {access.key_source} was refused"
            if access.key_source
            else "no key was sent: neither VLLM_API_KEY nor OPENAI_API_KEY is set"
        )
        return ServerUnreachable(
            f"{where} answers {status} and {key}: expected the key that the server was started "
            "with; try `export VLLM_API_KEY=...`."
        )
    if status == 404:  # noqa: PLR2004 - HTTP
        return ServerUnreachable(
            f"{where} answers 404: expected vLLM's API; {OUR_PORT[:-1]}, or another --api."
        )
    if status == 503:  # noqa: PLR2004 - HTTP
        return ServerUnreachable(
            f"{where} answers 503: expected a server that is ready; try again when "
            f"`curl -f {access.address}/health` succeeds."
        )
    if 300 <= status < 400 and "location" in answer.headers:  # noqa: PLR2004 - HTTP
        return ServerUnreachable(
            f"{where} answers {status} and redirects to {clean(answer.headers['location'])}: "
            "expected the server itself; try the URL that it redirects to, without the path."
        )
    if status == 429:  # noqa: PLR2004 - HTTP
        later = clean(answer.headers.get("retry-after", ""))
        wait = f"(Retry-After: {later})" if later else "(no Retry-After)"
        return ServerUnreachable(
            f"{where} answers 429 {wait}: expected a server that takes requests; try again "
            f"{f'after {later} s' if later.isdecimal() else 'later'}, or without its rate limit."
        )
    words = clean(answer.body.decode(errors="replace"))
    return ServerUnreachable(
        f"{where} answers {status} ({words}): expected 200; try the same request with curl."
    )


def clean(text: str, most: int = 200) -> str:
    """A server's own words on one printable line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= most else line[:most] + "..."
