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
        return _read_named_error(data)
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
    error = ""
    finish_reason = ""
    done = False
    carries_token = False
    other_sign = False
    stranger = False
    for data in events:
        try:
            chunk = read_event(data)
        except NotACompletion:  # the first one may have lost its beginning
            continue
        error = chunk.error or error
        finish_reason = chunk.finish_reason or finish_reason
        done = done or chunk.done
        carries_token = carries_token or chunk.carries_token
        if chunk.silent or chunk.completion_tokens > 0 or finish_reason:
            other_sign = True
        if chunk.stranger:
            stranger = True
        elif chunk.carries_token or chunk.silent:
            stranger = False  # the answer went on after it
    return Chunk(
        carries_token=carries_token,
        silent=other_sign,
        error=error,
        finish_reason=finish_reason,
        done=done,
        stranger=stranger,
    )


def read_json(data: bytes) -> Any:
    """Read what a client would: also broken text within it. Raises NotACompletion."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        reason = str(error)
    # Rare, and ten times slower.
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        raise NotACompletion(f"an event is not JSON: {reason}") from None


def read_error(body: bytes) -> str:
    """Return the words of an error object; "" for anything else."""
    if body.lstrip()[:1] != b"{":  # most often a page
        return ""
    try:
        return read_event(body).error
    except NotACompletion:
        return ""


def _read_named_error(data: bytes) -> Chunk:
    try:
        return _error_chunk(read_json(data))
    except NotACompletion:
        return _error_chunk(data.decode("utf-8", "replace"))


def _error_chunk(error: object) -> Chunk:
    return Chunk(error=error_message(error) or NO_WORDS)


def _read(body: Any) -> Chunk:
    """Read an object of any shape; an unexpected one raises AttributeError, TypeError, ..."""
    if body.get("error") or body.get("object") == "error":  # the object itself: vLLM before 0.10
        return _error_chunk(body.get("error") or body)
    kind = body.get("type")
    if "choices" not in body:
        if isinstance(kind, str):
            return _read_typed(kind, body)
        has_only_usage = kind is None and body.get("usage")
        if not has_only_usage:
            return _read_other(body)
    usage = _usage(body.get("usage"))
    choices = body.get("choices")
    if choices:
        return _read_choice(choices, usage)
    completion, prompt, cached, reasoning = usage
    return Chunk(
        completion_tokens=completion,
        prompt_tokens=prompt,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
    )


def _usage(usage: Any) -> tuple[int, int, int, int]:
    """The (completion, prompt, cached, reasoning) tokens, -1 for what is not said."""
    if not usage:
        return -1, -1, -1, -1
    prompt_details = usage.get("prompt_tokens_details")
    cached = _count(prompt_details.get("cached_tokens")) if prompt_details else -1
    completion_details = usage.get("completion_tokens_details")
    reasoning = _count(completion_details.get("reasoning_tokens")) if completion_details else -1
    completion = _count(usage.get("completion_tokens"))
    prompt = _count(usage.get("prompt_tokens"))
    return completion, prompt, cached, reasoning


def _read_choice(choices: Any, usage: tuple[int, int, int, int]) -> Chunk:
    """An event of /v1/chat/completions or /v1/completions, with its counts as `_usage` has them."""
    if len(choices) > 1 or choices[0].get("index"):
        raise NotACompletion("an event has a second choice, and one was asked for")
    choice = choices[0]
    delta = choice.get("delta")
    token_ids = choice.get("token_ids")  # null unless requested
    if delta is None:
        is_answer = bool(choice.get("text", token_ids))
        carries_token = is_answer
    else:
        is_answer = bool(delta.get("content") or delta.get("tool_calls"))
        carries_token = is_answer
        if not is_answer:
            carries_token = bool(delta.get("reasoning") or delta.get("reasoning_content"))
    silent = not carries_token
    if silent and choice.get("error"):  # of gateways, beside the reason
        return _error_chunk(choice["error"])
    finish = ""
    if reason := choice.get("finish_reason"):
        finish = _reason(reason)
    new_tokens = -1
    if token_ids is not None:
        new_tokens = len(token_ids)
    completion, prompt, cached, reasoning = usage
    # By position, not by name: this runs for each event, and names take longer.
    return Chunk(
        carries_token,
        is_answer,
        new_tokens,
        completion,
        prompt,
        cached,
        finish,
        "",
        False,
        silent,
        False,
        reasoning,
    )


def _read_typed(kind: str, body: dict[str, Any]) -> Chunk:
    """An event of /v1/messages or /v1/responses, which say in `type` what they are."""
    delta = body.get("delta") or {}
    response = body.get("response") or body
    if kind in ("error", "response.failed"):
        return _error_chunk(response.get("error") or response)
    if isinstance(delta, str):  # of /v1/responses
        return Chunk(bool(delta), "reasoning" not in kind)
    if not kind.startswith(KNOWN_TYPES):
        return _read_other(body)
    answer = bool(delta.get("text") or delta.get("partial_json"))
    if answer or delta.get("thinking"):
        return Chunk(carries_token=True, is_answer=answer)
    message = body.get("message") or response  # the first event of /v1/messages has it
    usage = message.get("usage") or {}
    finish = delta.get("stop_reason")
    if not finish:
        incomplete = response.get("incomplete_details") or {}
        finish = incomplete.get("reason")
    return _typed_counts(kind, usage, finish)


def _typed_counts(kind: str, usage: Any, finish: Any) -> Chunk:
    """An event without text: what was counted by then, and whether the answer ends with it."""
    done = kind in LAST_EVENTS
    if not finish:
        finish = "stop" if done and usage else ""
    completion = -1
    if finish:  # only then it is that of the whole answer
        completion = _count(usage.get("output_tokens"))
    prompt = -1
    if INPUTS[0] in usage:
        prompt = sum(usage.get(name) or 0 for name in INPUTS)
    input_details = usage.get("input_tokens_details") or {}
    output_details = usage.get("output_tokens_details") or {}
    cached = usage.get(INPUTS[1], input_details.get("cached_tokens"))
    reasoning = output_details.get("reasoning_tokens")
    return Chunk(
        completion_tokens=completion,
        prompt_tokens=_count(prompt),
        cached_tokens=_count(cached),
        finish_reason=_reason(FINISHES.get(finish, finish)),
        done=done,
        reasoning_tokens=_count(reasoning),
    )


def _read_other(body: dict[str, Any]) -> Chunk:
    """An object that is no part of an answer: an error, if it has words or a code for one."""
    if not body or str(body.get("object")).startswith(KNOWN_OBJECTS):
        return Chunk()
    known = (*ERROR_WORDS, *ERROR_CODES[:-1])  # a type alone is none
    if any(body.get(name) for name in known):
        return _error_chunk(body)
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
        sentences = [_words(error, deeper - 1) for error in said[:MAX_ERRORS]]
        return "; ".join(filter(None, sentences))
    return str(said)


def _words_of_object(said: dict[str, Any], deeper: int) -> str:
    for name in MORE_WORDS:
        if words := _words(said.get(name), deeper):
            where = said.get("loc")  # of pydantic: the field that was refused
            field = ".".join(map(str, where)) if isinstance(where, list) else ""
            return f"{field}: {words}" if field else words
    codes = []
    for name in ERROR_CODES:
        code = said.get(name)
        if isinstance(code, int | str) and code != "":
            codes.append(f"{name} {code}")
    return ", ".join(codes)
