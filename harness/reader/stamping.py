"""Kernel receive stamps: switched on, seen to come, and turned into an interval for each read.

Stamping is on for the whole host while any socket asks for it, and begins about a millisecond after
the first one did: one socket stays open for the life of the process, and a self-test over the
loopback waits for a read that carries the time of arrival.

Linux stamps every arriving segment (SO_TIMESTAMPNS). `recvmsg` returns *one* stamp: that of the
last segment coalesced into the queued data that it read from. Hence, for what a read returned:

- If it returned fewer bytes than requested, it drained the socket and nothing newer was queued. Its
  last byte came with the stamped segment, so an event that ends there arrived exactly at the stamp.
- Any other event in it arrived in (bound, stamp], where `bound` is the later of two instants: the
  last poll that did not report this socket (earlier data would have been reported), and the last
  read that drained it (earlier data was taken).
- If the stamp is older than the previous drain, the data was not readable yet at that time (packet
  loss, or another processor between stamp and queue): the event lies between stamp and read.
- Without a stamp: the time of the read, and the same bound.

Arrival times of one socket never run backwards: a running maximum is kept. A stamp from the future,
or one taken while the clock was being set, is detected later: `Poller` then calls `clamp_bounds`.
"""

from __future__ import annotations

import socket
import struct
import time
from contextlib import suppress
from typing import Final

from gevent import monkey

SO_TIMESTAMPNS: Final = 35  # 64-bit Linux; Python has no name for it
NO_STAMP: Final = -1

Arrival = tuple[int, int, bool]
"""(at_ns, bound_ns, exact) of one read.

Its last byte came at `at_ns` if `exact`, else in (bound_ns, at_ns]; so did the bytes before it.
"""


class SocketStamps:
    """The state of these rules for one socket. All times are on the records' clock."""

    __slots__ = ("_last_ns", "_round", "drained_ns")

    def __init__(self, now_ns: int, round_number: int) -> None:
        """`round_number`: the round in which the socket was connected, with nothing to read."""
        self.drained_ns = now_ns
        self._last_ns = now_ns
        self._round = round_number

    def mark_request_sent(self, sent_ns: int) -> None:
        self.drained_ns = max(self.drained_ns, sent_ns)

    def clamp_bounds(self, now_ns: int) -> None:
        """Discard what suspect stamps implied: nothing has arrived after now."""
        self.drained_ns = min(self.drained_ns, now_ns)
        self._last_ns = min(self._last_ns, now_ns)

    def arrival(  # noqa: PLR0917 - called for every token: keywords cost
        self,
        stamp_ns: int,
        polled_ns: int,
        read_ns: int,
        drained: bool,
        round_number: int,
        previous_poll_ns: int,
    ) -> Arrival:
        """Return the arrival interval of one read.

        `round_number` counts polls; `polled_ns` and `previous_poll_ns` are the clock just before
        this round's poll and the previous one. `read_ns`, the clock just after the read, is used
        only if the stamp is older than `drained_ns` and cannot be right.
        """
        before = bound = self.drained_ns
        # The previous round polled this socket too and did not report it; else it was read.
        if round_number - self._round > 1 and previous_poll_ns > bound:
            bound = previous_poll_ns
        self._round = round_number
        if drained:
            # The time of the poll, not of the read, which came later: a bound on the safe side.
            self.drained_ns = polled_ns
        if stamp_ns >= before:
            exact = drained
            at = stamp_ns
        else:
            exact = False
            at = read_ns
            if stamp_ns != NO_STAMP:
                bound = stamp_ns
        # TCP delivers in order: later bytes cannot have arrived before earlier ones.
        if at < self._last_ns:
            bound = min(bound, at)
            at = self._last_ns
            exact = False
        self._last_ns = at
        return at, min(bound, at), exact


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
        self._keep = Socket()
        self.source = "read"
        if ask_for_stamps(self._keep) and self._self_test():
            self.source = "kernel"

    def _self_test(self) -> bool:
        """A segment that waits before it is read must be stamped with its arrival, not the read."""
        with suppress(OSError), Socket() as listener, Socket() as receiver:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            ask_for_stamps(receiver)
            receiver.connect(listener.getsockname())
            sender, _ = listener.accept()
            with sender:
                until = time.monotonic() + SELF_TEST_S
                while time.monotonic() < until:
                    if self._arrival_stamped(receiver, sender):
                        return True
        return False

    @staticmethod
    def _arrival_stamped(receiver: socket.socket, sender: socket.socket) -> bool:
        before_ns = time.time_ns()
        sender.send(b"x")
        after_ns = time.time_ns()
        # Long enough that a stamp of the read, not of the arrival, would come after `after_ns`.
        time.sleep(0.002)
        _, ancillary, _, _ = receiver.recvmsg(1, ANCILLARY)
        return before_ns <= stamp_of(ancillary) <= after_ns

    def close(self) -> None:
        self._keep.close()
