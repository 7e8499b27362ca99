"""When did an event arrive? From reads of a socket to an interval for each event.

Linux stamps every arriving segment (SO_TIMESTAMPNS). `recvmsg` returns *one* stamp: that of the
last segment coalesced into the queued data that it read from. Hence, for what a read returned:

- it returned less than asked for: it drained the socket, and nothing newer was queued. Its last
  byte came with the stamped segment, so an event that ends there arrived exactly at the stamp;
- any other event in it came somewhere in (bound, stamp], where `bound` is the later of the last
  poll that did not report this socket (all that had come before would have been reported) and the
  last read that drained it (all that had come before was taken);
- a stamp older than the previous drain cannot be when the data could first be read (loss, another
  processor between stamp and queue): the event lies between the stamp and the read itself;
- no stamp: the time of the read, and the same bound.

Stamps of one socket never run backwards: a running maximum is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SO_TIMESTAMPNS: Final = 35  # 64-bit Linux; Python has no name for it
NO_STAMP: Final = -1


@dataclass(frozen=True, slots=True)
class Arrival:
    """Of one read: when its last byte came, (not_before_ns, at_ns], and whether that is exact.

    `bound_ns` holds for the events before the last byte: they lie in (bound_ns, at_ns].
    """

    at_ns: int
    bound_ns: int
    exact: bool


class SocketStamps:
    """The rules' memory for one socket. All times on the records' clock."""

    __slots__ = ("_drained_ns", "_last_ns", "_round")

    def __init__(self, now_ns: int, round_number: int) -> None:
        """A socket that was connected, with nothing to read, in this round."""
        self._drained_ns = now_ns
        self._last_ns = now_ns
        self._round = round_number

    def arrival(
        self,
        stamp_ns: int,
        read_ns: int,
        *,
        drained: bool,
        round_number: int,
        previous_poll_ns: int,
    ) -> Arrival:
        """Account one read.

        `read_ns` is the clock just before the reads of this round, `round_number` counts polls, and
        `previous_poll_ns` is the clock just before the poll of the round before.
        """
        skipped = round_number - self._round > 1  # the poll before did not report this socket
        bound = max(self._drained_ns, previous_poll_ns) if skipped else self._drained_ns
        before = self._drained_ns
        self._round = round_number
        if drained:
            self._drained_ns = read_ns
        if stamp_ns == NO_STAMP:
            return self._at(max(read_ns, bound), bound, exact=False)
        if stamp_ns < before:
            return self._at(max(read_ns, stamp_ns), min(stamp_ns, bound), exact=False)
        return self._at(stamp_ns, min(bound, stamp_ns), exact=drained)

    def _at(self, at_ns: int, bound_ns: int, *, exact: bool) -> Arrival:
        self._last_ns = max(at_ns, self._last_ns)
        return Arrival(self._last_ns, bound_ns, exact)
