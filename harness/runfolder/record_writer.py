"""The record sink of the run folder: writes ended requests at once, unfinished ones at the end."""

# Only ended requests are appended to the file. Partial records are kept in memory, by request and
# then by the instant up to which they are known, and are dropped when the whole record arrives. So
# a file never holds a request twice, and every record in it is final.

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.records.request_record import Outcome, RequestRecord
from harness.measure.records.seen_numbers import SeenNumbers
from harness.runfolder import names
from harness.runfolder.codec import decode, encode
from harness.runfolder.redact import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.runfolder.folder_writer import RunFolder

CUT_SHORT = "the run ended while this answer was being read"


class RecordWriter:
    """RecordSink: one worker's file. Parts are kept until their request ends.

    `close()` writes unfinished requests as cancelled; call it on every exit path (calling it twice
    is safe). After a kill these requests are missing from the file, and the reader counts them by
    the gap in the request numbers.
    """

    def __init__(self, folder: RunFolder, worker: int) -> None:
        """Open `records.<worker>.msgpack`; it may hold records of any worker."""
        self._file = folder.append_to(names.records(worker))
        self._secrets = folder.secrets
        self._ended = SeenNumbers()
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}  # frames

    @property
    def unwritten(self) -> int:
        """The number of requests that did not fit on the disk."""
        return self._file.unwritten

    def put(self, records: Sequence[RequestRecord]) -> None:
        """Write the ended requests, in one write; keep the parts of the others."""
        whole: list[RequestRecord] = []
        for record in records:
            if record.outcome is Outcome.open:
                if record.key not in self._ended:
                    self._parts.setdefault(record.key, {})[record.done_ns] = encode(record)
            elif self._ended.add(record.key):
                self._parts.pop(record.key, None)
                whole.append(record)
        self._write(whole)

    def close(self) -> None:
        """Write unfinished requests as cancelled, then sync the file to disk."""
        for parts in self._parts.values():
            self._write([joined(decode(b"".join(parts.values())).records)])
        self._parts.clear()
        self._file.close()

    def _write(self, records: Sequence[RequestRecord]) -> None:
        if records:
            self._file.append(b"".join(map(self._clean, records)), len(records))

    def _clean(self, record: RequestRecord) -> bytes:
        # an error text may quote a URL or a header
        if not record.error:
            return encode(record)
        return encode(replace(record, error=redact_text(record.error, self._secrets)))


def joined(parts: list[RequestRecord]) -> RequestRecord:
    """Join the parts of an unfinished request, in any order, to a cancelled record."""
    parts = sorted(parts, key=lambda part: part.done_ns)
    return replace(
        parts[-1],
        outcome=Outcome.cancelled,
        error=CUT_SHORT,
        at_ns=_chain(part.at_ns for part in parts),
        not_before_ns=_chain(part.not_before_ns for part in parts),
        tokens=_chain(part.tokens for part in parts),
    )


def _chain(arrays: Iterable[array[int]]) -> array[int]:
    return array("q", b"".join(map(bytes, arrays)))
