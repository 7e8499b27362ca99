"""Checks the stream that answers the probe: that it is one, and which usage its events carry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import ServerUnreachable, one_line
from harness.wire.openai import NotACompletion, read_event
from harness.wire.sse import EVENT_STREAM, EventTooLong, SseDecoder

if TYPE_CHECKING:
    from harness.server.access import TargetAccess
    from harness.server.http_exchange import HttpAnswer


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """Which events of the probe's stream carried usage."""

    continuous_usage: bool  # a token-bearing event carried usage too
    final_usage: bool  # an event without a choice carried usage


def read_stream(access: TargetAccess, answer: HttpAnswer) -> StreamUsage:
    """Read a response with status 200. Raises ServerUnreachable if it is no stream of tokens."""
    if answer.content_type != EVENT_STREAM:
        raise ServerUnreachable(
            f"{access.address} does not stream: it answered a request for a stream with "
            f"{one_line(answer.content_type)} in one piece; expected text/event-stream; try "
            "without the proxy in between."
        )
    token = continuous = final = done = False
    for data in _events(access, answer.body):
        try:
            chunk = read_event(data)
        except NotACompletion:
            text = one_line(data.decode(errors="replace"))
            raise ServerUnreachable(
                f"{access.address} streams what is not JSON of a completion ({text}): expected "
                "OpenAI's chunks; try the port that `vllm serve` printed."
            ) from None
        if chunk.error:
            raise ServerUnreachable(
                f"{access.address} streams an error ({one_line(chunk.error)}): expected tokens; "
                "see the server's log."
            )
        usage = chunk.completion_tokens >= 0
        done |= chunk.done
        token |= chunk.carries_token
        continuous |= usage and chunk.carries_token
        final |= usage and not chunk.carries_token and not chunk.silent
    if not token:
        raise ServerUnreachable(
            f"{access.address} streams no token: expected two; try the same request with curl -N."
        )
    if not done:
        raise ServerUnreachable(
            f"{access.address} breaks its stream off: expected data: [DONE] at its end; try "
            "without the proxy in between."
        )
    return StreamUsage(continuous, final)


def _events(access: TargetAccess, body: bytes) -> list[bytes]:
    try:
        return SseDecoder().feed(body)
    except EventTooLong as error:
        raise ServerUnreachable(
            f"{access.address} does not stream events: {error}; expected OpenAI's chunks; try the "
            "port that `vllm serve` printed."
        ) from None
