"""The embedded engine's answers against vLLM's framing, on real sockets."""

from __future__ import annotations

import socket
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pytest
from engine_client import MODEL, QUICK, ask, events_of

from harness.engine.client_socket import Client
from harness.engine.completion import SendLog, TokenSender
from harness.engine.process import start_engine
from harness.engine.responses import StreamRenderer
from harness.wire.http import Response

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "one two three"}]
# a message is 3 words and 3 tokens of template around them, and 2 open the answer
PROMPT = {CHAT: 8, COMPLETIONS: 3}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """An engine."""
    with start_engine(QUICK) as engine:
        yield engine.url


def body(path: str, **more: Any) -> dict[str, Any]:
    """A request."""
    asked = {"messages": MESSAGES} if path == CHAT else {"prompt": "one two three"}
    return {"model": MODEL, **asked, **more}


def usage(path: str, tokens: int) -> dict[str, int]:
    """What every usage object says of `tokens` tokens."""
    prompt = PROMPT[path]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
    }


def shape(events: list[Any]) -> list[Any]:
    """A stream in short: text, finish reason, and completion tokens of the usage."""
    out: list[Any] = []
    for event in events:
        if event == "[DONE]":
            out.append(event)
            continue
        counted = event["usage"]["completion_tokens"] if "usage" in event else None
        if not event["choices"]:
            out.append(("usage", counted))
            continue
        choice = event["choices"][0]
        delta = choice.get("delta", choice)
        text = delta.get("content", delta.get("text"))
        out.append((delta.get("role"), text, choice["finish_reason"], counted))
    return out


PLAIN = {"max_tokens": 3}
USAGE = {**PLAIN, "stream_options": {"include_usage": True}}
EACH = {**PLAIN, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
EACH_ONLY = {**PLAIN, "stream_options": {"continuous_usage_stats": True}}
NEW_NAME = {"max_completion_tokens": 3}
LENIENT = {
    **PLAIN,
    "min_tokens": 3,
    "ignore_eos": True,
    "stop": ["x"],
    "temperature": 0.0,
    "n": 1,
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("options", "each", "at_end"),
    [
        (PLAIN, False, False),
        (NEW_NAME, False, False),
        (LENIENT, False, False),
        (USAGE, False, True),
        (EACH, True, True),
        (EACH_ONLY, False, False),  # vLLM gives it only with include_usage
    ],
)
def test_streams(path: str, options: dict[str, Any], each: bool, at_end: bool, url: str) -> None:
    """Role, tokens, the finish reason with the last one, usage without choices, [DONE].

    A machine that is late merges tokens, so events are compared by what they carry together.
    """
    got = ask(url, path, body(path, stream=True, **options))
    rows = shape(got.events)
    assert rows.pop() == "[DONE]"
    if at_end:
        assert rows.pop() == ("usage", 3)
    if path == CHAT:
        assert rows.pop(0) == ("assistant", "", None, 0 if each else None)
    assert "".join(row[1] for row in rows) == " tok" * 3
    *earlier, last = [row[2] for row in rows]
    assert earlier == [None] * (len(rows) - 1)
    assert last == "length"
    so_far = accumulate(row[1].count("tok") for row in rows)
    want = list(so_far) if each else [None] * len(rows)
    assert [row[3] for row in rows] == want
    assert got.status == 200
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_all_events_say(path: str, url: str) -> None:
    """Each event has the same id, model and object; each usage adds up."""
    *events, _ = ask(url, path, body(path, stream=True, **EACH)).events
    kind = "chat.completion.chunk" if path == CHAT else "text_completion"
    heads = {(event["id"], event["object"], event["model"]) for event in events}
    assert heads == {(events[0]["id"], kind, MODEL)}
    for event in events:
        counted = event["usage"]
        assert usage(path, counted["completion_tokens"]).items() <= counted.items()


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_whole_answers(path: str, url: str) -> None:
    """Without `stream` one JSON object with the text, the reason and the usage."""
    got = ask(url, path, body(path, max_tokens=4)).json
    choice = got["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert text == " tok" * 4
    assert choice["finish_reason"] == "length"
    assert usage(path, 4).items() <= got["usage"].items()
    assert got["object"] == ("chat.completion" if path == CHAT else "text_completion")


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("a b", 2), ([1, 2, 3], 3), ("x" * 20, 3), ("a" * 8, 1), ("a\nb\tc  d", 4)],
)
def test_prompts(prompt: object, tokens: int, url: str) -> None:
    """Text is cut into words and eights; token ids count as they are; /tokenize agrees."""
    asked = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
    assert ask(url, COMPLETIONS, asked).json["usage"]["prompt_tokens"] == tokens
    said = ask(url, "/tokenize", asked).json
    assert said["count"] == tokens
    assert len(said["tokens"]) == tokens
    assert said["max_model_len"] == 8192


def test_a_chat_tokenized(url: str) -> None:
    """/tokenize counts the template too."""
    said = ask(url, "/tokenize", {"messages": MESSAGES}).json
    assert said["count"] == PROMPT[CHAT]


@pytest.mark.parametrize(
    ("interval", "out", "want"),
    # `out`: tokens that come out between two looks of the front end
    [
        (1, [1, 1, 1, 1], [1, 1, 1, 1]),
        (1, [1, 3, 2], [1, 3, 2]),  # it lagged: merged
        (2, [1] * 6, [1, 2, 2, 1]),  # the first at once, then by twos, the rest with the last
        (4, [1] * 9, [1, 4, 4]),
        (4, [1], [1]),
        (8, [1] * 4, [1, 3]),
    ],
)
@pytest.mark.parametrize("chat", [True, False])
def test_merged_deltas(chat: bool, interval: int, out: list[int], want: list[int]) -> None:
    """An event of k tokens has the text of k, its usage counts them, and so does the oracle."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        frames = StreamRenderer(chat, "id", MODEL, 0, 5, include_usage=True, continuous=True)
        sends = SendLog("id", "", 0)
        queue: dict[TokenSender, None] = {}
        answering = TokenSender(
            Client(ours, lambda *_: None), frames, sends, queue, 0, stream=True, interval=interval
        )
        for index, tokens in enumerate(out):
            for k in range(tokens):
                answering.emitted(1, finished=index == len(out) - 1 and k == tokens - 1)
            for due in queue:
                assert due.send()
            queue.clear()
        parser = Response()
        rows = shape(events_of(parser.feed(theirs.recv(1 << 20))))
    assert parser.complete
    assert sends.tokens.tolist() == want  # the role came with the first
    assert counts(rows) == want


def counts(rows: list[Any]) -> list[int]:
    """Tokens of each event by its text; the usage beside them must say the same."""
    texts = [row for row in rows if len(row) == 4 and row[1]]
    each = [row[1].count("tok") for row in texts]
    assert [row[3] for row in texts] == list(accumulate(each))
    return each
