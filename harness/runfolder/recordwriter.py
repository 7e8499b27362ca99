"""The record sink that writes to the run folder: whole requests at once, open ones at the end."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.measure.records import Outcome, RequestRecord
from harness.measure.seen import Seen
from harness.runfolder import names
from harness.runfolder.codec import Sealed, decode, encode
from harness.runfolder.redact import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from harness.runfolder.writer import RunFolder

CUT_SHORT = "the run ended while this answer was being read"


class RecordWriter:
    """RecordSink: one worker's file. Parts are kept until their request ends.

    `close()` writes what is still open as cancelled; call it from every way out (it may be called
    twice). After a kill those requests are missing from the file, and the reader counts them by
    the gap in the numbers.
    """

    def __init__(self, folder: RunFolder, worker: int) -> None:
        """Open `records.<worker>.msgpack`; the records may be of any worker."""
        self._file = folder.append_to(names.records(worker))
        self._secrets = folder.secrets
        self._ended = Seen()
        self._parts: dict[tuple[int, int], dict[int, bytes]] = {}  # frames

    @property
    def unwritten(self) -> int:
        """Requests that did not fit on the disk."""
        return self._file.unwritten

    def put(self, records: Sequence[RequestRecord | Sealed]) -> None:
        """Write the whole records, one write for all; keep the parts; drop what came before."""
        whole: list[RequestRecord | Sealed] = []
        for record in records:
            if record.outcome is Outcome.open:
                if record.key not in self._ended:
                    self._parts.setdefault(record.key, {})[record.done_ns] = encode(record)
            elif self._ended.add(record.key):
                self._parts.pop(record.key, None)
                whole.append(record)
        self._write(whole)

    def close(self) -> None:
        """Write what is open as cancelled, then bring the file to the disk."""
        for parts in self._parts.values():
            self._write([joined(decode(b"".join(parts.values())).records)])
        self._parts.clear()
        self._file.close()

    def _write(self, records: Sequence[RequestRecord | Sealed]) -> None:
        if records:
            self._file.append(b"".join(map(self._clean, records)), len(records))

    def _clean(self, record: RequestRecord | Sealed) -> bytes:
        """Its frame; an error text may quote a URL or a header."""
        if not record.error:
            return encode(record)
        opened = record.open() if isinstance(record, Sealed) else record
        return encode(replace(opened, error=redact_text(record.error, self._secrets)))


def joined(parts: list[RequestRecord]) -> RequestRecord:
    """The record of an unended request from its parts, in any order: cancelled where they end."""
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
