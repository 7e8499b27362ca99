"""Streams whose records are not whole yet: parts are joined here, states kept for a new decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.drive.batch import RESUMED, Batch
from harness.drive.decoder import record_in
from harness.measure.records import ns_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.drive.decoder import Row
    from harness.measure.records import RequestRecord


class _Stream:
    """What is known of one: what was asked, the decoder's state, the events of its parts."""

    __slots__ = ("asked", "at_ns", "not_before_ns", "state", "tokens")

    def __init__(self, asked: tuple[int, ...]) -> None:
        self.asked = asked
        self.state: Any = None  # as of the last checkpoint; None: there was none
        self.at_ns = self.not_before_ns = self.tokens = ns_array()


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

    def ended(self, rows: Iterable[Row]) -> list[RequestRecord]:
        """Whole records. A new decoder may tell again what its predecessor told: left out."""
        records = []
        for values, exact, _ in rows:
            record = record_in(values)
            stream = self._streams.pop(record.number, None)
            if stream is None:
                continue
            self._count(record, exact)
            if stream.state is not None:
                # in place: the record is ours alone, and replacing it would copy twenty fields
                record.at_ns[:0] = stream.at_ns
                record.not_before_ns[:0] = stream.not_before_ns
                record.tokens[:0] = stream.tokens
            records.append(record)
        return records

    def parts(self, rows: Iterable[Row]) -> list[RequestRecord]:
        """The records of a checkpoint's parts; call it only when all of its rows are here."""
        records = []
        for values, exact, state in rows:
            record = record_in(values)
            stream = self._streams.get(record.number)
            if stream is None:
                continue
            self._count(record, exact)
            stream.state = state
            stream.at_ns = stream.at_ns + record.at_ns  # never the part's own array
            stream.not_before_ns = stream.not_before_ns + record.not_before_ns
            stream.tokens = stream.tokens + record.tokens
            records.append(record)
        return records

    def _count(self, record: RequestRecord, exact: int) -> None:
        self.events += len(record.at_ns)
        self.exact_events += exact

    def states(self) -> Batch:
        """What a new decoder must hear first."""
        batch = Batch()
        for number, stream in self._streams.items():
            if stream.state is not None:
                batch.notice(number, RESUMED, stream.asked, stream.state)
        return batch
