"""Streams of the further APIs, as vLLM 0.32 sent them: from sockets to records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from reader_cases import case, send, wire_server
from wire_examples import chunk, event

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("each_reader")
RECORDED = Path(__file__).with_name("data") / "api_streams"
LAST_CHUNK = b"0\r\n\r\n"
# the events of each that carry tokens: a merged delta of /v1/responses does not say how many it has
TOKENS = {"messages": [1, 1, 1, 1], "responses": [1, 1, 1, 1], "generate": [1, 1, 1, 1]}
PROMPT = {"messages": 35, "responses": 35, "generate": 3}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server that does as it is told."""
    with wire_server() as port:
        yield port


def recorded(api: str) -> bytes:
    """The whole answer, head and chunks."""
    return (RECORDED / f"{api}.http").read_bytes()


@pytest.mark.parametrize("api", TOKENS)
@pytest.mark.parametrize("size", [1 << 20, 700, 61])
def test_a_recorded_stream(api: str, size: int, port: int) -> None:
    """Tokens, counts and the end are found however the bytes are cut."""
    data = recorded(api)
    script = send(*(data[i : i + size] for i in range(0, len(data), size)))
    with case(port) as it:
        exchange, record = it.one(script)
    assert exchange.outcome.value == "ok"
    assert record.outcome.value == "ok"
    assert record.error == ""
    assert list(record.tokens) == TOKENS[api]
    assert record.prompt_tokens == PROMPT[api]
    assert record.output_tokens == 4
    assert record.finish_reason == "length"
    assert record.answer_index == 0


@pytest.mark.parametrize("api", TOKENS)
@pytest.mark.parametrize("failure", ["cut", "error"])
def test_one_that_breaks_off(api: str, failure: str, port: int) -> None:
    """Without its last event it is truncated; an error object amid it is the server's failure."""
    head, *chunks = recorded(api).removesuffix(LAST_CHUNK).split(b"\n\n\r\n")[:-2]
    said = chunk(event({"type": "error", "error": {"type": "x", "message": "out of room"}}))
    data = b"".join(piece + b"\n\n\r\n" for piece in (head, *chunks))
    if failure == "error":
        data += said
    with case(port) as it:
        exchange, record = it.one(send(data + LAST_CHUNK))
    if failure == "error":
        assert record.outcome.value == "status"
        assert record.error == "out of room"
    else:
        assert record.outcome.value == "truncated"
        assert record.error == "the stream ended without [DONE]"
    assert exchange.outcome is record.outcome
