"""Server-sent events from bytes that may be cut anywhere.

Lines end with LF, CRLF or CR and with nothing else: U+2028 inside JSON is no line end, and a
character cut in half is put together again because everything stays bytes. Comments and fields
other than `data` are dropped.
"""

from __future__ import annotations

from typing import Any, Final

_LF: Final = 10
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"


class SseDecoder:
    """Feed bytes, get the data of whole events (several data lines joined by LF).

    `last` says of the latest feed whether its last byte is that of the last event in it.
    """

    __slots__ = ("_after_cr", "_begun", "_data", "_line", "last")

    def __init__(self) -> None:
        """At the beginning of a stream."""
        self.last = False
        self._line = b""  # the line that has not ended yet
        self._data: list[bytes] = []
        self._after_cr = False  # a CR ended the last line: an LF right after it belongs to it
        self._begun = False  # past the byte order mark that a stream may begin with

    @property
    def pending(self) -> bool:
        """Bytes of an event that has not ended."""
        return bool(self._line or self._data)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events that end in this chunk, in order."""
        # nearly always a read holds one whole event of one line: cut it out and be done
        if chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") and self._begun:
            plain = chunk.count(b"\n") == 2 and _CR not in chunk  # noqa: PLR2004 - the two at the end
            if plain and not self._line and not self._data:
                self.last, self._after_cr = True, False
                return [chunk[6:-2]]
        return self._lines(chunk)

    def _lines(self, chunk: bytes) -> list[bytes]:
        self.last = False
        if self._after_cr and chunk:
            if chunk[0] == _LF:
                chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        whole = self._line + chunk
        if not self._begun:
            if _BOM.startswith(whole):  # all of it, or cut inside it
                self._line = whole
                return []
            self._begun = True
            whole = whole.removeprefix(_BOM)
        if _CR in chunk:
            self._after_cr = chunk[-1] == _CR
            whole = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = whole.split(b"\n")
        self._line = lines.pop()
        events = self._events(lines)
        self.last = bool(events) and not self._line and not self._data and lines[-1] == b""
        return events

    def _events(self, lines: list[bytes]) -> list[bytes]:
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
        return events

    def state(self) -> tuple[Any, ...]:
        """Plain values from which `resume` goes on."""
        return self._line, tuple(self._data), self._after_cr, self._begun

    def resume(self, state: tuple[Any, ...]) -> None:
        """Go on where `state` was taken."""
        self._line, data, self._after_cr, self._begun = state
        self._data = list(data)
