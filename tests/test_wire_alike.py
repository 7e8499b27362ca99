"""Tokens known by their likeness: never anything that reading the JSON would not say."""

from __future__ import annotations

import orjson
import pytest
from wire_examples import ROLE, delta

from harness.wire.openai import read_event
from harness.wire.token_template import NO_MATCH, TokenTemplate

WORDS = [
    "a",
    " ",
    "\u20ac\u2028",
    'a "quoted" word',
    "back\\slash",
    "end\\",
    '"',
    '"content":"x"',
    "",
]


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize("chat", [True, False])
def test_a_token_like_one_before_says_the_same(usage: bool, chat: bool) -> None:
    """Whatever was learnt from one event is true of all others, or not applied to them."""
    events = []
    for n, word in enumerate(WORDS * 2):
        body = delta(content=word) if chat else {"choices": [{"index": 0, "text": word}]}
        if usage:
            body["usage"] = {"prompt_tokens": 9, "total_tokens": 9 + n, "completion_tokens": n}
            body["choices"][0] |= {"logprobs": None, "token_ids": None}  # vLLM 0.32
        events += [orjson.dumps(body | {"id": "x"}), orjson.dumps(body | {"id": "y"})]
    events += [orjson.dumps(delta(content="a", finish="stop")), orjson.dumps(ROLE), b"{", b"[DONE]"]
    known = 0
    for taught in events[:-2]:
        alike = TokenTemplate()
        for _ in range(2):  # nothing is learned from a stream's first token
            assert alike.match(taught) == NO_MATCH
            alike.learn(taught, read_event(taught))
        for data in events:
            count = alike.match(data)
            if count != NO_MATCH:
                known += 1
                got = read_event(data)
                assert got[:4] == (True, True, -1, count)
                assert got.finish_reason == ""
                assert got.error == ""
                assert got.cached_tokens == -1
    assert known > 100


def test_streams_whose_events_are_all_different_are_given_up() -> None:
    """Learning costs more than reading."""
    alike = TokenTemplate()
    for n in range(10):
        data = orjson.dumps(delta(content="a") | {"nonce": f"{n}"})
        assert alike.match(data) == NO_MATCH
        alike.learn(data, read_event(data))
    assert alike.match(orjson.dumps(delta(content="b") | {"nonce": "4"})) == -1
    assert alike.match(orjson.dumps(delta(content="b") | {"nonce": "9"})) == NO_MATCH
