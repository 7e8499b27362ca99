"""TLS through memory, both ends in this process."""

from __future__ import annotations

import contextlib
import ssl

import pytest
import trustme

from harness.wire.http import TlsClient


class Server:
    """The other end."""

    def __init__(self, name: str, authority: trustme.CA) -> None:
        """With a certificate for `name`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        self.inward = ssl.MemoryBIO()
        self.outward = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.inward, self.outward, server_side=True)

    def handshake(self, data: bytes) -> bytes:
        """Its answer."""
        self.inward.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outward.read()

    def say(self, data: bytes) -> bytes:
        """One record."""
        self.tls.write(data)
        return self.outward.read()


def connect(name: str) -> tuple[TlsClient, Server]:
    """Both ends after the handshake; the server's certificate is for `name`."""
    authority = trustme.CA()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    client = TlsClient(context, "localhost")
    server = Server(name, authority)
    answer = b""
    while not client.handshake(answer):
        answer = server.handshake(client.outgoing())
    client.decrypt(server.handshake(client.outgoing()))  # session tickets
    return client, server


def test_records_cut_anywhere() -> None:
    """Plaintext comes out once per record; `whole` says whether the bytes ended with one."""
    client, server = connect("localhost")
    first = server.say(b"a" * 20)
    second = server.say(b"b" * 20)
    both = first + second
    got = []
    for i, j in ((0, 7), (7, len(first)), (len(first), len(both) - 1), (len(both) - 1, len(both))):
        got.append((client.decrypt(both[i:j]), client.whole))
    assert got == [(b"", False), (b"a" * 20, True), (b"", False), (b"b" * 20, True)]


def test_two_records_and_a_piece_in_one_read() -> None:
    """Both are there, and the read did not end with them."""
    client, server = connect("localhost")
    data = server.say(b"a") + server.say(b"b") + server.say(b"c")
    assert client.decrypt(data[:-1]) == b"ab"
    assert client.whole is False
    assert client.decrypt(data[-1:]) == b"c"
    assert client.whole is True


def test_what_the_client_says_arrives() -> None:
    """Encrypted on the way."""
    client, server = connect("localhost")
    secret = client.encrypt(b"hello")
    assert b"hello" not in secret
    server.inward.write(secret)
    assert server.tls.read(99) == b"hello"


def test_a_certificate_for_another_name_is_refused() -> None:
    """Verification is on by default."""
    with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
        connect("example.org")
