"""Server-sent events from bytes that may be cut anywhere.

Lines end with LF, CRLF or CR and with nothing else: U+2028 inside JSON is no line end, and a
character cut in half is put together again because everything stays bytes. Comments and fields
other than `data` are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LF: Final = 10
_CR: Final = 13


@dataclass(frozen=True, slots=True)
class SseEvent:
    """`data` of one event (several data lines joined by LF); `last`: its bytes end the feed's."""

    data: bytes
    last: bool


class SseDecoder:
    """Feed bytes, get whole events. `pending` says whether an event is half there."""

    __slots__ = ("_after_cr", "_data", "_line")

    def __init__(self) -> None:
        """At the beginning of a stream."""
        self._line = b""  # the line that has not ended yet
        self._data: list[bytes] = []
        self._after_cr = False  # a CR ended the last line: an LF right after it belongs to it

    @property
    def pending(self) -> bool:
        """Bytes of an event that has not ended."""
        return bool(self._line or self._data)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Events that end in this chunk, in order."""
        if self._after_cr and chunk:
            if chunk[0] == _LF:
                chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        whole = self._line + chunk
        if _CR in chunk:
            self._after_cr = chunk[-1] == _CR
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = whole.split(b"\n")
        self._line = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif line == b"data":
                self._data.append(b"")
        ends = not self._line and lines[-1:] == [b""]
        last = len(events) - 1
        return [SseEvent(data, ends and i == last) for i, data in enumerate(events)]
