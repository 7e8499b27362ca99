"""Renders responses as vLLM does, for both APIs: events, whole answers and errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

import orjson

WORD: Final = " tok"
HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
END: Final = b"0\r\n\r\n"
TYPES: Final = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}
# What tells a server that decodes to fetch the prompt's KV cache: there is nothing to find here.
KEPT_KV: Final = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": []}
INVALID_HTTP_ANSWER: Final = (  # the answer to invalid HTTP, before closing
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n"
    b"content-length: 30\r\n\r\nInvalid HTTP request received."
)


def event(data: bytes) -> bytes:
    """Return an SSE event as one chunk of the body."""
    return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)


def answer(status: int, body: bytes, kind: str = "application/json") -> bytes:
    """Return a response with a content length."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def error(status: int, message: str) -> bytes:
    """Return vLLM's error response: 400, 500, and 404 for an unknown model."""
    body = {"message": message, "type": TYPES[status], "param": None, "code": status}
    return answer(status, orjson.dumps({"error": body}))


def refusal(status: int) -> bytes:
    """Return the web framework's own error response: no such path, wrong method, no key."""
    key = "error" if status == HTTPStatus.UNAUTHORIZED else "detail"
    return answer(status, orjson.dumps({key: HTTPStatus(status).phrase}))


@dataclass(slots=True)
class StreamRenderer:
    """Renders the stream of one request; its constant parts are rendered once."""

    chat: bool
    request_id: str
    model: str
    created: int
    prompt_tokens: int
    include_usage: bool
    continuous: bool
    keeps_kv: bool = False
    cached_tokens: int = 0
    _plain: bytes = b""
    _parts: tuple[bytes, bytes] = (b"", b"")
    _prefix: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        self._prefix = {
            "id": self.request_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }
        body = orjson.dumps(self._prefix | {"choices": [self._choice(WORD, None)]})
        self._plain = event(body)
        usage = b',"usage":{"prompt_tokens":%d,"total_tokens":' % self.prompt_tokens
        self._parts = (body[:-1] + usage, b',"completion_tokens":')

    def _choice(
        self, text: str, finish: str | None, key: str = "delta", **role: str
    ) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self.chat:
            content = {key: {**role, "content": text}}
        return {"index": 0, **content, "logprobs": None, "finish_reason": finish}

    def _usage(self, tokens: int) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "completion_tokens": tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def opening(self) -> bytes:
        """Return the head and, in a chat, the role event; sent together with the first token."""
        if not self.chat:
            return HEAD
        choice = self._choice("", None, role="assistant")
        return HEAD + self._event(choice, 0 if self.continuous else -1)

    def tokens(self, new: int, total: int) -> bytes:
        """Return an event with `new` tokens, `total` so far."""
        if new == 1 and not self.continuous:
            return self._plain
        if new == 1:
            before, between = self._parts
            return event(b"%b%d%b%d}}" % (before, self.prompt_tokens + total, between, total))
        return self._event(self._choice(WORD * new, None), total if self.continuous else -1)

    def _event(self, choice: dict[str, Any], total: int) -> bytes:
        """With the usage at `total` tokens; -1: without."""
        body: dict[str, Any] = self._prefix | {"choices": [choice]}
        if total >= 0:
            body |= {"usage": self._usage(total)}
        return event(orjson.dumps(body))

    def last(self, new: int, total: int) -> bytes:
        """Return the event of the last tokens with its finish reason, the usage event, [DONE]."""
        out = self._event(self._choice(WORD * new, "length"), total if self.continuous else -1)
        if self.include_usage:
            body = self._prefix | {"choices": [], "usage": self._usage(total)}
            out += event(orjson.dumps(body))
        return out + event(b"[DONE]") + END

    def whole(self, total: int) -> bytes:
        choice = self._choice(WORD * total, "length", "message", role="assistant")
        kind = "chat.completion" if self.chat else "text_completion"
        body = self._prefix | {"object": kind, "choices": [choice], "usage": self._usage(total)}
        if self.keeps_kv:
            body |= {"kv_transfer_params": KEPT_KV}
        return answer(200, orjson.dumps(body))
