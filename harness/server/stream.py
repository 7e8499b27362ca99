"""Does the server stream? Read the probe's one answer and see what its events hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ServerUnreachable
from harness.server.why import clean

if TYPE_CHECKING:
    from harness.server.access import Access
    from harness.server.exchange import Answer

DONE: Final = b"[DONE]"
TOKEN_FIELDS: Final = ("content", "text", "reasoning", "reasoning_content", "tool_calls")


@dataclass(frozen=True, slots=True)
class Streamed:
    """What the probe's stream held."""

    continuous_usage: bool  # a token-bearing event carried usage too
    final_usage: bool  # an event without a choice carried usage


def read_stream(access: Access, answer: Answer) -> Streamed:
    """Read a 200 to its end. Raises ServerUnreachable when it is no stream of tokens."""
    token = continuous = final = done = False
    for line in answer.body.splitlines():
        if not line.startswith(b"data:"):
            continue
        data = line.removeprefix(b"data:").strip()
        if data == DONE:
            done = True
            continue
        event = _event(access, data)
        has_token, usage = _carries_token(event), bool(event.get("usage"))
        token |= has_token
        continuous |= has_token and usage
        final |= usage and not event.get("choices")
    if answer.content_type != "text/event-stream":
        raise ServerUnreachable(
            f"{access.address} does not stream: it answered a request for a stream with "
            f"{clean(answer.content_type)} in one piece; expected text/event-stream; try without "
            "the proxy in between."
        )
    if not token:
        raise ServerUnreachable(
            f"{access.address} streams no token: expected two; try the same request with curl -N."
        )
    if not done:
        raise ServerUnreachable(
            f"{access.address} breaks its stream off: expected data: [DONE] at its end; try "
            "without the proxy in between."
        )
    return Streamed(continuous, final)


def _event(access: Access, data: bytes) -> dict[str, Any]:
    """One event's JSON. An error object inside the stream stops the probe."""
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ServerUnreachable(
            f"{access.address} streams what is not JSON ({clean(data.decode(errors='replace'))}): "
            "expected OpenAI's chunks; try the port that `vllm serve` printed."
        )
    if event.get("error") or event.get("object") == "error":
        words = clean(json.dumps(event.get("error") or event.get("message")))
        raise ServerUnreachable(
            f"{access.address} streams an error ({words}): expected tokens; see the server's log."
        )
    return event


def _carries_token(event: dict[str, Any]) -> bool:
    """Whether the first choice holds text, reasoning or a tool call; a role alone is no token."""
    choices = event.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return False
    delta = choices[0].get("delta", choices[0])
    return isinstance(delta, dict) and any(delta.get(name) for name in TOKEN_FIELDS)
