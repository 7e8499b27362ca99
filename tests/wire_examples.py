"""Bytes of completion streams for the tests of wire and reader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from harness.wire.decode import SentRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

ASKED = SentRequest(0, 7, 3, 4, -1, 0, 1_000)
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


def event(body: Any) -> bytes:
    """One SSE event, without spaces in its JSON, as vLLM writes it."""
    if isinstance(body, bytes):
        return b"data: " + body + b"\n\n"
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def chunk(body: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def delta(usage: int | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chat chunk; `usage` as `continuous_usage_stats` writes it."""
    body: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": 9, "completion_tokens": usage}
    return body


ROLE = delta(role="assistant", content="")
USAGE = {
    "choices": [],
    "usage": {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 5},
    },
}
# four tokens: reasoning, an answer with U+2028 and a character of three bytes, two in one event
EVENTS = [
    event(ROLE),
    event(delta(usage=1, reasoning_content="hm")),
    event(delta(usage=2, content="a\u2028b\u20ac\\n\n")),
    event(delta(usage=4, content="c", finish="length")),
    event(USAGE),
    event(b"[DONE]"),
]
STREAM = HEAD + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


def cuts(data: bytes) -> Iterator[list[bytes]]:
    """The data in two pieces at every place, and byte by byte."""
    for i in range(len(data) + 1):
        yield [data[:i], data[i:]]
    yield [data[i : i + 1] for i in range(len(data))]
