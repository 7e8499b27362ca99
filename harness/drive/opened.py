"""Streams whose records are not whole yet: parts and states are kept for a new decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.drive.batch import RESUMED, Batch
from harness.runfolder.codec import OUTCOMES, Sealed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.drive.decoder import Row


class _Stream:
    """What is known of one: what was asked, the decoder's state, the frames of its parts."""

    __slots__ = ("asked", "parts", "state")

    def __init__(self, asked: tuple[int, ...]) -> None:
        self.asked = asked
        self.state: Any = None  # as of the last checkpoint; None: there was none
        self.parts: list[bytes] = []


class Opened:
    """Rows of the decoder in, records out. Counts events as they become known."""

    def __init__(self) -> None:
        """No stream."""
        self.events = 0
        self.exact_events = 0
        self._streams: dict[int, _Stream] = {}

    def __len__(self) -> int:
        """Streams without a whole record."""
        return len(self._streams)

    def add(self, number: int, asked: tuple[int, ...]) -> None:
        """A request is about to be sent, for the first time or again."""
        self._streams[number] = _Stream(asked)

    def ended(self, rows: Iterable[Row]) -> list[Sealed]:
        """Whole records. A new decoder may tell again what its predecessor told: left out."""
        records = []
        for values, events, exact, _ in rows:
            record = _sealed(*values)
            if self._streams.pop(record.number, None) is not None:
                self._count(events, exact)
                records.append(record)
        return records

    def parts(self, rows: Iterable[Row]) -> list[Sealed]:
        """The records of a checkpoint's parts; call it only when all of its rows are here."""
        records = []
        for values, events, exact, state in rows:
            record = _sealed(*values)
            stream = self._streams.get(record.number)
            if stream is not None:
                self._count(events, exact)
                stream.state = state
                if events:
                    stream.parts.append(record.frame)
                records.append(record)
        return records

    def _count(self, events: int, exact: int) -> None:
        self.events += events
        self.exact_events += exact

    def states(self) -> Batch:
        """What a new decoder must hear first."""
        batch = Batch()
        for number, stream in self._streams.items():
            if stream.state is not None:
                batch.notice(number, RESUMED, stream.asked, stream.state, b"".join(stream.parts))
        return batch


def _sealed(worker: int, number: int, outcome: str, *rest: Any) -> Sealed:
    return Sealed(worker, number, OUTCOMES[outcome], *rest)
