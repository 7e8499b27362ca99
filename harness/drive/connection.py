"""One kept-alive connection: connected and sent on by a user's greenlet, read by the reader."""

from __future__ import annotations

import errno
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gevent.socket
from gevent.event import Event

from harness.drive.stamping import Socket, ask_for_stamps
from harness.wire.http import Ending
from harness.wire.tls import TlsClient

if TYPE_CHECKING:
    from harness.measure.records import Outcome
    from harness.wire.stamps import SocketStamps

READ_BYTES: Final = 65_536  # a read that returns less has drained the socket


class ConnectFailed(Exception):  # noqa: N818 - becomes Outcome.connect
    """No connection: the sentence says why, without the URL's secrets."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where to connect. `tls` None: plain. Times in seconds."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    connect_s: float = 10.0


@dataclass(slots=True, eq=False)
class Stream:
    """One exchange under way on a connection."""

    number: int
    sent_ns: int = 0
    first_byte_ns: int = -1
    last_read_ns: int = 0
    n_bytes: int = 0
    tail: bytes = b""  # the end of what came, to see [DONE]
    ending: Ending = field(default_factory=Ending)
    stale: bool = False  # the kept connection had been closed: send again
    over: Event = field(default_factory=Event)
    outcome: Outcome | None = None  # None when the response is complete
    error: str = ""
    done_ns: int = 0


class Connection:
    """A socket with stamps asked for, TLS done. `stream` is what it carries now."""

    def __init__(self, place: Place) -> None:
        """Blocks the calling greenlet until connected. Raises ConnectFailed."""
        self.place = place
        self.stream: Stream | None = None
        self.stamps: SocketStamps | None = None
        self.used = False  # carried a response before: the server may have closed it since
        self.tls: TlsClient | None = None
        self.sock = self._connect()
        self.fd = self.sock.fileno()
        self.recvmsg = self.sock.recvmsg
        try:
            if place.tls is not None:
                self._handshake(place.tls)
        except ConnectFailed:
            self.close()
            raise

    def _connect(self) -> socket.socket:
        problem = "no address"
        for family, kind, protocol, _, address in _addresses(self.place):
            sock: socket.socket = Socket(family, kind, protocol)
            ask_for_stamps(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code in (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK):
                try:
                    gevent.socket.wait_write(sock.fileno(), timeout=self.place.connect_s)
                    code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                except TimeoutError:
                    code = errno.ETIMEDOUT
                except BaseException:
                    sock.close()
                    raise
            if code == 0:
                return sock
            sock.close()
            problem = errno.errorcode.get(code, str(code))
        raise ConnectFailed(f"cannot connect to {self.place.host}:{self.place.port} ({problem})")

    def _handshake(self, context: ssl.SSLContext) -> None:
        self.tls = TlsClient(context, self.place.host)
        data = b""
        try:
            while not self.tls.handshake(data):
                self.send_all(self.tls.outgoing())
                gevent.socket.wait_read(self.fd, timeout=self.place.connect_s)
                data = self.sock.recv(READ_BYTES)
                if not data:
                    raise ConnectFailed("the server closed the connection during the TLS handshake")
            self.send_all(self.tls.outgoing())
        except ssl.SSLCertVerificationError as error:
            raise ConnectFailed(f"TLS: {error.verify_message}") from None
        except (OSError, TimeoutError) as error:
            raise ConnectFailed(f"TLS: {getattr(error, 'reason', None) or error}") from None

    def send_all(self, data: bytes) -> None:
        """Send, waiting where the kernel's buffer is full. Raises OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                gevent.socket.wait_write(self.fd, timeout=self.place.connect_s)

    def close(self) -> None:
        """Harmless when repeated."""
        self.sock.close()


_resolved: dict[tuple[str, int], list[Any]] = {}


def _addresses(place: Place) -> list[Any]:
    """Addresses of the place, looked up once per process."""
    key = place.host, place.port
    if key not in _resolved:
        try:
            _resolved[key] = gevent.socket.getaddrinfo(*key, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectFailed(f"{place.host} has no address ({error})") from None
    return _resolved[key]
