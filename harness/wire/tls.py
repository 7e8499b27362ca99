"""TLS without sockets: ciphertext in, plaintext out, through `ssl.MemoryBIO`.

The stamp of a decrypted event is that of the read that completed its record.
"""

from __future__ import annotations

import ssl
from typing import Final

_RECORD: Final = 1 << 14  # the most plaintext that one record holds


class TlsClient:
    """One connection's TLS. Whatever `outgoing` returns must be sent.

    `whole` says of the latest `decrypt` whether its bytes ended with a record.
    """

    __slots__ = ("_in", "_out", "_tls", "whole")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        """`host` is the name that the certificate must carry."""
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)
        self.whole = True

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
        pieces: list[bytes] = []
        read, waiting, pending = self._tls.read, self._in, self._tls.pending
        self.whole = True
        try:
            # asking once more than there are records would cost an exception per token
            while waiting.pending or pending():
                piece = read(_RECORD)
                if not piece:
                    break
                pieces.append(piece)
        except ssl.SSLWantReadError:
            self.whole = False  # half a record waits, or it was one without plaintext
        except ssl.SSLZeroReturnError:
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def outgoing(self) -> bytes:
        """Bytes that wait to be sent."""
        return self._out.read()
