"""Switch the kernel's receive stamps on, and see that they come.

Stamping is on for the whole host while any socket asks for it, and begins about a millisecond after
the first one did: one socket stays open for the life of the process, and a self-test over the
loopback waits for a read that carries the time of arrival.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Final

from gevent import monkey

from harness.wire.stamps import NO_STAMP, SO_TIMESTAMPNS

# Locust patches the socket module; the reader wants the kernel's own
Socket: Final = monkey.get_original("socket", "socket")
_TIMESPEC: Final = struct.Struct("qq")
_unpack: Final = _TIMESPEC.unpack
_SIZE: Final = _TIMESPEC.size
_SOL_SOCKET: Final = int(socket.SOL_SOCKET)  # the enum is slow to compare, and this is a hot path
ANCILLARY: Final = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0
SELF_TEST_S: Final = 0.5


def ask_for_stamps(sock: socket.socket) -> bool:
    """Before connect(). False where the system has no such option."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """CLOCK_REALTIME in ns of a recvmsg's ancillary data; NO_STAMP without one."""
    for level, kind, data in ancillary:
        if kind == SO_TIMESTAMPNS and level == _SOL_SOCKET and len(data) == _SIZE:
            seconds, ns = _unpack(data)
            return seconds * 1_000_000_000 + ns  # type: ignore[no-any-return]
    return NO_STAMP


class Stamping:
    """`source` is "kernel" when the self-test saw stamps, else "read". Keep it open."""

    def __init__(self) -> None:
        self._keep = Socket(socket.AF_INET, socket.SOCK_STREAM)
        self.source = "read"
        if ask_for_stamps(self._keep) and self._self_test():
            self.source = "kernel"

    def _self_test(self) -> bool:
        """A segment that waits before it is read must be stamped with its arrival, not the read."""
        listener = Socket(socket.AF_INET, socket.SOCK_STREAM)
        one = Socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            ask_for_stamps(one)
            one.connect(listener.getsockname())
            other, _ = listener.accept()
            with other:
                until = time.monotonic() + SELF_TEST_S
                while time.monotonic() < until:
                    if self._arrival_stamped(one, other):
                        return True
        except OSError:
            return False
        finally:
            one.close()
            listener.close()
        return False

    @staticmethod
    def _arrival_stamped(one: socket.socket, other: socket.socket) -> bool:
        before = time.time_ns()
        other.send(b"x")
        after = time.time_ns()
        time.sleep(0.002)
        _, ancillary, _, _ = one.recvmsg(1, ANCILLARY)
        return before <= stamp_of(ancillary) <= after

    def close(self) -> None:
        self._keep.close()
