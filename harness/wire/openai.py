"""Reads one event of a completion stream, of any of API_PATHS.

An event carries a token when its content, text, reasoning or tool-call delta is not empty, or its
list of token ids where there is no text; the role-only event that opens a chat, the finish event
and the usage event carry none. How many tokens it carries comes from the running usage
(`continuous_usage_stats`) or the token ids, else one: /v1/responses and /v1/messages have neither.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import orjson

from harness.errors import one_line
from harness.wire.sse import DONE

MAX_TOKENS: Final = 1 << 53  # a larger count is invalid
MAX_FINISH: Final = 40  # characters of a reason
LAST_EVENTS: Final = ("message_stop", "response.completed", "response.incomplete")
# the last two are Anthropic's, who counts as input what was neither read from a cache nor put there
INPUTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
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


_DONE_CHUNK: Final = Chunk(done=True)


class NotACompletion(ValueError):  # noqa: N818 - says what it is
    """The event is not JSON of a completion stream."""


def read_event(data: bytes) -> Chunk:
    """Read one event's data. Raises NotACompletion."""
    if data == DONE:
        return _DONE_CHUNK
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise NotACompletion(f"an event is not JSON: {error}") from None
    try:
        return _read(body)
    except (AttributeError, TypeError, KeyError, IndexError):
        raise NotACompletion("an event is JSON, but not that of a completion") from None


def _read(body: Any) -> Chunk:
    """Read an object of any shape; an unexpected one raises AttributeError, TypeError, ..."""
    if body.get("error"):
        return Chunk(error=error_message(body["error"]))
    if body.get("object") == "error":  # vLLM before 0.10: the object itself is the error
        return Chunk(error=error_message(body))
    if "choices" not in body and "type" in body:
        return _read_typed(body["type"], body)
    choices = body.get("choices")
    usage = body.get("usage")
    completion = prompt = cached = ids = -1
    finish, carries, answer, silent = "", False, False, False
    if usage:
        completion = _count(usage.get("completion_tokens"))
        prompt = _count(usage.get("prompt_tokens"))
        details = usage.get("prompt_tokens_details")
        if details:
            cached = _count(details.get("cached_tokens"))
    if choices:
        choice = _only(choices)
        delta = choice.get("delta")
        token_ids = choice.get("token_ids")  # null unless requested
        if delta is None:
            carries = answer = bool(choice.get("text", token_ids))
        else:
            carries = answer = bool(delta.get("content") or delta.get("tool_calls"))
            if not answer:
                carries = bool(delta.get("reasoning") or delta.get("reasoning_content"))
        finish = str(choice.get("finish_reason") or "")[:MAX_FINISH]
        silent = not carries
        if token_ids is not None:
            ids = len(token_ids)
    return Chunk(carries, answer, ids, completion, prompt, cached, finish, "", False, silent)


def _only(choices: Any) -> Any:
    if len(choices) > 1 or choices[0].get("index"):
        raise NotACompletion("an event has a second choice, and one was asked for")
    return choices[0]


def _read_typed(kind: str, body: dict[str, Any]) -> Chunk:
    """An event of /v1/messages or /v1/responses, which say in `type` what they are."""
    delta, whole = body.get("delta") or {}, body.get("response") or body
    if kind in ("error", "response.failed"):
        return Chunk(error=error_message(whole.get("error") or whole))
    if isinstance(delta, str):  # of /v1/responses
        return Chunk(bool(delta), "reasoning" not in kind)
    answer = bool(delta.get("text") or delta.get("partial_json"))
    if answer or delta.get("thinking"):
        return Chunk(carries_token=True, is_answer=answer)
    usage, done = (body.get("message") or whole).get("usage") or {}, kind in LAST_EVENTS
    details, known = usage.get("input_tokens_details") or {}, INPUTS[0] in usage
    prompt = sum(usage.get(name) or 0 for name in INPUTS) if known else -1
    stopped = delta.get("stop_reason") or (whole.get("incomplete_details") or {}).get("reason")
    finish = stopped or "stop" * (done and bool(usage))
    return Chunk(
        completion_tokens=_count(usage.get("output_tokens")) if finish else -1,
        prompt_tokens=_count(prompt),
        cached_tokens=_count(usage.get(INPUTS[1], details.get("cached_tokens"))),
        finish_reason=str(FINISHES.get(finish, finish))[:MAX_FINISH],
        done=done,
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < MAX_TOKENS else -1


def error_message(error: object, max_chars: int = 200) -> str:
    """Return the server's message, shortened: an echo of the prompt comes last and is cut off."""
    message = error.get("message", "") if isinstance(error, dict) else error
    return one_line(str(message))[:max_chars]
