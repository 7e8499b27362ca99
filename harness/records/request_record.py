"""RequestRecord: what happened to one request; the type that all layers above share.

Times are integer nanoseconds since the Unix epoch on a clock that never steps: each worker takes
(CLOCK_REALTIME, CLOCK_MONOTONIC) once at its start and counts on the monotonic one from there.
In simulated time they count from zero. Durations are differences of these.
"""

from __future__ import annotations  # array[int] is not subscriptable at run time before 3.12

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
else:
    import dataclasses

    def dataclass(**how: bool) -> Callable[[type], Any]:
        """Frozen for mypy only: at run time it would take 9 us to make a record instead of 1.5."""
        return dataclasses.dataclass(**how | {"frozen": False})


ARRAYS: Final = ("at_ns", "not_before_ns", "tokens")  # of a record: one entry for each event


class Outcome(StrEnum):
    """How a request ended.

    All but `ok`, `cancelled` and `open` are failures: +infinity in their step's latencies.
    """

    ok = "ok"
    dropped = "dropped"  # never sent: too many were in flight when it was due (open loop)
    connect = "connect"  # refused, unreachable, TLS failure
    timeout = "timeout"  # a phase took longer than allowed; `error` names the phase
    status = "status"  # an HTTP status other than 200, or an error object inside the stream
    protocol = "protocol"  # bytes that are not HTTP, SSE or the API's JSON
    truncated = "truncated"  # the stream ended without its terminator
    # the harness stopped waiting (Ctrl-C, end of the drain or of the load's process): no failure of
    # the server's; nothing but its age is known, and results call it `open`
    cancelled = "cancelled"
    open = "open"  # not ended yet: only in live views and in tables cut at a horizon


def ns_array(values: list[int] | None = None) -> array[int]:
    """Signed 64-bit integers, flat: eight bytes a token, no objects."""
    return array("q", values or [])


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, from its schedule to its last byte.

    The three arrays have one entry for each *token-bearing* event (see docs/metrics.md): event i
    arrived in (not_before_ns[i], at_ns[i]]; equal ends mean an exact stamp. `tokens[i]` is the
    number of tokens it carried (one where the server does not say).

    With outcome `open` a record is a *part*: its arrays hold only the events since the part before,
    so that a live view costs one pass over each token. Parts of one request share (worker, number).
    """

    worker: int
    number: int  # counts from 0 in each worker without gaps, so that lost records can be counted
    user: int  # its number in the run; open loop: the request's place in the level's schedule
    sent_ns: int  # the first byte went to the kernel on an open connection
    done_ns: int  # the last byte, or the instant of failure; for a part: until when it is known
    outcome: Outcome
    scheduled_ns: int = -1  # -1: closed loop, no schedule of its own
    connect_ns: int = 0  # duration of connect and TLS before `sent_ns`; 0: connection reused
    head_ns: int = -1  # first byte of the response; -1: none
    first_event_ns: int = -1  # first SSE event, a role-only one included; -1: none
    status: int = 0  # HTTP status; 0: none seen
    error: str = ""  # for a person; holds no prompt and no key
    finish_reason: str = ""
    planned_tokens: int = 0  # output tokens asked for
    prompt_tokens: int = -1  # as the server counted them; -1: it did not say
    output_tokens: int = -1  # as the server counted them; -1: it did not say
    cached_tokens: int = -1  # prompt tokens served from the prefix cache; -1: it did not say
    answer_index: int = -1  # first event that is not reasoning (TTFOT); -1: none
    # choices without a token: the role, an empty text, the finish; -1: the record does not say
    events_before: int = -1  # those before the first token
    silent_events: int = -1  # those after it
    last_silent_ns: int = -1  # when the last of either came; -1: none
    session: int = -1  # of its user, from 0; -1: no session
    turn: int = -1  # of the session, from 0; -1: no session
    think_ns: int = -1  # planned until the same user's next request; -1: none
    # planned tokens after what the session's turn before had sent; -1: it begins like no other
    # request, except for what all of them share
    new_tokens: int = -1
    mix_row: int = -1  # of a mix of workloads, the number of its own; -1: no mix
    planned_prompt: int = -1  # prompt tokens asked for; -1: nobody knows how many they are
    name: str = ""  # that a locustfile gave it; "": none
    at_ns: array[int] = field(default_factory=ns_array)
    not_before_ns: array[int] = field(default_factory=ns_array)
    tokens: array[int] = field(default_factory=ns_array)
    # The record as it arrived, encoded (`records.codec`), so that it is not encoded again. A copy
    # has no frame, so records must only be changed with `replace`.
    frame: bytes = field(default=b"", init=False, repr=False, compare=False)

    @property
    def begun_ns(self) -> int:
        """As `RecordTable.begun_ns`."""
        return self.sent_ns if self.scheduled_ns < 0 else self.scheduled_ns

    @property
    def key(self) -> tuple[int, int]:
        """(worker, number): identifies the request within its run."""
        return self.worker, self.number


def request_id(run_id: str, worker: int, number: int) -> str:
    """The id of a request, unique over all runs: users' headers may hold it."""
    return f"{run_id}-{worker}-{number}"


def split_by_events(records: Iterable[RequestRecord], events: int) -> Iterator[list[RequestRecord]]:
    """Split into lists of about this many events each, to bound the memory of what follows."""
    piece: list[RequestRecord] = []
    n_events = 0
    for record in records:
        piece.append(record)
        n_events += len(record.at_ns)
        if n_events >= events:
            yield piece
            piece = []
            n_events = 0
    if piece:
        yield piece


class RecordSink(Protocol):
    """Takes records and parts as they arrive; `put` must not block for long."""

    def put(self, records: list[RequestRecord]) -> None:
        """Take records and parts (outcome `open`) in any order; duplicates are possible."""

    def close(self) -> None:
        """Flush; nothing is put after it."""


class SeenNumbers:
    """A set of (worker, number) keys in space proportional to what arrived out of order."""

    def __init__(self) -> None:
        self._below: dict[int, int] = {}  # worker: every number below this one was added
        self._above: dict[int, set[int]] = {}

    def __contains__(self, key: tuple[int, int]) -> bool:
        worker, number = key
        if number < self._below.get(worker, 0):
            return True
        return number in self._above.get(worker, ())

    def add(self, key: tuple[int, int]) -> bool:
        """Add a key; False if it was there already."""
        worker, number = key
        below = self._below.get(worker, 0)
        if number < below:
            return False
        above = self._above.get(worker)
        if above is None:
            above = self._above[worker] = set()
        if number in above:
            return False
        if number > below:
            above.add(number)
            return True
        below += 1
        while below in above:
            above.remove(below)
            below += 1
        self._below[worker] = below
        return True

    def missing(self, begun: Mapping[int, int] | None = None) -> dict[int, int]:
        """For each worker that lacks some, how many: below its highest, or of those `begun`."""
        begun = begun or {}
        missing = {}
        for worker in sorted({*self._above, *begun}):
            below = self._below.get(worker, 0)
            above = self._above.get(worker, set())
            seen_end = max(above, default=-1) + 1
            end = max(below, begun.get(worker, 0), seen_end)
            n_missing = end - below - len(above)
            if n_missing:
                missing[worker] = n_missing
        return missing
