"""TLS without sockets: ciphertext in, plaintext out, through `ssl.MemoryBIO`.

The stamp of a decrypted event is that of the read that completed its record.
"""

from __future__ import annotations

import ssl
from typing import Final

_MOST: Final = 1 << 18


def client_context(ca_file: str = "", *, insecure: bool = False) -> ssl.SSLContext:
    """Verification is on unless `insecure`; `ca_file` replaces the system's authorities."""
    context = ssl.create_default_context(cafile=ca_file or None)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class TlsClient:
    """One connection's TLS. Whatever `outgoing` returns must be sent."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """`host` is the name that the certificate must carry."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    def handshake(self, data: bytes) -> bool:
        """Take bytes of the handshake; True when it is done. Raises ssl.SSLError."""
        if data:
            self._in.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes) -> bytes:
        """What to send for `data`."""
        self._tls.write(data)
        return self.outgoing()

    def decrypt(self, data: bytes) -> bytes:
        """Plaintext of the records that `data` completed. Raises ssl.SSLError."""
        self._in.write(data)
        pieces = []
        try:
            while piece := self._tls.read(_MOST):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(pieces)

    def outgoing(self) -> bytes:
        """Bytes that wait to be sent."""
        return self._out.read()
