"""One kept-alive connection: connected and sent on by a user's greenlet, read by the reader."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gevent.socket

from harness.drive.stamping import Socket, ask_for_stamps
from harness.measure.records import Outcome
from harness.wire.tls import TlsClient

if TYPE_CHECKING:
    from harness.drive.lanes import Lane
    from harness.drive.stream import Stream
    from harness.wire.stamps import SocketStamps

READ_BYTES: Final = 65_536  # a read that returns less has drained the socket
_PENDING: Final = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)


class ConnectFailed(Exception):  # noqa: N818 - becomes an Outcome
    """No connection: the sentence says why, without the URL's secrets."""

    def __init__(self, sentence: str, outcome: Outcome = Outcome.connect) -> None:
        """`outcome` is `timeout` when it took too long."""
        super().__init__(sentence)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Place:
    """Where to connect. `tls` None: plain. `connect_s` is for name, TCP and TLS together."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = 10.0


class Connection:
    """A socket with stamps asked for, TLS done. `stream` is what it carries now."""

    def __init__(self, place: Place) -> None:
        """Blocks the calling greenlet until connected. Raises ConnectFailed."""
        self.place = place
        self.stream: Stream | None = None
        self.stamps: SocketStamps  # one of the two is set when it is polled: see `reading`
        self.lane: Lane | None = None
        self.used = False  # carried a response before: the server may have closed it since
        self.tls: TlsClient | None = None
        self._until = time.monotonic() + place.connect_s
        self.sock = self._connect()
        self.fd = self.sock.fileno()
        self.recvmsg = self.sock.recvmsg
        try:
            if place.tls is not None:
                self._handshake(place.tls)
        except BaseException:  # the greenlet may be killed while it waits
            self.close()
            raise

    def _connect(self) -> socket.socket:
        place, code = self.place, 0
        sock: socket.socket
        addresses = _addresses(place)
        for i, (family, kind, protocol, _, address) in enumerate(addresses):
            sock = Socket(family, kind, protocol)
            try:
                ask_for_stamps(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setblocking(False)
                code = sock.connect_ex(address)
                if code in _PENDING:
                    gevent.socket.wait_write(sock.fileno(), timeout=self._left_s())
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            except TimeoutError:
                sock.close()
                raise self._too_slow("connecting") from None
            except BaseException:
                sock.close()
                raise
            if code == 0:
                addresses[0], addresses[i] = addresses[i], addresses[0]  # next time straight there
                return sock
            sock.close()
        raise ConnectFailed(f"cannot connect to {place.host}:{place.port} ({os.strerror(code)})")

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.001)

    def _too_slow(self, phase: str) -> ConnectFailed:
        return ConnectFailed(
            f"{phase} took longer than {self.place.connect_s:g} s", Outcome.timeout
        )

    def _handshake(self, context: ssl.SSLContext) -> None:
        self.tls = tls = TlsClient(context, self.place.host)
        data = b""
        try:
            while not tls.handshake(data):
                self.send_all(tls.outgoing())
                gevent.socket.wait_read(self.fd, timeout=self._left_s())
                data = self.sock.recv(READ_BYTES)
                if not data:
                    raise ConnectFailed("the server closed the connection during the TLS handshake")
            self.send_all(tls.outgoing())
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailed(f"TLS: {error.verify_message}") from None
        except TimeoutError:
            raise self._too_slow("the TLS handshake") from None
        except OSError as error:  # ssl.SSLError too
            reason = getattr(error, "reason", None) or error.strerror or error
            raise ConnectFailed(f"TLS: {reason}") from None

    def send_all(self, data: bytes) -> None:
        """Send, waiting where the kernel's buffer is full. Raises OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                gevent.socket.wait_write(self.fd, timeout=self.place.connect_s)

    def asked(self, sent_ns: int) -> None:
        """A request is about to be sent: its answer comes after."""
        (self.lane or self.stamps).asked(sent_ns)

    def forget(self, now_ns: int) -> None:
        """What the last stamps said is void."""
        (self.lane or self.stamps).forget(now_ns)

    def close(self) -> None:
        """Harmless when repeated."""
        self.sock.close()


_resolved: dict[tuple[str, int], list[Any]] = {}


def _addresses(place: Place) -> list[Any]:
    """Addresses of the place, looked up once per process; the one that answered last is first."""
    key = place.host, place.port
    if key not in _resolved:
        try:
            with gevent.Timeout(place.connect_s, TimeoutError):
                _resolved[key] = gevent.socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise ConnectFailed(f"{place.host} has no address (no answer in time)") from None
        except OSError as error:
            raise ConnectFailed(f"{place.host} has no address ({error.strerror})") from None
    return _resolved[key]
