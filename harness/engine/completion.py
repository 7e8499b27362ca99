"""A completion request: validated as vLLM does, then streamed as its tokens come out.

The tokenizer is a toy: a word of up to eight characters is a token, longer ones are cut every eight
characters. Tokens are counted and hashed but never decoded; the answer's text is meaningless.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from harness.engine.client_socket import Client
    from harness.engine.config import EngineConfig
    from harness.engine.responses import StreamRenderer

DEFAULT_TOKENS: Final = 16  # /v1/completions without max_tokens
TOKEN_CHARS: Final = 8
# The chat template: each message is between these, and so is its role.
MESSAGE_START: Final = "<|im_start|>"
MESSAGE_END: Final = "<|im_end|>"
OPENING: Final = (MESSAGE_START, "assistant")  # before the answer
Tokens = list[str] | list[int]


class BadRequest(Exception):  # noqa: N818 - becomes an HTTP status
    """Refused with `status` and vLLM's words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class CompletionParams:
    prompt_tokens: int
    output_tokens: int
    hashes: list[int]
    stream: bool
    include_usage: bool
    continuous: bool
    keeps_kv: bool = False  # for a server that decodes
    fetches_kv: bool = False  # from a server that has prefilled


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse the request's object. Raises BadRequest."""
    try:
        params = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(400, f"JSON decode error: {error}") from None
    if not isinstance(params, dict):
        raise BadRequest(400, "the body must be a JSON object")
    return params


def parse_completion(
    params: dict[str, Any], *, chat: bool, model: str, config: EngineConfig
) -> CompletionParams:
    """Validate a request. Raises BadRequest with vLLM's message."""
    if params.get("model") not in (None, model):
        raise BadRequest(404, f"The model `{params['model']}` does not exist.")
    if params.get("n") not in (None, 1):
        raise BadRequest(400, "only n=1 is supported")
    tokens = prompt_tokens_of(params, chat=chat)
    output_tokens = _output_tokens(params, len(tokens), config.max_model_len, chat=chat)
    options = params.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest(400, "stream_options must be an object")
    include_usage = bool(options.get("include_usage"))
    transfer = params.get("kv_transfer_params") or {}
    if not isinstance(transfer, dict):
        raise BadRequest(400, "kv_transfer_params must be an object")
    hashes: list[int] = []
    if config.enable_prefix_caching:
        hashes = block_hashes(tokens, config.block_size)
    return CompletionParams(
        prompt_tokens=len(tokens),
        output_tokens=output_tokens,
        hashes=hashes,
        stream=bool(params.get("stream")),
        include_usage=include_usage,
        continuous=include_usage and bool(options.get("continuous_usage_stats")),
        keeps_kv=bool(transfer.get("do_remote_decode")),
        fetches_kv=bool(transfer.get("do_remote_prefill")),
    )


def _output_tokens(params: dict[str, Any], prompt_tokens: int, limit: int, *, chat: bool) -> int:
    """The length of the answer; `limit`: of prompt and answer. Raises BadRequest."""
    output = params.get("max_completion_tokens") or params.get("max_tokens")
    if output is None:
        output = limit - prompt_tokens if chat else DEFAULT_TOKENS
    if type(output) is not int or output < 1:
        raise BadRequest(400, f"max_tokens must be at least 1, got {output}.")
    if not prompt_tokens:
        raise BadRequest(400, "The prompt is empty")
    if prompt_tokens + output > limit:
        raise BadRequest(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{output} output tokens and your prompt contains {prompt_tokens} input tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
        )
    return output


def prompt_tokens_of(params: dict[str, Any], *, chat: bool) -> Tokens:
    """Return the prompt's tokens. Raises BadRequest."""
    if chat or "messages" in params:
        messages = params.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise BadRequest(400, "Field required: messages")
        return tokenize_messages(messages)  # content of any type is converted to text
    prompt = params.get("prompt")
    if isinstance(prompt, str):
        return tokenize(prompt)
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise BadRequest(400, "Field required: prompt")


def tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    for word in text.split():
        if len(word) <= TOKEN_CHARS:
            tokens.append(word)
        else:
            tokens.extend(word[i : i + TOKEN_CHARS] for i in range(0, len(word), TOKEN_CHARS))
    return tokens


def tokenize_messages(messages: list[dict[str, Any]]) -> list[str]:
    """Tokens of a chat, template included."""
    tokens: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            parts = (part for part in content if isinstance(part, dict))
            content = " ".join(str(part.get("text", "")) for part in parts)
        tokens += [MESSAGE_START, str(message.get("role"))]
        tokens += [*tokenize(str(content)), MESSAGE_END]
    return [*tokens, *OPENING]


def block_hashes(tokens: Sequence[str | int], block_size: int) -> list[int]:
    """Return one hash per full block, each chained to the previous one, as vLLM does."""
    hashes: list[int] = []
    previous = 0
    for start in range(0, len(tokens) - block_size + 1, block_size):
        # Python salts the hashes of strings in each process: these are compared within one only.
        previous = hash((previous, *tokens[start : start + block_size]))
        hashes.append(previous)
    return hashes


@dataclass(slots=True, eq=False)
class TokenSender:
    """Counts the player's new tokens and sends them when the server calls `send`."""

    client: Client
    frames: StreamRenderer
    sends: SendLog
    queue: dict[TokenSender, None]  # senders with new tokens, in order
    received_ns: int  # monotonic
    stream: bool
    interval: int
    new: int = 0
    count: int = 0
    finished: bool = False

    def on_prefilled(self, cached_tokens: int) -> None:
        self.frames.cached_tokens = cached_tokens

    def emitted(self, tokens: int, *, finished: bool) -> None:
        """Queue new tokens: every `interval` tokens, and the first and the last at once."""
        self.new += tokens
        self.finished = finished
        if finished or (self.stream and (self.count == 0 or self.new >= self.interval)):
            self.queue[self] = None

    def send(self) -> bool:
        """Send all new tokens at once; return False if the client is gone."""
        new = self.new
        self.new = 0
        opening = b"" if self.count else self.frames.opening()
        self.count += new
        if not self.stream:
            data = self.frames.whole(self.count)
        elif self.finished:
            data = opening + self.frames.last(new, self.count)
        else:
            data = opening + self.frames.tokens(new, self.count)
        sends = self.sends
        sends.tokens.append(new)
        sends.before_ns.append(time.time_ns())
        alive = self.client.send(data)
        sends.after_ns.append(time.time_ns())
        return alive


KEPT: Final = 20_000  # requests; at 128 tokens each about 60 MB


@dataclass(slots=True)
class SendLog:
    """One request's sends, the reference for checking a client's timestamps (CLOCK_REALTIME, ns).

    The time just before and just after each send, and its number of tokens.
    """

    id: str
    client_id: str  # the X-Request-Id header
    arrived_ns: int  # the kernel's timestamp of the segment that completed the request
    before_ns: array[int] = field(default_factory=partial(array, "q"))
    after_ns: array[int] = field(default_factory=partial(array, "q"))
    tokens: array[int] = field(default_factory=partial(array, "q"))

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for name in self.__slots__:
            value = getattr(self, name)
            fields[name] = value.tolist() if isinstance(value, array) else value
        return fields
