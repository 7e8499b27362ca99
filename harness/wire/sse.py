"""The bytes that frame a stream of events, and a decoder of bytes that may be cut anywhere.

A server sends each event as a line `data: {...}` and an empty line, the last one with [DONE]; over
HTTP/1.1 nearly every event has a chunk of its own. Lines end with LF, CRLF or CR and with nothing
else: U+2028 inside JSON is no line end. Everything stays bytes, so a character that is cut in half
needs no care. Comments and events without data are dropped, and so are all fields but `data` and
the name of an event that is called `error`.
"""

from __future__ import annotations

from typing import Final

EVENT_STREAM: Final = "text/event-stream"

DATA_FIELD: Final = b"data"
DATA: Final = b"data: "  # a server writes one space; the standard also allows none
EVENT_END: Final = b"\n\n"
# all that the standard allows, except mixtures
EVENT_ENDS: Final = (EVENT_END, b"\r\n\r\n", b"\r\r")
CHUNK_END: Final = b"\r\n"

DONE: Final = b"[DONE]"
LAST_EVENT: Final = EVENT_END + DATA + DONE + EVENT_END  # with the end of the event before it
ERROR_KEY: Final = b'"error"'  # only a key or a whole value: inside a string quotes are escaped
ABORT: Final = b'"abort"'  # why an answer ended early: a whole value
# One of them is in each event of an answer, of all APIs; what has none may say how a stream ends.
CHOICES_KEY: Final = b'"choices"'
DELTA_KEY: Final = b'"delta"'
COUNT_KEY: Final = b'"completion_tokens":'
TEXT_KEYS: Final = (b'"content":"', b'"text":"')  # what a token's text follows

# The most that a peer may make us buffer. vLLM's events have 200 to 400 bytes; with the token ids
# of a long prompt and logprobs they may have a hundred thousand.
MAX_EVENT_BYTES: Final = 1 << 20
TOO_LONG: Final = f"an event of the stream is longer than {MAX_EVENT_BYTES >> 20} MiB"

# What C has copies of: the extension exports the values that it was built with, and
# `harness.reader.backends` refuses an extension built with others.
FRAMING: Final = {
    "data": DATA,
    "event_end": EVENT_END,
    "chunk_end": CHUNK_END,
    "done": DONE,
    "error_key": ERROR_KEY,
    "abort": ABORT,
    "choices_key": CHOICES_KEY,
    "delta_key": DELTA_KEY,
    "count_key": COUNT_KEY,
}
# A heartbeat without content, with each of the line ends that servers use.
EMPTY_EVENTS: Final = (b"data:\n", b"data: \n", b"data:\r", b"data: \r")

_LF: Final = 10
_CR: Final = 13
_SPACE: Final = 32
_BOM: Final = b"\xef\xbb\xbf"


class EventTooLong(ValueError):  # noqa: N818 - says what it is
    """An event, or a line, has more than MAX_EVENT_BYTES."""


class NamedError(bytes):
    """The data of an event whose name is `error`, whatever its data say."""

    __slots__ = ()


class SseDecoder:
    """Takes bytes, returns the data of whole events (several data lines joined by LF).

    `last`: whether the latest fed chunk ended with the last byte of an event.
    `stray`: the latest line that looks like an object, but is no field: a body that is no stream.
    """

    # An unfinished line is kept as a list of pieces and joined once, when it ends. Joining it with
    # every new piece would copy a body without line ends again and again: quadratic time.
    __slots__ = (
        "_after_cr",
        "_begun",
        "_between",
        "_data",
        "_data_bytes",
        "_is_error",
        "_line",
        "_line_bytes",
        "last",
        "stray",
    )

    def __init__(self) -> None:
        self.last = False
        self.stray = b""
        self._is_error = False  # the event that has not ended yet is called `error`
        self._line: list[bytes] = []
        self._data: list[bytes] = []  # of the event that has not ended yet
        self._line_bytes = 0
        self._data_bytes = 0
        self._after_cr = False  # a CR ended the last line: an LF right after it belongs to it
        self._between = False  # events, with nothing of the next one: feed may take a short way
        self._begun = False  # past the byte order mark that may open a stream

    @property
    def held(self) -> int:
        return self._line_bytes + self._data_bytes

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that end in this chunk. Raises EventTooLong: feed nothing after it."""
        # The fast path: nearly every read holds exactly one event of one line, and data in it.
        if self._between and chunk.startswith(DATA) and chunk.endswith(EVENT_END):
            plain = chunk.count(b"\n") == 2 and _CR not in chunk  # noqa: PLR2004 - the two at the end
            # Data that begin with a blank may consist of blanks, which is no event.
            if plain and chunk[6] > _SPACE:
                self.last = True
                self._after_cr = False
                return [chunk[6:-2]]
        events = self._lines(chunk)
        open_event = self._line or self._data or self._is_error
        self._between = self._begun and not open_event
        if self.held > MAX_EVENT_BYTES:
            raise EventTooLong(TOO_LONG)
        return events

    def finish(self) -> list[bytes]:
        """Return the event that the end of the stream left without its empty line, if any.

        By the standard it is lost; clients take it all the same.
        """
        return self._lines(EVENT_END)

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
            if _BOM.startswith(chunk):  # the whole mark, or a part of it
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
        events, after = self._events(lines)
        self.last = bool(events) and not rest and not after
        if rest:
            self._hold(rest)
        return events

    def _hold(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)

    def _joined(self, piece: bytes) -> bytes:
        if not self._line:
            return piece
        line = b"".join((*self._line, piece))
        self._line = []
        self._line_bytes = 0
        return line

    def _events(self, lines: list[bytes]) -> tuple[list[bytes], bool]:
        """Return the events that end in these lines, and whether anything follows the last one."""
        events: list[bytes] = []
        after = False
        for line in lines:
            if line:
                after = True
                self._take(line)
            elif self._data:
                data = b"\n".join(self._data)
                if data.strip():
                    events.append(NamedError(data) if self._is_error else data)
                    after = False
                self._data = []
                self._data_bytes = 0
                self._is_error = False
            else:
                self._is_error = False
        return events, after

    def _take(self, line: bytes) -> None:
        if line == DATA_FIELD or line.startswith(b"data:"):
            value = line[5:]
            self._data.append(value.removeprefix(b" "))
            self._data_bytes += len(line)
        elif line.startswith(b"event:"):
            self._is_error = line[6:].strip() == b"error"
        elif line.startswith(b"{"):
            self.stray = line
