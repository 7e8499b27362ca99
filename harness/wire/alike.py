"""The next token of a stream, known by its likeness to one that was read as JSON before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from harness.wire.openai import Chunk, NotACompletion, read_event

if TYPE_CHECKING:
    from collections.abc import Callable

UNLIKE: Final = -2
_KEYS: Final = (b'"content":"', b'"text":"')
_COUNT: Final = re.compile(rb'"(prompt|total|completion)_tokens":\d+')
_QUOTE, _BACKSLASH = b'"', 92
ANY_NUMBER, RUNNING_COUNT = b"\x01", b"\x02"  # in a likeness; JSON has no such bytes
_COUNTED: Final = {
    b"prompt": b'"prompt_tokens":' + ANY_NUMBER,
    b"total": b'"total_tokens":' + ANY_NUMBER,
    b"completion": b'"completion_tokens":' + RUNNING_COUNT,
}
_patterns: dict[bytes, Callable[[bytes, int], re.Match[bytes] | None]] = {}
_MOST_PATTERNS: Final = 256  # of a process; a pattern takes as long to make as 100 events to read
_MOST_LESSONS: Final = 5  # of a stream: its events may all be different


class Alike:
    """Of one stream: `learn` from events that were read, `count` those that are like them.

    The events of a stream differ in the token's text and in the running count, and in nothing else.
    An event that begins and goes on like a known one therefore needs no parsing, which is what
    reading a token costs most. Whatever differs, by one byte, is left to `read_event`.
    """

    __slots__ = ("_before", "_lessons", "_rest", "_size")

    def __init__(self) -> None:
        """Nothing was seen."""
        self._before = b""
        self._size = self._lessons = 0
        self._rest: Callable[[bytes, int], re.Match[bytes] | None]

    def count(self, data: bytes) -> int:
        """The running count of the token in `data`, -1 if it has none; or UNLIKE."""
        size = self._size
        if not size or not data.startswith(self._before):
            return UNLIKE
        end = data.find(_QUOTE, size)
        if end <= size or data[end - 1] == _BACKSLASH:  # no text; or perhaps not its end
            return UNLIKE
        match = self._rest(data, end)
        if match is None:
            return UNLIKE
        return int(match[1]) if match.lastindex else -1

    def learn(self, data: bytes, chunk: Chunk) -> None:
        """An event that was read: if it is a plain token, what comes may be like it."""
        if not _is_plain_token(chunk) or self._lessons >= _MOST_LESSONS:
            return
        self._lessons += 1
        if self._lessons == 1:  # where the reader knows tokens itself, no second one comes here
            return
        if (found := _split(data)) is None:
            return
        before, rest = found
        pattern = _pattern(rest)
        if pattern is not None:
            self._size, self._before, self._rest = len(before), before, pattern


def likeness(data: bytes) -> tuple[bytes, bytes] | None:
    """What the tokens after this event look like: (before the text, from its closing quote on).

    Numbers that will differ are ANY_NUMBER or RUNNING_COUNT. None if it is not a plain token.
    """
    if (found := _split(data)) is None:
        return None
    try:
        chunk = read_event(data)
    except NotACompletion:
        return None
    return found if _is_plain_token(chunk) else None


def _is_plain_token(chunk: Chunk) -> bool:
    return chunk[:3] == (True, True, -1) and not chunk.finish_reason and chunk.cached_tokens < 0


def _split(data: bytes) -> tuple[bytes, bytes] | None:
    keys = [key for key in _KEYS if data.count(key) == 1]
    if len(keys) != 1:
        return None
    size = data.index(keys[0]) + len(keys[0])
    end = data.find(_QUOTE, size)
    while end > size and data[end - 1] == _BACKSLASH:
        end = data.find(_QUOTE, end + 1)
    if end <= size:  # no text, as in the event with the role
        return None
    pieces = _COUNT.split(data[end:])
    pieces[1::2] = map(_COUNTED.__getitem__, pieces[1::2])
    return data[:size], b"".join(pieces)


def _pattern(rest: bytes) -> Callable[[bytes, int], re.Match[bytes] | None] | None:
    """Matches what follows a token's text, whatever the counts in it; one for all streams."""
    if rest not in _patterns and len(_patterns) < _MOST_PATTERNS:
        pattern = re.escape(rest).replace(RUNNING_COUNT, rb"(\d+)").replace(ANY_NUMBER, rb"\d+")
        _patterns[rest] = re.compile(pattern).fullmatch
    return _patterns.get(rest)
