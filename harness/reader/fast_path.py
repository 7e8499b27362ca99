"""Who takes the next read of a connection: Python, or C alone, past Python to the decoder.

`_drain.c` reads all sockets. What it reads of a connection it hands to Python, unless that has let
go of the connection: reads of nothing but whole events then become rows for the decoder at once.
Python needs to see how a response begins and how it ends, and nothing in between. So after each
read that it was handed it decides anew, in `FastPath.after_read`; C never changes the owner.

    IDLE      no response is under way. Bytes that come nevertheless are handed over, and end the
              connection.
    PYTHON    every read is handed over: the head, a body that is not chunked.
    LEARNING  events like the template are C's. Others are handed over: the events of a stream may
              differ in more than text and count, so Python looks at a few, for a better template.
    EVENTS    all events are C's, as rows if they are like the template and as bytes if not, but
              those that say how it ends ([DONE], an error, an object that is no part of an answer).
    CLOSED    the descriptor may be another connection's by now.

Over TLS every read is handed over, and the owner says who takes what Python made of it.

The lock. A thread in `_drain` reads too, where the loop is late, so cells are touched only under
the drain's lock. It is recursive: `after_read` runs inside a round, which holds it already. The
owner changes in `_process` only, so the cell that C looks at and `owner` never differ.
"""

from __future__ import annotations

from array import array
from contextlib import AbstractContextManager
from enum import Enum, IntEnum, auto
from typing import Final

from harness.reader import raw_batch as batch
from harness.wire.http import OK_STATUS, Response
from harness.wire.sse import DATA, EVENT_END, EVENT_STREAM, FRAMING
from harness.wire.token_template import ANY_NUMBER, RUNNING_COUNT, template_of


class Owner(IntEnum):
    """Who takes the next read; the numbers are those in `_lane.h`."""

    CLOSED = -1
    IDLE = 0
    PYTHON = 1
    LEARNING = 2
    EVENTS = 3


class Event(Enum):
    """What happens to a connection."""

    REQUEST_SENT = auto()
    NOT_EVENTS = auto()  # a read, after which anything may come
    TEMPLATE_KNOWN = auto()  # a read of whole events: there is a template, perhaps not the best
    LESSONS_OVER = auto()  # a read of whole events: Python has nothing to learn from more of them
    RESPONSE_ENDED = auto()  # complete, broken, timed out, cancelled
    SOCKET_CLOSED = auto()


_RESPONSE: Final = {
    Event.NOT_EVENTS: Owner.PYTHON,
    Event.TEMPLATE_KNOWN: Owner.LEARNING,
    Event.LESSONS_OVER: Owner.EVENTS,
    Event.RESPONSE_ENDED: Owner.IDLE,
    Event.SOCKET_CLOSED: Owner.CLOSED,  # the request is sent again on another connection
}
# lessons are never taken up again within a response
_AFTER_LESSONS: Final[dict[Event, Owner]] = {
    event: owner for event, owner in _RESPONSE.items() if event is not Event.TEMPLATE_KNOWN
}
TRANSITIONS: Final[dict[Owner, dict[Event, Owner]]] = {
    Owner.IDLE: {Event.REQUEST_SENT: Owner.PYTHON, Event.SOCKET_CLOSED: Owner.CLOSED},
    Owner.PYTHON: _RESPONSE,
    Owner.LEARNING: _RESPONSE,
    Owner.EVENTS: _AFTER_LESSONS,
    Owner.CLOSED: {},
}

LANE_CELLS: Final = 128
# the cells, in the order of `struct lane`
OWNER: Final = 0
STREAM: Final = 1
DRAINED: Final = 2  # when it was known to be empty, as `SocketStamps.drained_ns`
LAST: Final = 3  # the latest arrival, ns
ROUND: Final = 4  # in which it was read last
BODY: Final = 5  # the latest arrival, ns, of what C read past Python; -1: none
BYTES: Final = 6  # that C read past Python
BEFORE_SIZE: Final = 7  # bytes of the template before its text; 0: there is no template
REST_SIZE: Final = 8  # bytes of the template after its text
WAITING: Final = 9  # reads that Python has not seen yet
SEALED: Final = 10  # 1: over TLS
COUNTED: Final = 11  # the latest running count of tokens that C read past Python; -1: none
SHAPE: Final = 12  # from here to the end: the template
SHAPE_BYTES: Final = 8 * (LANE_CELLS - SHAPE)
MAX_LESSONS: Final = 8  # events of a stream that Python looks at: they may all be different

