"""Records from decoders to the master over Locust's messages, which are fire-and-forget.

A decoder numbers its batches 0, 1, 2, ... and keeps each until the master has acknowledged it; what
is not acknowledged in time is sent again, in order. The master takes batch n of a decoder only
after n - 1, so every batch is taken once and in order, and a batch taken twice is impossible. The
worker itself says once a second how many request numbers it has given out: what never arrives is
counted.

Nothing here knows a socket or a clock: `send` and the time are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict

from harness.records.codec import Decoded, decode_each
from harness.records.request_record import Outcome, RequestRecord, split_by_events

RECORDS: Final = "harness_records"  # decoder -> master: a Batch
ACK: Final = "harness_ack"  # master -> decoder: an Ack
BEAT: Final = "harness_beat"  # worker -> master: a Beat
BATCH: Final = 500  # records in a message: about 400 kB at 200 tokens a record
WINDOW: Final = 32  # batches in flight; the rest waits its turn in memory
EVENTS: Final = 1 << 14  # that the master unpacks at a time: 0.4 MB
RESEND_S: Final = 2.0
RECENT: Final = 256  # answers that tell of the master's clock: two minutes


class RecordBatch(TypedDict):
    """One message. `records` are codec frames, whole records and parts of open ones alike."""

    run: str  # of which run: a process may send for several, one after another
    stream: str  # of which decoder; batches are numbered in each
    worker: int
    batch: int
    known_ns: int  # all that the worker saw happen before it is in this batch or an earlier one
    records: bytes
    kept: bool  # the decoder writes whole records to the run folder itself
    sent_ns: int  # by the worker's clock, each time that it is sent; its answer repeats it


class Ack(TypedDict):
    """What the master answers to each."""

    taken: int  # batches so far
    sent_ns: int  # of the message that it answers
    at_ns: int  # by the master's clock


class ClockBounds:
    """How far the master's clock is ahead of ours, from messages there and back.

    One that left at a, and was answered at b, while the master's clock was at m in between, says
    that it is ahead by m - b at least and by m - a at most, however slow either way was.
    """

    def __init__(self) -> None:
        self.recent: deque[tuple[int, int]] = deque(maxlen=RECENT)  # clocks drift
        self.ahead_ns = 0  # the best guess: the middle, or 0 where it may be, as on one machine
        self.apart_ns = 0  # at most so far, either way

    def take(self, ack: Ack, now_ns: int) -> None:
        least_ns = ack["at_ns"] - now_ns
        most_ns = ack["at_ns"] - ack["sent_ns"]
        self.recent.append((least_ns, most_ns))
        leasts_ns, mosts_ns = zip(*self.recent, strict=True)
        # sorted: where clocks drift meanwhile, the two come out the wrong way round
        low_ns, high_ns = sorted((max(leasts_ns), min(mosts_ns)))
        if low_ns <= 0 <= high_ns:
            self.ahead_ns = 0
        else:
            self.ahead_ns = (low_ns + high_ns) // 2
        self.apart_ns = max(-low_ns, high_ns)


class Beat(TypedDict):
    """What a worker says of itself, once a second."""

    run: str
    worker: int
    issued: int  # request numbers given out so far: 0 .. issued - 1
    figures: dict[str, Any]
    trouble: str  # a sentence when its records must not be believed; else ""


class Outbox:
    """The decoder's end: keeps each batch until it is acknowledged."""

    def __init__(
        self,
        send: Callable[[RecordBatch], None],
        *,
        stream: str,
        worker: int,
        run: str = "",
        kept: bool = False,
    ) -> None:
        """The names are those of `RecordBatch`."""
        self._send = send
        self._next = RecordBatch(
            run=run,
            stream=stream,
            worker=worker,
            batch=0,
            known_ns=0,
            records=b"",
            kept=kept,
            sent_ns=0,
        )
        self._waiting: deque[RecordBatch] = deque()  # not acknowledged, in order
        self.bytes = 0  # of records that the master has not acknowledged
        self._sent = 0  # batches sent since the last acknowledgement moved or a resend began
        self._since = 0.0

    def put(self, frames: list[bytes], known_ns: int = 0) -> None:
        """Make batches, which leave at the next tick; `known_ns`: of the last one, 0: as before."""
        pieces = [frames[i : i + BATCH] for i in range(0, len(frames), BATCH)]
        if known_ns and not pieces:
            pieces = [[]]  # an empty batch, to bring the news
        last = len(pieces) - 1
        for i, piece in enumerate(pieces):
            # On the last alone: it vouches for all the records before it.
            if known_ns and i == last:
                self._next["known_ns"] = known_ns
            batch = self._next.copy()
            batch["records"] = b"".join(piece)
            self.bytes += len(batch["records"])
            self._waiting.append(batch)
            self._next["batch"] += 1

    def tick(self, now_s: float) -> None:
        """Send what is new, and again what got lost."""
        # All that is in flight, not only what was lost: the master takes batches in order alone.
        if self._sent and now_s - self._since > RESEND_S:
            self._sent = 0
        while self._sent < min(len(self._waiting), WINDOW):
            if self._sent == 0:
                self._since = now_s
            self._sent += 1
            self._send(self._waiting[self._sent - 1])

    def acknowledged(self, taken: int, now_s: float) -> None:
        """The master has taken batches 0 .. taken - 1."""
        while self._waiting and self._waiting[0]["batch"] < taken:
            self.bytes -= len(self._waiting.popleft()["records"])
            self._sent = max(self._sent - 1, 0)
            # The master answers: what is in flight gets its whole time again.
            self._since = now_s


