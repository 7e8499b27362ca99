"""A completion request: read and checked as vLLM does, then its stream as tokens come out."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from harness.engine.tokenizer import Tokens, block_hashes, tokenize, tokenize_messages

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.connection import Client
    from harness.engine.framing import Frames
    from harness.engine.oracle import Sends

DEFAULT_TOKENS: Final = 16  # /v1/completions without max_tokens


class BadRequest(Exception):  # noqa: N818 - becomes an HTTP status
    """Refused with `status` and vLLM's words."""

    def __init__(self, status: int, message: str) -> None:
        """The HTTP status and the message."""
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for, checked."""

    prompt_tokens: int
    output_tokens: int
    hashes: list[int]
    stream: bool
    include_usage: bool
    continuous: bool


def parse_json(body: bytes) -> dict[str, Any]:
    """The request's object. Raises BadRequest."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(400, f"JSON decode error: {error}") from None
    if not isinstance(asked, dict):
        raise BadRequest(400, "the body must be a JSON object")
    return asked


def read_wish(asked: dict[str, Any], *, chat: bool, model: str, config: EngineConfig) -> Wish:
    """Check a request. Raises BadRequest in vLLM's words."""
    if asked.get("model") not in (None, model):
        raise BadRequest(404, f"The model `{asked['model']}` does not exist.")
    if asked.get("n") not in (None, 1):
        raise BadRequest(400, "only n=1 is supported")
    tokens = prompt_of(asked, chat=chat)
    limit = config.max_model_len
    output = asked.get("max_completion_tokens") or asked.get("max_tokens")
    if output is None:
        output = limit - len(tokens) if chat else DEFAULT_TOKENS
    if type(output) is not int or output < 1:
        raise BadRequest(400, f"max_tokens must be at least 1, got {output}.")
    if not tokens:
        raise BadRequest(400, "The prompt is empty")
    if len(tokens) + output > limit:
        raise BadRequest(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{output} output tokens and your prompt contains {len(tokens)} input tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.",
        )
    options = asked.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequest(400, "stream_options must be an object")
    continuous = bool(options.get("continuous_usage_stats"))
    hashes = block_hashes(tokens, config.block_size) if config.enable_prefix_caching else []
    return Wish(
        len(tokens),
        output,
        hashes,
        bool(asked.get("stream")),
        bool(options.get("include_usage")),
        continuous and bool(options.get("include_usage")),
    )


def prompt_of(asked: dict[str, Any], *, chat: bool) -> Tokens:
    """The prompt's tokens. Raises BadRequest."""
    if chat or "messages" in asked:
        messages = asked.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise BadRequest(400, "Field required: messages")
        return tokenize_messages(messages)  # any content has a text, a number's is its digits
    prompt = asked.get("prompt")
    if isinstance(prompt, str):
        return tokenize(prompt)
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise BadRequest(400, "Field required: prompt")


class Answering:
    """A Listener of the player: counts what came out and sends it when the server says."""

    __slots__ = ("client", "count", "finished", "frames", "interval", "new", "queue",
                 "received_ns", "sends", "stream")  # fmt: skip

    def __init__(
        self, client: Client, frames: Frames, sends: Sends, queue: dict[Answering, None],
        received_ns: int, *, stream: bool, interval: int,
    ) -> None:  # fmt: skip
        """`queue` collects those with something to send, in order; `received_ns` is monotonic."""
        self.client = client
        self.frames = frames
        self.sends = sends
        self.queue = queue
        self.received_ns = received_ns
        self.stream = stream
        self.interval = interval
        self.new = 0
        self.count = 0
        self.finished = False

    def begun(self, cached_tokens: int) -> None:
        """The prompt is done; so many of its tokens came from the prefix cache."""
        self.frames.cached_tokens = cached_tokens

    def emitted(self, tokens: int, *, finished: bool) -> None:
        """Tokens came out: send at the interval, the first and the last at once."""
        self.new += tokens
        self.finished = finished
        if finished or (self.stream and (self.count == 0 or self.new >= self.interval)):
            self.queue[self] = None

    def send(self) -> bool:
        """One send with all that is new; False when the client is gone."""
        new, self.new = self.new, 0
        opening = b"" if self.count else (self.frames.opening() if self.stream else b"")
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
