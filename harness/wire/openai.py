"""Reads one event of a completion stream, of any of API_PATHS.

An event carries a token when its content, text, reasoning or tool-call delta is not empty, or its
list of token ids where there is no text; the role-only event that opens a chat, the finish event
and the usage event carry none. How many tokens it carries comes from the running usage
(`continuous_usage_stats`) or the token ids, else one: /v1/responses and /v1/messages have neither.

What clients accept is no error here: bytes that are not UTF-8, halves of a surrogate pair and NaN
inside JSON. An object that is no part of an answer is an error if it has words for one (`detail`,
`code`), and a `stranger` if not: a stream that ends by it did not end well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from harness.errors import one_line
from harness.wire.sse import DONE, NamedError

MAX_TOKENS: Final = 1 << 53  # a larger count is invalid
MAX_FINISH: Final = 40  # characters of a reason
LAST_EVENTS: Final = ("message_stop", "response.completed", "response.incomplete")
# the last two are Anthropic's, who counts as input what was neither read from a cache nor put there
INPUTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
KNOWN_TYPES: Final = ("response.", "content_block_", "message_", "ping", "keepalive", "error")
KNOWN_OBJECTS: Final = ("chat.completion", "text_completion")
# where a server says what went wrong, the best first
ERROR_WORDS: Final = (
    "message",
    "detail",
    "details",
    "msg",
    "error",
    "errors",
    "error_message",
    "reason",
    "title",
)
MORE_WORDS: Final = (*ERROR_WORDS, "text", "description")  # of what is known to be an error
ERROR_CODES: Final = ("code", "status", "status_code", "error_code", "type")
MAX_ERROR: Final = 200  # characters of a message
MAX_NESTED: Final = 4  # objects of an error within one another
MAX_ERRORS: Final = 3  # of a list of them
NO_WORDS: Final = "the server sent an error without a word about it"
# The server gave the answer up; any other reason is an end.
FAILED_FINISHES: Final = (
    "abort",
    "aborted",
    "cancelled",
    "canceled",
    "error",
    "failed",
    "insufficient_system_resource",
)
FINISHES: Final = {"max_tokens": "length", "max_output_tokens": "length", "end_turn": "stop"}


class Chunk(NamedTuple):
    """One event. Counts are -1 where the server does not report them."""

    carries_token: bool = False
    is_answer: bool = False  # carries a token that is not reasoning
    new_tokens: int = -1  # by token ids
    completion_tokens: int = -1  # running total, by usage
    prompt_tokens: int = -1
    cached_tokens: int = -1
    finish_reason: str = ""
    error: str = ""
    done: bool = False
    silent: bool = False  # a choice without a token: the role, an empty text, the finish
    stranger: bool = False  # an object that is no part of an answer, nor an error in words
    reasoning_tokens: int = -1  # of the completion tokens, in a final count


_DONE_CHUNK: Final = Chunk(done=True)


class NotACompletion(ValueError):  # noqa: N818 - says what it is
    """The event is not JSON of a completion stream."""


def read_event(data: bytes) -> Chunk:
    """Read one event's data. Raises NotACompletion."""
    if data == DONE:
        return _DONE_CHUNK
    if isinstance(data, NamedError):
        return Chunk(error=_named_error(data))
    body = read_json(data)
    try:
        return _read(body)
    except (AttributeError, TypeError, KeyError, IndexError):
        raise NotACompletion("an event is JSON, but not that of a completion") from None


def end_of(events: Sequence[bytes]) -> Chunk:
    """What these events, a stream's last ones, say together.

    Whether there was a token, or else any sign of an answer (`silent`); error, finish, done and
    stranger.

    A server that fails amid a stream has sent its 200 long before: it says so in an event, and
    [DONE] may follow as if all were well.
    """
    error, finish, done, stranger, token, other = "", "", False, False, False, False
    for data in events:
        with suppress(NotACompletion):  # the first one may have lost its beginning
            chunk = read_event(data)
            error, finish = chunk.error or error, chunk.finish_reason or finish
            done, token = done or chunk.done, token or chunk.carries_token
            other = other or chunk.silent or chunk.completion_tokens > 0 or bool(finish)
            if chunk.carries_token or chunk.silent:
                stranger = False
            stranger = stranger or chunk.stranger
    return Chunk(
        carries_token=token,
        silent=other,
        error=error,
        finish_reason=finish,
        done=done,
        stranger=stranger,
    )


