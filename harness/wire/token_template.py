"""Recognizes plain token events by comparing bytes with an earlier one, without parsing JSON."""

# Strategy: the events of one stream differ only in the token's text and in the usage counts.
# The first plain token event is parsed as JSON and split into a template:
#
#   1) a fixed prefix, up to and including the opening quote of the token's text;
#   2) the text, which ends at the next quote that no backslash escapes;
#   3) a fixed rest, from that quote on, in which only the counts are variable.
#
# A later event that fits the template is a token with a count, which costs a prefix comparison, a
# search for a quote and one regular expression. An event that differs in any other byte is parsed
# as JSON as usual, so a wrong guess is impossible: a template can only save work.

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from harness.wire.openai import Chunk, NotACompletion, read_event
from harness.wire.sse import TEXT_KEYS

NO_MATCH: Final = -2
_COUNT: Final = re.compile(rb'"(prompt|total|completion)_tokens":\d+')
_QUOTE: Final = b'"'
_BACKSLASH: Final = 92  # the byte's number
# Placeholders in a template; control characters never occur unescaped in JSON.
ANY_NUMBER: Final = b"\x01"
RUNNING_COUNT: Final = b"\x02"
_COUNTED: Final = {
    b"prompt": b'"prompt_tokens":' + ANY_NUMBER,
    b"total": b'"total_tokens":' + ANY_NUMBER,
    b"completion": b'"completion_tokens":' + RUNNING_COUNT,
}
_DIGITS: Final = rb"[0-9]{1,15}"  # below `openai.MAX_TOKENS`; C has the same limit
Matcher = Callable[[bytes, int], re.Match[bytes] | None]  # of the bytes from a position to the end
_matchers: dict[bytes, Matcher] = {}
# Compiling a pattern takes as long as parsing 100 events. The cache is shared by all streams of a
# process and bounded, because a server may put something unique into every stream.
_MAX_MATCHERS: Final = 256
# A stream whose events are all different would compile a pattern for each: it gets this many tries.
_MAX_LESSONS: Final = 5


class TokenTemplate:
    """The template of one stream: `learn` it from parsed events, `match` later ones."""

    __slots__ = ("_before", "_lessons", "_rest", "_size")

    def __init__(self) -> None:
        self._before = b""
        self._size = 0  # of `_before`; 0: there is no template yet
        self._lessons = 0
        self._rest: Matcher

    def match(self, data: bytes) -> int:
        """Return the running count of the token in `data`, -1 if it has none, or NO_MATCH."""
        size = self._size
        if not size or not data.startswith(self._before):
            return NO_MATCH
        end = data.find(_QUOTE, size)
        if end <= size or data[end - 1] == _BACKSLASH:  # no text, or perhaps not its end
            return NO_MATCH
        match = self._rest(data, end)
        if match is None:
            return NO_MATCH
        return int(match[1]) if match.lastindex else -1

    def learn(self, data: bytes, chunk: Chunk) -> None:
        """Take the template from a parsed event, if it is a plain token."""
        if not _is_plain_token(chunk) or self._lessons >= _MAX_LESSONS:
            return
        self._lessons += 1
        # Only the second event makes a template: where the C reader matches tokens itself, it takes
        # over after the first, and a pattern would be compiled for nothing.
        if self._lessons == 1:
            return
        parts = _split(data)
        if parts is None:
            return
        before, rest = parts
        matcher = _matcher(rest)
        if matcher is None:
            return
        self._size = len(before)
        self._before = before
        self._rest = matcher


def template_of(data: bytes) -> tuple[bytes, bytes] | None:
    """Return (prefix up to the text, rest from its closing quote on) of a plain token event.

    Variable numbers are replaced by ANY_NUMBER or RUNNING_COUNT. None if it is not a plain token.
    """
    parts = _split(data)
    if parts is None:
        return None
    try:
        chunk = read_event(data)
    except NotACompletion:
        return None
    return parts if _is_plain_token(chunk) else None


def _is_plain_token(chunk: Chunk) -> bool:
    # Else it says more than a match would read: token ids, a reason, the cached tokens.
    is_text = chunk.carries_token and chunk.is_answer and chunk.new_tokens == -1
    return is_text and not chunk.finish_reason and chunk.cached_tokens < 0


def _split(data: bytes) -> tuple[bytes, bytes] | None:
    keys = [key for key in TEXT_KEYS if data.count(key) == 1]
    if len(keys) != 1:
        return None
    size = data.index(keys[0]) + len(keys[0])
    end = data.find(_QUOTE, size)
    while end > size and data[end - 1] == _BACKSLASH:
        end = data.find(_QUOTE, end + 1)
    if end <= size:  # no text, as in the event with the role
        return None
    # Every second piece is what the pattern's group matched: which count it is.
    pieces = _COUNT.split(data[end:])
    for index in range(1, len(pieces), 2):
        pieces[index] = _COUNTED[pieces[index]]
    return data[:size], b"".join(pieces)


def _matcher(rest: bytes) -> Matcher | None:
    """Return a matcher of what follows a token's text; None when the cache is full."""
    if rest not in _matchers and len(_matchers) < _MAX_MATCHERS:
        pattern = re.escape(rest).replace(RUNNING_COUNT, b"(%b)" % _DIGITS)
        pattern = pattern.replace(ANY_NUMBER, _DIGITS)
        _matchers[rest] = re.compile(pattern).fullmatch
    return _matchers.get(rest)
