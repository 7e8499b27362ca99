"""What events say."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from wire_examples import ROLE, USAGE, delta

from harness.errors import one_line
from harness.wire.openai import NO_WORDS, Chunk, NotACompletion, error_message, read_event
from harness.wire.sse import NamedError


def text(words: str, **more: Any) -> dict[str, Any]:
    """A chunk of /v1/completions."""
    return {"choices": [{"index": 0, "text": words, **more}]}


def block(**delta: str) -> dict[str, Any]:
    """A piece of an answer of /v1/messages."""
    return {"type": "content_block_delta", "delta": delta, "index": 0}


@pytest.mark.parametrize(
    ("body", "want"),
    [
        (ROLE, Chunk(silent=True)),
        (delta(), Chunk(silent=True)),
        (delta(content="a"), Chunk(carries_token=True, is_answer=True)),
        (delta(content=" "), Chunk(carries_token=True, is_answer=True)),
        (delta(reasoning="a"), Chunk(carries_token=True)),
        (delta(reasoning_content="a"), Chunk(carries_token=True)),
        (delta(tool_calls=[{"index": 0}]), Chunk(carries_token=True, is_answer=True)),
        (delta(tool_calls=[], content=None), Chunk(silent=True)),
        (delta(content="", finish="stop"), Chunk(finish_reason="stop", silent=True)),
        (delta(usage=3, content="a"), Chunk(True, True, -1, 3, 9)),
        (text("a"), Chunk(carries_token=True, is_answer=True)),
        (text(""), Chunk(silent=True)),
        (text("a", token_ids=[5, 6]), Chunk(True, True, 2)),
        (text("a", token_ids=None), Chunk(True, True)),
        (text("", finish_reason="length"), Chunk(finish_reason="length", silent=True)),
        (USAGE, Chunk(completion_tokens=4, prompt_tokens=9, cached_tokens=5)),
        ({"choices": [], "usage": None}, Chunk()),
        ({"choices": [], "usage": {"completion_tokens": 2**63, "prompt_tokens": -5}}, Chunk()),
        ({"error": {"message": "no\n  room", "code": 500}}, Chunk(error="no room")),
        # /inference/v1/generate: no text, unless it was asked for
        ({"choices": [{"token_ids": [5]}]}, Chunk(True, True, 1)),
        ({"choices": [{"token_ids": []}]}, Chunk(new_tokens=0, silent=True)),
        # /v1/messages
        (
            {
                "type": "message_start",
                "message": {"usage": {"input_tokens": 35, "output_tokens": 0}},
            },
            Chunk(prompt_tokens=35),
        ),
        ({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}, Chunk()),
        (block(type="text_delta", text=" a"), Chunk(True, True)),
        (block(type="thinking_delta", thinking="a"), Chunk(carries_token=True)),
        (block(type="input_json_delta", partial_json="{"), Chunk(True, True)),
        (block(type="signature_delta", signature="a"), Chunk()),
        (
            {
                "type": "message_delta",
                "delta": {"stop_reason": "max_tokens"},
                "usage": {"input_tokens": 30, "output_tokens": 4, "cache_read_input_tokens": 5},
            },
            Chunk(False, False, -1, 4, 35, 5, "length"),
        ),
        ({"type": "message_stop"}, Chunk(done=True)),
        ({"type": "ping"}, Chunk()),
        # /v1/responses
        ({"type": "response.created", "response": {"usage": None, "error": None}}, Chunk()),
        ({"type": "response.output_text.delta", "delta": " a"}, Chunk(True, True)),
        ({"type": "response.output_text.delta", "delta": ""}, Chunk()),
        ({"type": "response.reasoning_text.delta", "delta": "a"}, Chunk(carries_token=True)),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, Chunk(True, True)),
        (
            {
                "type": "response.completed",
                "response": {
                    "incomplete_details": {"reason": "max_output_tokens"},
                    "usage": {
                        "input_tokens": 35,
                        "input_tokens_details": {"cached_tokens": 16},
                        "output_tokens": 4,
                    },
                },
            },
            Chunk(False, False, -1, 4, 35, 16, "length", done=True),
        ),
        (
            {"type": "response.completed", "response": {"usage": {"output_tokens": 4}}},
            Chunk(completion_tokens=4, finish_reason="stop", done=True),
        ),
        (
            {"type": "response.failed", "response": {"error": {"message": "no room"}}},
            Chunk(error="no room"),
        ),
        ({"type": "error", "code": "x", "message": "no room"}, Chunk(error="no room")),
        ({"error": "no room"}, Chunk(error="no room")),
        ({"type": "x", "usage": [1]}, Chunk(stranger=True)),
        ({"type": "overloaded_error", "message": "no room"}, Chunk(error="no room")),
        ({"type": "keepalive", "sequence_number": 3}, Chunk()),
        # no part of an answer: an error if it has words for one
        ({"detail": "no room"}, Chunk(error="no room")),
        ({"code": 503, "details": "no room"}, Chunk(error="no room")),
        ({"code": 503}, Chunk(error="code 503")),
        ({"error": {"code": 500}}, Chunk(error="code 500")),
        ({"error": {"type": "server_error", "param": None}}, Chunk(error="type server_error")),
        ({"error": {"type": "x", "code": ""}}, Chunk(error="type x")),
        ({"type": None, "message": "no room"}, Chunk(error="no room")),
        ({"type": 7, "some": 1}, Chunk(stranger=True)),
        ({"error": [[]]}, Chunk(error="the server sent an error without a word about it")),
        ({"object": "error", "message": "no room"}, Chunk(error="no room")),
        (
            {"detail": [{"loc": ["body", "top_k"], "msg": "Extra input", "input": "secret"}] * 5},
            Chunk(error="; ".join(["body.top_k: Extra input"] * 3)),
        ),
        ({"some": 1}, Chunk(stranger=True)),
        ({"text": "a token of another API"}, Chunk(stranger=True)),
        # of a gateway: on the choice, beside finish_reason "error"
        (text("", error={"message": "timed out"}, finish_reason="error"), Chunk(error="timed out")),
        ({}, Chunk()),
        ({"object": "chat.completion.chunk", "id": "x"}, Chunk()),
        (delta(content="", finish="a\x1b[2J"), Chunk(finish_reason="a [2J", silent=True)),
    ],
)
def test_events(body: dict[str, Any], want: Chunk) -> None:
    """Which carry a token, whether it is an answer's, and what is counted."""
    assert read_event(orjson.dumps(body)) == want


