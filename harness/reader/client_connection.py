"""One kept-alive connection: connected and sent on by a user's greenlet, read by the reader."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import ssl
import sys
import termios
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gevent.socket
from gevent.lock import BoundedSemaphore

from harness.core.timeouts import Timeouts
from harness.reader.stamping import Socket, SocketStamps, ask_for_stamps
from harness.records.request_record import Outcome
from harness.server.address import LOOPBACK_SOURCES, group_by_family
from harness.wire.http import TlsClient

if TYPE_CHECKING:
    from harness.reader.fast_path import FastPath
    from harness.reader.open_stream import Stream

READ_BYTES: Final = 65_536  # a read that returns less has drained the socket
# Linux's IP_BIND_ADDRESS_NO_PORT, which Python has no name for: `bind` chooses the address alone,
# and `connect` the port, among those that are free towards this server.
_WITHOUT_PORT: Final = 24
_PENDING: Final = (errno.EINPROGRESS, errno.EALREADY, errno.EWOULDBLOCK)


class ConnectFailed(Exception):  # noqa: N818 - becomes an Outcome
    """No connection: the sentence says why, without the URL's secrets."""

    def __init__(self, sentence: str, outcome: Outcome = Outcome.connect) -> None:
        super().__init__(sentence)
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Place:
    """Where to connect, and how long that and each request may take. `tls` None: plain."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)


class Addresses:
    """A place's addresses, looked up once; connections take them in turn.

    A name may stand for many replicas (a headless service): each gets as many connections as the
    others. Addresses of another family (IPv6 beside IPv4) are other ways to the same replicas, so
    they are tried only where all of the first family fail; the family that answered comes first.
    """

    def __init__(self, place: Place, first: int = 0) -> None:
        """`first`: where to begin, so that processes with few connections do not all meet."""
        self.place = place
        self.used: set[str] = set()  # what connections were made to
        self.source = ""  # our own address; "": the kernel's choice
        self._n_sources = 1
        self._turn = first
        self._by_family: list[list[Any]] = []
        self._looking = BoundedSemaphore()  # users that start at once share one lookup

    def in_turn(self) -> list[Any]:
        """As of `getaddrinfo`, best first. Blocks this greenlet once. Raises ConnectFailed."""
        place = self.place
        try:
            # Around the lock, too: the wait for another user's look-up counts.
            with gevent.Timeout(place.timeouts.connect_s, TimeoutError), self._looking:
                if not self._by_family:
                    # gevent's, in a thread: the system's own would hold up every greenlet
                    infos = gevent.socket.getaddrinfo(
                        place.host, place.port, type=socket.SOCK_STREAM
                    )
                    self._by_family = group_by_family(infos)
        except TimeoutError:
            raise ConnectFailed(f"{place.host} has no address (no answer in time)") from None
        except OSError as error:
            raise ConnectFailed(f"{place.host} has no address ({error.strerror})") from None
        turn = self._turn
        self._turn += 1
        rotated = []
        for infos in self._by_family:
            start = turn % len(infos)
            rotated += infos[start:]
            rotated += infos[:start]
        return rotated

    def next_source(self, info: Any) -> bool:
        """All ports of the source are in use: take another; False where there is none.

        Every address of 127.0.0.0/8 is this machine's, and has its own ports towards the same
        server.
        """
        *_, address = info
        if not address[0].startswith("127.") or self._n_sources == LOOPBACK_SOURCES:
            return False
        self._n_sources += 1
        self.source = f"127.0.0.{self._n_sources}"
        return True

    def answered(self, info: Any) -> None:
        """A connection was made to it: its family comes first from now on."""
        family, *_, address = info
        self.used.add(address[0])
        self._by_family.sort(key=lambda infos: infos[0][0] != family)


class Connection:
    """A socket with stamps asked for, TLS done. `stream` is what it carries now."""

    def __init__(self, addresses: Addresses) -> None:
        """Blocks the calling greenlet until connected. Raises ConnectFailed."""
        self.place = place = addresses.place
        self.stream: Stream | None = None
        self.stamps: SocketStamps | FastPath  # set when it is polled: see `backends`
        self.fast_path: FastPath | None = None  # the same, if it is one
        self.queued = 0  # bytes of the latest request that the kernel took
        self.used = False  # carried a response before: the server may have closed it since
        self.tls: TlsClient | None = None
        # One deadline for the look-up, for every address that is tried, and for the handshake.
        self._until = time.monotonic() + place.timeouts.connect_s
        self.sock = self._connect(addresses)
        self.fd = self.sock.fileno()
        self.recvmsg = self.sock.recvmsg
        try:
            if place.tls is not None:
                self._handshake(place.tls)
        except BaseException:  # the greenlet may be killed while it waits
            self.close()
            raise

    def _connect(self, addresses: Addresses) -> socket.socket:
        """The first address that answers. Raises ConnectFailed for the last one that does not."""
        place = self.place
        code = 0
        infos = addresses.in_turn()
        for i, info in enumerate(infos):
            # one that never answers leaves the next ones their share of the time
            n_left = len(infos) - i
            sock, code = self._attempt(info, addresses.source, n_left)
            while code == errno.EADDRNOTAVAIL and addresses.next_source(info):
                sock, code = self._attempt(info, addresses.source, n_left)
            if code == 0:
                addresses.answered(info)
                return sock
        if code == errno.ETIMEDOUT:
            raise self._too_slow("connecting")
        raise ConnectFailed(f"cannot connect to {place.host}:{place.port} ({os.strerror(code)})")

    def _attempt(self, info: Any, source: str, n_left: int) -> tuple[socket.socket, int]:
        """The socket, closed unless the error's number is 0, within an `n_left`th of the time."""
        family, kind, protocol, _, address = info
        sock: socket.socket = Socket(family, kind, protocol)
        try:
            ask_for_stamps(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            if source and family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_IP, _WITHOUT_PORT, 1)
                sock.bind((source, 0))
            code = sock.connect_ex(address)
            if code in _PENDING:
                wait_s = self._left_s() / n_left
                gevent.socket.wait_write(sock.fileno(), timeout=wait_s)
                # It is writable when it is connected and when that failed: this says which.
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        except TimeoutError:
            code = errno.ETIMEDOUT
        except BaseException:
            sock.close()
            raise
        if code:
            sock.close()
        return sock, code

    def _left_s(self) -> float:
        return max(self._until - time.monotonic(), 0.001)

    def _too_slow(self, phase: str) -> ConnectFailed:
        return ConnectFailed(
            f"{phase} took longer than {self.place.timeouts.connect_s:g} s", Outcome.timeout
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
            # Ours is over before its last message is sent.
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
        self.queued = 0
        while view:
            try:
                n_bytes = self.sock.send(view)
            except BlockingIOError:
                gevent.socket.wait_write(self.fd, timeout=self.place.timeouts.connect_s)
            else:
                self.queued += n_bytes
                view = view[n_bytes:]

    def is_untouched(self) -> bool:
        """Whether the server's kernel has acknowledged nothing of what `send_all` sent last.

        Then nobody can have seen it: the server had closed this connection before. What was
        acknowledged may have been read, and a server that closes after that has dropped it.
        """
        answer = bytes(4)
        try:
            answer = fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, answer)
        except (OSError, ValueError):  # closed meanwhile
            return False
        n_waiting = int.from_bytes(answer, sys.byteorder)
        return n_waiting >= self.queued

    def is_quiet(self) -> bool:
        """Whether nothing has come since the latest answer: neither its end nor unasked bytes."""
        try:
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def close(self) -> None:
        self.sock.close()
