"""TLS without sockets: ciphertext in, plaintext out, through `ssl.MemoryBIO`.

The stamp of a decrypted event is that of the read that completed its record.
"""

from __future__ import annotations

import ssl
from typing import Final

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
        read, waiting, pending = self._tls.read, self._in, self._tls.pending
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