def test_done() -> None:
    """The stream's end."""
    assert read_event(b"[DONE]") == Chunk(done=True)


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"1",
        b"[]",
        b"null",
        b'"x"',
        b'{"choices":[1]}',
        b'{"choices":{"a":1}}',
        b'{"choices":[{"delta":1}]}',
        b'{"type":"message_delta","usage":[1]}',
        b'{"type":"content_block_delta","delta":[1]}',
        b'{"usage":[1]}',
        b'{"choices":1}',
        b"\xff",
        b'"\xff"',
        b"[" * 100_000,
    ],
)
def test_other_json_is_no_completion(data: bytes) -> None:
    """Whatever its shape, it ends in one kind of error."""
    with pytest.raises(NotACompletion, match="an event is"):
        read_event(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"delta":{"content":"\\ud83d"}}]}',
        b'{"choices":[{"delta":{"content":"\\ude00 x"}}]}',
        b'{"choices":[{"delta":{"content":"a\xf0\x9f"}}]}',
        b'{"choices":[{"delta":{"content":"\xed\xa0\xbd"}}]}',
        b'{"choices":[{"delta":{"content":"a"},"logprobs":{"x":NaN,"y":-Infinity}}]}',
    ],
)
def test_broken_text_is_text(data: bytes) -> None:
    """As clients decode it: what cannot be read is replaced, and the token counts."""
    assert read_event(data) == Chunk(True, True)
    assert read_event(data.replace(b"delta", b"x").replace(b"content", b"text")) == Chunk(
        silent=True
    )


def test_a_broken_reason_can_be_recorded() -> None:
    """Half a surrogate pair in it would end the decoder."""
    assert read_event(b'{"choices":[{"text":"","finish_reason":"a\\ud83d"}]}').finish_reason == "a"


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b'{"code": 503, "details": "overloaded"}', "overloaded"),
        (b"overloaded", "overloaded"),
        (b'{"text": "No model spec selected"}', "No model spec selected"),
        (b'{"choices":[{"delta":{"content":"a"}}]}', NO_WORDS),
        (b"[DONE", "[DONE"),
    ],
)
def test_an_event_named_error(data: bytes, want: str) -> None:
    """Whatever its data say, it is one."""
    assert read_event(NamedError(data)) == Chunk(error=want)


class Counted(str):  # noqa: SLOT000 - a count of its class
    """A text that counts how many of its characters are looked at one by one."""

    looked_at = 0

    def __getitem__(self, place: Any) -> Counted:
        """A slice is a text of its own, and cheap."""
        return Counted(super().__getitem__(place))

    def split(self, *_: Any) -> list[str]:
        """All of it is looked at."""
        Counted.looked_at += len(self)
        return super().split()


def test_a_servers_message_is_cut_before_it_is_cleaned() -> None:
    """Servers send megabytes with each failure: the work is bounded by what is shown."""
    for text in ("x\n " * 100_000, "\x1b[2J" * 100_000, " " * 100_000):
        Counted.looked_at = 0
        assert len(one_line(Counted(text), 200)) <= 203
        assert Counted.looked_at == 800


def test_a_servers_message_is_short() -> None:
    """At most 200 characters: it may quote the prompt."""
    assert error_message({"message": "x" * 300}) == "x" * 200
