"""What one event of a completion stream says, in numbers.

An event carries a token when its content, text, reasoning or tool-call delta is not empty; the
role-only event that opens a chat, the finish event and the usage event carry none. How many tokens
it carries comes from the running usage (`continuous_usage_stats`) or the token ids, else one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

DONE: Final = b"[DONE]"
REASONING: Final = ("reasoning", "reasoning_content")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event. Counts are -1 where the server does not say."""

    carries_token: bool = False
    is_answer: bool = False  # carries a token that is not reasoning
    new_tokens: int = -1  # by token ids
    completion_tokens: int = -1  # running total, by usage
    prompt_tokens: int = -1
    cached_tokens: int = -1
    finish_reason: str = ""
    error: str = ""
    done: bool = False


class NotACompletion(ValueError):  # noqa: N818 - says what it is
    """The event is not JSON of a completion stream."""


def read_event(data: bytes) -> Chunk:
    """Read one event's data. Raises NotACompletion."""
    if data == DONE:
        return Chunk(done=True)
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise NotACompletion(f"an event is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise NotACompletion("an event is JSON but no object")
    if body.get("error"):
        return Chunk(error=error_message(body["error"]))
    usage = body.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    choices = body.get("choices") or [{}]
    choice: dict[str, Any] = choices[0]
    answer, reasoning = _carried(choice)
    ids = choice.get("token_ids")
    return Chunk(
        carries_token=answer or reasoning,
        is_answer=answer,
        new_tokens=len(ids) if isinstance(ids, list) else -1,
        completion_tokens=_count(usage.get("completion_tokens")),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        cached_tokens=_count(details.get("cached_tokens")),
        finish_reason=choice.get("finish_reason") or "",
    )


def _carried(choice: dict[str, Any]) -> tuple[bool, bool]:
    """(answer token, reasoning token) in this choice."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text")), False
    answer = bool(delta.get("content") or delta.get("tool_calls"))
    return answer, any(delta.get(name) for name in REASONING)


def _count(value: object) -> int:
    return value if isinstance(value, int) else -1


def error_message(error: object, most: int = 200) -> str:
    """The server's message, short."""
    message = error.get("message", "") if isinstance(error, dict) else error
    return str(message)[:most]