_CELLS: Final = (
    OWNER,
    STREAM,
    DRAINED,
    LAST,
    ROUND,
    BODY,
    BYTES,
    BEFORE_SIZE,
    REST_SIZE,
    WAITING,
    SEALED,
    COUNTED,
    SHAPE,
)
# As `_lane.h` has it: `backends` takes no extension that was compiled with anything else.
LAYOUT: Final = {
    "version": 5,
    "lane_cells": LANE_CELLS,
    "owners": (Owner.IDLE, Owner.PYTHON, Owner.LEARNING, Owner.EVENTS),
    "cells": _CELLS,
    "row": (batch.BYTES, batch.EXACT, batch.TOKEN, batch.ROW.size),
    "numbers": (ANY_NUMBER[0], RUNNING_COUNT[0]),
    **FRAMING,
}


class IllegalTransition(RuntimeError):  # noqa: N818 - says what it is
    """An event that cannot happen to a connection in this state: a defect of ours."""


class FastPath:
    """Of one connection: its owner, its lane's cells, and the arrival rules' memory in them.

    In C it takes the place of `stamping.SocketStamps`.
    """

    __slots__ = ("_lessons", "_lock", "cells", "owner")

    def __init__(
        self, lock: AbstractContextManager[object], now_ns: int, *, sealed: bool = False
    ) -> None:
        """A socket that was connected, with nothing to read. `sealed`: over TLS."""
        self._lock = lock
        self._lessons = 0
        self.owner = Owner.IDLE
        self.cells = array("q", bytes(8 * LANE_CELLS))
        self.cells[DRAINED] = self.cells[LAST] = now_ns
        self.cells[BODY] = self.cells[COUNTED] = -1
        self.cells[SEALED] = sealed

    def _process(self, event: Event) -> None:
        # under the lock
        if (owner := TRANSITIONS[self.owner].get(event)) is None:
            raise IllegalTransition(f"{event.name} while the owner is {self.owner.name}")
        self.owner = owner
        # C does not know CLOSED: whoever closes makes it forget the lane under the same lock.
        self.cells[OWNER] = max(owner, Owner.IDLE)

    def mark_request_sent(self, sent_ns: int) -> None:
        """A request is about to be sent on this idle connection: its answer comes after."""
        cells = self.cells
        with self._lock:
            self._process(Event.REQUEST_SENT)
            # No byte of the answer can have come before the request was sent: the first read's
            # bound.
            cells[DRAINED] = max(cells[DRAINED], sent_ns)
            cells[BEFORE_SIZE] = 0  # another stream, another template
            cells[BYTES] = 0
            cells[BODY] = cells[COUNTED] = -1
            self._lessons = MAX_LESSONS

    def after_read(self, stream: int, response: Response, body: bytes) -> None:
        """Python has read `body` of a response that goes on: decide who takes the next read."""
        event = Event.NOT_EVENTS
        with self._lock:
            if _events_follow(response, body):
                if self._lessons > 0:
                    self._lessons -= 1
                    self._learn(body)
                if not self._lessons:
                    event = Event.LESSONS_OVER
                elif self.cells[BEFORE_SIZE]:
                    event = Event.TEMPLATE_KNOWN
                self.cells[STREAM] = stream
            self._process(event)

    def _learn(self, body: bytes) -> None:
        """From the last event; perhaps a token like those to come."""
        last_event = body[body.rfind(DATA) + len(DATA) : -len(EVENT_END)]
        template = template_of(last_event)
        if template is None:
            return
        before, rest = template
        shape = before + rest
        if len(shape) > SHAPE_BYTES:
            return
        with memoryview(self.cells) as cells, cells.cast("B") as raw:
            raw[8 * SHAPE : 8 * SHAPE + len(shape)] = shape
        self.cells[BEFORE_SIZE] = len(before)
        self.cells[REST_SIZE] = len(rest)

    def progress(self) -> tuple[int, int]:
        """(bytes, latest arrival or -1) of what of this response C has read past Python."""
        with self._lock:
            return self.cells[BYTES], self.cells[BODY]

    def end_response(self) -> tuple[int, int, int]:
        """No more of it is read: `progress` for the last time, and the latest running count.

        The count is that of the tokens which C read past Python; -1: they had none.
        """
        with self._lock:
            self._process(Event.RESPONSE_ENDED)
            return self.cells[BYTES], self.cells[BODY], self.cells[COUNTED]

    def clamp_bounds(self, now_ns: int) -> None:
        """What the last stamps said is void: nothing has arrived after now."""
        with self._lock:
            for cell in (DRAINED, LAST):
                self.cells[cell] = min(self.cells[cell], now_ns)

    def close(self) -> None:
        """The descriptor is about to become another's."""
        with self._lock:
            self._process(Event.SOCKET_CLOSED)


def _events_follow(response: Response, body: bytes) -> bool:
    """Whether what comes next begins an event in a chunk of its own."""
    return (
        response.between
        and body.endswith(EVENT_END)
        and response.status == OK_STATUS
        and response.content_type == EVENT_STREAM
    )