@dataclass(slots=True)
class Inbox:
    """The master's end: delivers every record once, in order, and counts what is missing."""

    deliver: Callable[[list[RequestRecord]], None]
    store: Callable[[int, list[RequestRecord]], None] | None = None  # what no decoder has kept
    run: str = ""
    issued: dict[int, int] = field(default_factory=dict)  # worker -> numbers given out
    known_ns: dict[int, int] = field(default_factory=dict)  # worker -> what happened before is here
    figures: dict[int, dict[str, Any]] = field(default_factory=dict)
    trouble: str = ""  # the first worker's that had any
    _taken: dict[str, int] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)

    def take(self, batch: RecordBatch) -> int:
        """Deliver the batch if it is this stream's next; say how many were taken so far."""
        worker = batch["worker"]
        stream = batch["stream"]
        taken = self._taken.get(stream, 0)
        if batch["run"] != self.run or batch["batch"] != taken:
            return taken
        # Before it is decoded: one that cannot be would be sent again for ever. Its records are
        # missed in the end, and counted.
        self._taken[stream] = taken + 1
        for records in split_by_events(decode_each(batch["records"], Decoded()), EVENTS):
            ended = sum(record.outcome is not Outcome.open for record in records)
            self._ended[worker] = self._ended.get(worker, 0) + ended
            self.deliver(records)
            if self.store is not None and not batch["kept"]:
                self.store(worker, records)
        # Last: whoever reads it takes it that the records before it are in the sinks.
        self.known_ns[worker] = batch["known_ns"]
        return taken + 1

    def beat(self, beat: Beat) -> None:
        if beat["run"] == self.run:
            worker = beat["worker"]
            self.issued[worker] = max(beat["issued"], self.issued.get(worker, 0))
            self.figures[worker] = beat["figures"]
            self.trouble = self.trouble or beat["trouble"]

    @property
    def ended(self) -> int:
        return sum(self._ended.values())

    def missing(self) -> dict[int, int]:
        """By worker, the requests that it began and whose end never arrived (none: left out)."""
        missing = {}
        for worker, issued in sorted(self.issued.items()):
            n_missing = issued - self._ended.get(worker, 0)
            if n_missing > 0:
                missing[worker] = n_missing
        return missing


def say_held(held: int) -> str:
    """One sentence about requests that had to wait; empty when none did."""
    why = "a decoder was behind, or the master did not take its records: try more --processes"
    return f"{held} requests were sent late because {why}." if held else ""


def say_missing(missing: dict[int, int]) -> str:
    """One sentence for a person; empty when nothing is missing."""
    if not missing:
        return ""
    parts = ", ".join(f"{n} of worker {worker}" for worker, n in missing.items())
    return (
        f"The records of {sum(missing.values())} requests never arrived ({parts}), so percentiles "
        "lack them. Either a load process died, as reported above, or one was too busy to send "
        "them in time; then try more --processes."
    )
