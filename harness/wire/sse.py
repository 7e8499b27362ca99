"""Server-sent events from bytes that may be cut anywhere.

Lines end with LF, CRLF or CR and with nothing else: U+2028 inside JSON is no line end, and a
character cut in half is put together again because everything stays bytes. Comments and fields
other than `data` are dropped.
"""

from __future__ import annotations

from typing import Final

from harness.wire.framing import DATA, DATA_FIELD, EVENT_END, MAX_EVENT_BYTES, TOO_LONG

_LF: Final = 10
_CR: Final = 13
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLong(ValueError):  # noqa: N818 - says what it is
    """An event, or a line, has more than MAX_EVENT_BYTES."""

    def __init__(self) -> None:
        super().__init__(TOO_LONG)


class SseDecoder:
    """Feed bytes, get the data of whole events (several data lines joined by LF).

    `last` says of the latest feed whether its last byte is that of the last event in it.
    """

    # The line that has not ended yet is kept in the pieces that it came in, and joined only when
    # it ends: joining it with each piece would copy a body without line ends over and over.
    __slots__ = ("_after_cr", "_begun", "_data", "_data_bytes", "_line", "_line_bytes", "last")

    def __init__(self) -> None:
        self.last = False
        self._line: list[bytes] = []
        self._data: list[bytes] = []  # of the event that has not ended yet
        self._line_bytes = self._data_bytes = 0
        self._after_cr = False  # a CR ended the last line: an LF right after it belongs to it
        self._begun = False  # past the byte order mark that a stream may begin with

    @property
    def held(self) -> int:
        """Bytes of an event that has not ended."""
        return self._line_bytes + self._data_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """Events that end in this chunk, in order. Raises EventTooLong: feed nothing after it."""
        # nearly always a read holds one whole event of one line: cut it out and be done
        if chunk.startswith(DATA) and chunk.endswith(EVENT_END) and self._begun:
            plain = chunk.count(b"\n") == 2 and _CR not in chunk  # noqa: PLR2004 - the two at the end
            if plain and not self._line and not self._data:
                self.last, self._after_cr = True, False
                return [chunk[6:-2]]
        events = self._lines(chunk)
        if self.held > MAX_EVENT_BYTES:
            raise EventTooLong
        return events

    def _lines(self, chunk: bytes) -> list[bytes]:
        self.last = False
        if self._after_cr and chunk:
            if chunk[0] == _LF:
                chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        if not self._begun:
            chunk = self._joined(chunk)
            if _BOM.startswith(chunk):  # all of it, or cut inside it
                self._hold(chunk)
                return []
            self._begun = True
            chunk = chunk.removeprefix(_BOM)
        if _CR in chunk:
            self._after_cr = chunk[-1] == _CR
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        first, *lines = chunk.split(b"\n")
        if not lines:
            self._hold(first)
            return []
        lines.insert(0, self._joined(first))
        rest = lines.pop()
        events = self._events(lines)
        self.last = bool(events) and not rest and not self._data and not lines[-1]
        if rest:
            self._hold(rest)
        return events

    def _hold(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)

    def _joined(self, piece: bytes) -> bytes:
        if not self._line:
            return piece
        whole = b"".join((*self._line, piece))
        self._line, self._line_bytes = [], 0
        return whole

    def _events(self, lines: list[bytes]) -> list[bytes]:
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data, self._data_bytes = [], 0
            elif line == DATA_FIELD or line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._data_bytes += len(line)
        return events
