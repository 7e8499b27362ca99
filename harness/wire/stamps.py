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

Stamps of one socket never run backwards: a running maximum is kept. A stamp of the future, or one
taken while the clock was set, is found out after the fact: see `Reader`, which calls `forget`.
"""

from __future__ import annotations

from typing import Final

SO_TIMESTAMPNS: Final = 35  # 64-bit Linux; Python has no name for it
NO_STAMP: Final = -1

Arrival = tuple[int, int, bool]
"""(at_ns, bound_ns, exact) of one read.

Its last byte came at `at_ns` if `exact`, else in (bound_ns, at_ns]; so did the bytes before it.
"""


class SocketStamps:
    """The rules' memory for one socket. All times on the records' clock."""

    __slots__ = ("_last_ns", "_round", "drained_ns")

    def __init__(self, now_ns: int, round_number: int) -> None:
        """A socket that was connected, with nothing to read, in this round."""
        self.drained_ns = now_ns
        self._last_ns = now_ns
        self._round = round_number

    def asked(self, sent_ns: int) -> None:
        """A request is about to be sent on this idle connection: its answer comes after."""
        self.drained_ns = max(self.drained_ns, sent_ns)

    def forget(self, now_ns: int) -> None:
        """What the last stamps said is void: nothing has arrived after now."""
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
        """Account one read.

        `round_number` counts polls; `polled_ns` and `previous_poll_ns` are the clock just before
        this round's poll and the poll before it; `read_ns`, the clock just after the read, is
        looked at only where the stamp cannot be believed: it is older than `drained_ns`.
        """
        before = bound = self.drained_ns
        # the round before polled everything and did not report this socket, else we had read it
        if round_number - self._round > 1 and previous_poll_ns > bound:
            bound = previous_poll_ns
        self._round = round_number
        if drained:
            self.drained_ns = polled_ns  # the read came later: a bound on the safe side
        if stamp_ns >= before:
            exact, at = drained, stamp_ns
        else:
            exact, at = False, read_ns
            if stamp_ns != NO_STAMP:
                bound = stamp_ns
        if at < self._last_ns:  # known already: what came later cannot have arrived before
            bound, at, exact = min(bound, at), self._last_ns, False
        self._last_ns = at
        return at, min(bound, at), exact
