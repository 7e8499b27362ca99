"""Sessions as they are planned: what their prompts hold, when they end, who begins where."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import accumulate, pairwise
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from harness.errors import ConfigError
from harness.load.conversations import (
    Talk,
    joined_at,
    parse_history,
    planned_tools,
    session_turns,
    think_ns,
)
from harness.load.lengths import Lengths
from harness.load.workloads import WORKLOADS, Conversation, Workload
from harness.senders.drive_options import DriveOptions, request_body
from harness.senders.driver import Driver
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.load.plan import RequestSpec

CHAT = WORKLOADS["conversation"]
FIVE = replace(
    CHAT,
    prompt=Lengths("fixed", 10),
    output=Lengths("fixed", 30),
    conversation=Conversation(Lengths("fixed", 5)),
)


def policy(workload: Workload, **changes: object) -> Workload:
    """The same with another history, budget, ..."""
    assert workload.conversation is not None
    return replace(workload, conversation=replace(workload.conversation, **changes))  # type: ignore[arg-type]


def whole_session(workload: Workload, user: int = 3, **options: object) -> list[RequestSpec]:
    """The first session of a user that is not joined mid-way."""
    talk = Talk(workload, 1, user, **options)  # type: ignore[arg-type]
    talk.next_spec(0)
    talk.ended("", ok=False)
    specs: list[RequestSpec] = []
    while True:
        spec = talk.next_spec(0)
        if specs and spec.session != specs[0].session:
            return specs
        specs.append(spec)
        talk.ended("", ok=True)


def place(spec: RequestSpec) -> tuple[int, int]:
    """Its session and turn."""
    return spec.session, spec.turn


def texts(spec: RequestSpec) -> list[str]:
    """The contents of its messages."""
    return [str(message["content"]) for message in spec.messages]


def test_a_turn_depends_on_its_key_alone() -> None:
    """Lengths on seed, user and session; words on the run as well; never on the process."""
    want = whole_session(CHAT, run_id="a")
    assert whole_session(CHAT, run_id="a") == want
    other = whole_session(CHAT, run_id="b")
    assert list(map(without_words, other)) == list(map(without_words, want))
    assert not {*texts(other[-1])} & {*texts(want[-1])}
    assert whole_session(CHAT, user=4, run_id="a") != want
    alone = bodies(1)
    assert len(alone) == 48
    assert bodies(2) == alone
    assert bodies(3) == alone


def without_words(spec: RequestSpec) -> tuple[object, ...]:
    """The fields that do not depend on the run."""
    return spec[1:3] + spec[7:]


def bodies(processes: int) -> dict[tuple[int, int, int], object]:
    """By (user, session, turn): of six users' first eight requests each."""
    found: dict[tuple[int, int, int], object] = {}
    options = DriveOptions("http://127.0.0.1:9", "m", CHAT, processes=processes, run_id="r")
    for worker in range(processes):
        driver = Driver(options, worker)
        for user in (driver.new_user() for _ in range(6 // processes)):
            for _ in range(8):
                spec = driver.next_spec(user)
                assert spec is not None
                key = user, spec.session, spec.turn
                found[key] = request_body(options, "chat", spec), spec.think_ns
                driver._talks[user].ended("", ok=True)  # noqa: SLF001 - without a server
    return found


def test_a_prompt_begins_with_the_one_before() -> None:
    """Within a session; two sessions share nothing, from their first words on."""
    specs = whole_session(CHAT)
    assert [len(s.messages) for s in specs] == [2 * n + 1 for n in range(len(specs))]
    for before, after in pairwise(specs):
        assert texts(after)[: len(texts(before))] == texts(before)
    roles = [message["role"] for message in specs[-1].messages]
    assert roles == (["user", "assistant"] * len(specs))[:-1]
    heads = set()
    for user in range(200):
        first = whole_session(CHAT, user)[0]
        heads.add(" ".join(texts(first)[0].split()[:8]))
    assert len(heads) == 200


@pytest.mark.parametrize(
    ("changes", "context", "want"),
    [
        # (first turn held, tokens of the prompt, of them new) by turn: 10 in, 30 out
        ({}, 0, [(0, 10, -1), (0, 50, 40), (0, 90, 40), (0, 130, 40), (0, 170, 40)]),
        (
            {"history": "last:2"},
            0,
            [(0, 10, -1), (0, 50, 40), (0, 90, 40), (1, 90, -1), (2, 90, -1)],
        ),
        (
            {"history": "budget:60"},
            0,
            [(0, 10, -1), (0, 50, 40), (1, 50, -1), (2, 50, -1), (3, 50, -1)],
        ),
        # 40 + 80 + 120 = 240 tokens of prompts and answers
        ({"session_budget": 240}, 0, [(0, 10, -1), (0, 50, 40), (0, 90, 40)]),
        ({"session_budget": 239}, 0, [(0, 10, -1), (0, 50, 40)]),
        ({}, 125, [(0, 10, -1), (0, 50, 40), (0, 90, 40)]),  # 2% of the context are kept free
        ({"turns": Lengths("fixed", 1)}, 0, [(0, 10, -1)]),
    ],
)
def test_what_a_prompt_holds_and_when_a_session_ends(
    changes: dict[str, object], context: int, want: list[tuple[int, int, int]]
) -> None:
    """By policy, by the session's budget, and by the model's context."""
    workload = replace(policy(FIVE, **changes), max_model_len=context)
    turns = session_turns(workload, 1, 3, 7)
    specs = whole_session(workload)
    assert [(t.first, t.prompt) for t in turns] == [row[:2] for row in want]
    assert [(s.prompt_tokens, s.new_tokens) for s in specs] == [row[1:] for row in want]
    words = [sum(len(text.split()) for text in texts(spec)) for spec in specs]
    assert words == [spec.prompt_tokens for spec in specs]


def test_a_budget_is_never_exceeded() -> None:
    """Nor is it left unused: the next turn would not have fitted, or there was none."""
    limited = policy(CHAT, session_budget=3000)
    for user in range(100):
        whole = session_turns(CHAT, 1, user, 0)
        cut = session_turns(limited, 1, user, 0)
        spent = list(accumulate(turn.prompt + turn.output for turn in whole))
        assert len(cut) == sum(tokens <= 3000 for tokens in spent)


@pytest.mark.parametrize("turns", [Lengths("fixed", 5), Lengths("lognormal", 6, 0.5)])
def test_users_begin_mid_way(turns: Lengths) -> None:
    """At turn k as often as k+1 or more turns are met among requests of users long at work."""
    workload = policy(CHAT, turns=turns)
    n = 3000
    lengths = [len(session_turns(workload, 2, user, 0)) for user in range(n)]
    joined = Counter(joined_at(workload, 2, user)[1] for user in range(n))
    for turn in range(5):
        want = sum(length > turn for length in lengths) / sum(lengths)
        assert joined[turn] / n == pytest.approx(want, abs=0.03)


def test_real_replies_become_history() -> None:
    """The text that was answered; an empty answer leaves what was planned."""
    talk = Talk(FIVE, 1, 3)
    talk.next_spec(0)
    talk.ended("", ok=False)
    first = talk.next_spec(0)
    talk.ended("Yes, and no.", ok=True)
    second = talk.next_spec(0)
    talk.ended("", ok=True)
    third = talk.next_spec(0)
    assert texts(second)[:2] == [texts(first)[0], "Yes, and no."]
    assert texts(third)[:3] == texts(second)
    assert len(texts(third)[3].split()) == 30


@pytest.mark.parametrize(
    ("ok", "now_s", "want"),
    [(True, 0, (1, 1)), (True, 60, (1, 1)), (True, 61, (2, 0)), (False, 0, (2, 0))],
)
def test_a_failure_and_a_timeout_end_a_session(ok: bool, now_s: int, want: tuple[int, int]) -> None:
    """The next request begins the next session."""
    talk = Talk(policy(FIVE, session_timeout=60 * SECOND), 1, 3)
    talk.next_spec(0)
    talk.ended("", ok=False)
    assert place(talk.next_spec(0)) == (1, 0)
    talk.ended("", ok=ok)
    assert place(talk.next_spec(now_s * SECOND)) == want


def test_think_time() -> None:
    """Its mean and its key; without one there is none."""
    two_s = replace(CHAT, think_ms=Lengths("lognormal", 2000, 0.5))
    drawn = [think_ns(two_s, 1, user, 0) for user in range(2000)]
    assert fmean(drawn) == pytest.approx(2 * SECOND, rel=0.03)
    assert drawn[7] == think_ns(two_s, 1, 7, 0)
    assert think_ns(replace(CHAT, think_ms=Lengths("fixed", 40)), 1, 3) == 40 * MS
    assert think_ns(WORKLOADS["chat"], 1, 3) == -1


def test_tools_are_the_same_for_all() -> None:
    """Named functions with a description and a schema."""
    three = planned_tools(3)
    assert [tool["function"]["name"] for tool in three] == ["tool_0", "tool_1", "tool_2"]
    assert len({tool["function"]["description"] for tool in three}) == 3
    assert planned_tools(2) == three[:2]
    assert whole_session(policy(CHAT, tools=2))[0].tools == three[:2]


@pytest.mark.parametrize("text", ["full", "last:4", "budget:2048"])
def test_policies(text: str) -> None:
    """As they are written."""
    assert parse_history(text) == text


@pytest.mark.parametrize("text", ["", "last", "last:0", "last:-1", "budget:x", "none:3", "full:1"])
def test_unknown_policies_are_refused(text: str) -> None:
    """With what would be accepted."""
    with pytest.raises(ConfigError, match="expected full, last:K"):
        parse_history(text)


def test_options_travel_as_json() -> None:
    """Think time and sessions, or neither."""
    for workload in (CHAT, WORKLOADS["agent"], WORKLOADS["chat"]):
        options = DriveOptions("http://127.0.0.1:9", "m", workload)
        assert DriveOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