def read_json(data: bytes) -> Any:
    """Read what a client would: also broken text within it. Raises NotACompletion."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        strictly = str(error)
    # Rare, and ten times slower.
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NotACompletion(f"an event is not JSON: {strictly}") from None


def read_error(body: bytes) -> str:
    """Return the words of an error object; "" for anything else."""
    if body.lstrip()[:1] != b"{":  # most often a page
        return ""
    try:
        return read_event(body).error
    except NotACompletion:
        return ""


def _named_error(data: bytes) -> str:
    try:
        body = read_json(data)
    except NotACompletion:
        body = data.decode("utf-8", "replace")
    return error_message(body) or NO_WORDS


def _read(body: Any) -> Chunk:
    """Read an object of any shape; an unexpected one raises AttributeError, TypeError, ..."""
    if body.get("error") or body.get("object") == "error":  # the object itself: vLLM before 0.10
        return Chunk(error=error_message(body.get("error") or body) or NO_WORDS)
    kind = body.get("type")
    if "choices" not in body and (kind is not None or not body.get("usage")):
        return _read_typed(kind, body) if isinstance(kind, str) else _read_other(body)
    completion, prompt, cached, thought = _usage(body.get("usage"))
    ids = -1
    finish, carries, answer, silent = "", False, False, False
    if choices := body.get("choices"):
        choice = _only(choices)
        delta = choice.get("delta")
        token_ids = choice.get("token_ids")  # null unless requested
        if delta is None:
            carries = answer = bool(choice.get("text", token_ids))
        else:
            carries = answer = bool(delta.get("content") or delta.get("tool_calls"))
            if not answer:
                carries = bool(delta.get("reasoning") or delta.get("reasoning_content"))
        silent = not carries
        if silent and choice.get("error"):  # of gateways, beside the reason
            return Chunk(error=error_message(choice["error"]) or NO_WORDS)
        if reason := choice.get("finish_reason"):
            finish = _reason(reason)
        if token_ids is not None:
            ids = len(token_ids)
    return Chunk(
        carries, answer, ids, completion, prompt, cached, finish, "", False, silent, False, thought
    )


def _usage(usage: Any) -> tuple[int, int, int, int]:
    """The (completion, prompt, cached, reasoning) tokens, -1 for what is not said."""
    if not usage:
        return -1, -1, -1, -1
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if details else -1
    made_of = usage.get("completion_tokens_details")
    thought = _count(made_of.get("reasoning_tokens")) if made_of else -1
    counts = _count(usage.get("completion_tokens")), _count(usage.get("prompt_tokens"))
    return *counts, cached, thought


def _only(choices: Any) -> Any:
    if len(choices) > 1 or choices[0].get("index"):
        raise NotACompletion("an event has a second choice, and one was asked for")
    return choices[0]


def _read_typed(kind: str, body: dict[str, Any]) -> Chunk:
    """An event of /v1/messages or /v1/responses, which say in `type` what they are."""
    delta, whole = body.get("delta") or {}, body.get("response") or body
    if kind in ("error", "response.failed"):
        return Chunk(error=error_message(whole.get("error") or whole) or NO_WORDS)
    if isinstance(delta, str):  # of /v1/responses
        return Chunk(bool(delta), "reasoning" not in kind)
    if not kind.startswith(KNOWN_TYPES):
        return _read_other(body)
    answer = bool(delta.get("text") or delta.get("partial_json"))
    if answer or delta.get("thinking"):
        return Chunk(carries_token=True, is_answer=answer)
    usage, done = (body.get("message") or whole).get("usage") or {}, kind in LAST_EVENTS
    details, known = usage.get("input_tokens_details") or {}, INPUTS[0] in usage
    made_of = usage.get("output_tokens_details") or {}
    prompt = sum(usage.get(name) or 0 for name in INPUTS) if known else -1
    stopped = delta.get("stop_reason") or (whole.get("incomplete_details") or {}).get("reason")
    finish = stopped or "stop" * (done and bool(usage))
    return Chunk(
        completion_tokens=_count(usage.get("output_tokens")) if finish else -1,
        prompt_tokens=_count(prompt),
        cached_tokens=_count(usage.get(INPUTS[1], details.get("cached_tokens"))),
        finish_reason=_reason(FINISHES.get(finish, finish)),
        done=done,
        reasoning_tokens=_count(made_of.get("reasoning_tokens")),
    )


def _read_other(body: dict[str, Any]) -> Chunk:
    """An object that is no part of an answer: an error, if it has words or a code for one."""
    if not body or str(body.get("object")).startswith(KNOWN_OBJECTS):
        return Chunk()
    known = (*ERROR_WORDS, *ERROR_CODES[:-1])  # a type alone is none
    if any(body.get(name) for name in known):
        return Chunk(error=error_message(body) or NO_WORDS)
    return Chunk(stranger=True)


def _reason(finish: object) -> str:
    return one_line(str(finish)[:MAX_FINISH]) if finish else ""


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_TOKENS else -1


def error_message(error: object) -> str:
    """Return the server's words, shortened: an echo of the prompt comes last and is cut off.

    "" where it has none.
    """
    return one_line(_words(error, MAX_NESTED), MAX_ERROR)[:MAX_ERROR]


def _words(said: object, deeper: int) -> str:
    if not said or not deeper:
        return ""
    if isinstance(said, dict):
        return _words_of_object(said, deeper - 1)
    if isinstance(said, list):
        each = (_words(one, deeper - 1) for one in said[:MAX_ERRORS])
        return "; ".join(words for words in each if words)
    return str(said)


def _words_of_object(said: dict[str, Any], deeper: int) -> str:
    for name in MORE_WORDS:
        if words := _words(said.get(name), deeper):
            where = said.get("loc")  # of pydantic: the field that was refused
            field = ".".join(map(str, where)) if isinstance(where, list) else ""
            return f"{field}: {words}" if field else words
    codes = ((name, said.get(name)) for name in ERROR_CODES)
    known = ((name, code) for name, code in codes if isinstance(code, int | str) and code != "")
    return ", ".join(f"{name} {code}" for name, code in known)
