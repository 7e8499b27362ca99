"""Records from workers to the master over Locust's messages, which are fire-and-forget.

A worker numbers its batches 0, 1, 2, ... and keeps each until the master has acknowledged it; what
is not acknowledged in time is sent again, in order. The master takes batch n of a worker only
after n - 1, so every batch is taken once and in order, and a batch taken twice is impossible. Each
batch also says how many request numbers the worker has given out: what never arrives is counted.

Nothing here knows a socket or a clock: `send` and the time are passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from harness.measure.records import Outcome, in_pieces
from harness.measure.seen import Seen
from harness.runfolder.codec import Decoded, Sealed, decode_each

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records import RequestRecord

RECORDS: Final = "harness_records"  # worker -> master: a Batch
ACK: Final = "harness_ack"  # master -> worker: the number of batches taken so far
BATCH: Final = 500  # records in a message: about 400 kB at 200 tokens a record
WINDOW: Final = 32  # batches in flight; the rest waits its turn in memory
EVENTS: Final = 1 << 14  # that the master unpacks at a time: 0.4 MB
RESEND_S: Final = 2.0


class Batch(TypedDict):
    """One message. `records` are codec frames, whole records and parts of open ones alike."""

    run: str  # of which run: a process may send for several, one after another
    worker: int
    batch: int
    issued: int  # request numbers given out so far: 0 .. issued - 1
    known_ns: int  # all that the worker saw happen before it is in this batch or an earlier one
    records: bytes
    kept: bool  # the worker writes its records to the run folder itself
    figures: dict[str, Any]  # the worker's figures about itself


class Outbox:
    """The worker's end. A sink of sealed records; `tick` it a few times a second."""

    def __init__(
        self,
        worker: int,
        send: Callable[[Batch], None],
        issued: Callable[[], int],
        figures: Callable[[], dict[str, Any]] = dict,
        *,
        known_ns: Callable[[], int] = int,
        kept: bool = False,
        run: str = "",
    ) -> None:
        """`issued` and `figures` are asked for each batch, `known_ns` when all is in batches."""
        self.worker = worker
        self._run = run
        self._send = send
        self._issued = issued
        self._figures = figures
        self._ask_known_ns = known_ns
        self._known_ns = 0  # as of the last batch
        self._kept = kept
        self._frames: list[bytes] = []  # that are in no batch yet
        self._waiting: deque[Batch] = deque()  # not acknowledged, in order
        self._made = 0
        self._sent = 0  # batches sent since the last acknowledgement moved or a resend began
        self._since = 0.0

    @property
    def empty(self) -> bool:
        """Whether the master has everything."""
        return not (self._frames or self._waiting)

    def put(self, records: list[Sealed]) -> None:
        """Take records; they leave at the next tick."""
        self._frames += [record.frame for record in records]

    def close(self) -> None:
        """Nothing comes after; what is waiting still goes out by `tick`."""

    def tick(self, now_s: float, *, always: bool = False) -> None:
        """Send what is new (`always`: a batch even without records), and again what got lost."""
        if self._frames or always:
            self._make_batches()
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
            self._waiting.popleft()
            self._sent = max(self._sent - 1, 0)
            self._since = now_s

    def _make_batches(self) -> None:
        frames, self._frames = self._frames, []
        starts = range(0, max(len(frames), 1), BATCH)
        for start in starts:
            if start == starts[-1]:
                self._known_ns = self._ask_known_ns()
            blob = b"".join(frames[start : start + BATCH])
            batch = Batch(
                run=self._run,
                worker=self.worker,
                batch=self._made,
                issued=self._issued(),
                known_ns=self._known_ns,
                records=blob,
                kept=self._kept,
                figures=self._figures(),
            )
            self._waiting.append(batch)
            self._made += 1


@dataclass(slots=True)
class Inbox:
    """The master's end: delivers whole records once, parts in order, and counts what is missing."""

    deliver: Callable[[list[RequestRecord]], None]
    store: Callable[[int, list[RequestRecord]], None] | None = None  # what no worker has kept
    run: str = ""
    issued: dict[int, int] = field(default_factory=dict)  # worker -> numbers given out
    known_ns: dict[int, int] = field(default_factory=dict)  # worker -> what happened before is here
    figures: dict[int, dict[str, Any]] = field(default_factory=dict)
    duplicates: int = 0  # records that came twice, and were dropped
    damaged_bytes: int = 0
    _taken: dict[int, int] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)
    _seen: Seen = field(default_factory=Seen)

    def take(self, batch: Batch) -> int:
        """Deliver the batch if it is this worker's next; say how many were taken so far."""
        worker = batch["worker"]
        taken = self._taken.get(worker, 0)
        if batch["run"] != self.run or batch["batch"] != taken:
            return taken
        self._taken[worker] = taken + 1
        self.issued[worker] = max(batch["issued"], self.issued.get(worker, 0))
        self.figures[worker] = batch["figures"]
        lost = Decoded()
        for fresh in in_pieces(filter(self._fresh, decode_each(batch["records"], lost)), EVENTS):
            self.deliver(fresh)
            if self.store is not None and not batch["kept"]:
                self.store(worker, fresh)
        self.damaged_bytes += lost.damaged_bytes + lost.torn_bytes
        self.known_ns[worker] = batch["known_ns"]
        return taken + 1

    def _fresh(self, record: RequestRecord) -> bool:
        """Whether this whole record, or part of a request that has not ended, is new."""
        if record.outcome is Outcome.open:
            return record.key not in self._seen
        new = self._seen.add(record.key)
        self.duplicates += not new
        self._ended[record.worker] = self._ended.get(record.worker, 0) + new
        return new

    @property
    def ended(self) -> int:
        """Whole records of all workers."""
        return sum(self._ended.values())

    def missing(self) -> dict[int, int]:
        """By worker, the requests that it began and whose end never arrived (none: left out)."""
        lost = {w: n - self._ended.get(w, 0) for w, n in sorted(self.issued.items())}
        return {worker: n for worker, n in lost.items() if n > 0}


def say_missing(missing: dict[int, int]) -> str:
    """One sentence for a person; empty when nothing is missing."""
    if not missing:
        return ""
    parts = ", ".join(f"{n} of worker {worker}" for worker, n in missing.items())
    return (
        f"{sum(missing.values())} requests were begun whose records never arrived ({parts}): "
        "percentiles are without them; look for a worker that died, and run again."
    )
