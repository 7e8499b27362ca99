"""Bodies into records."""

from __future__ import annotations

from typing import Any

import pytest
from wire_examples import ASKED, EVENTS, cuts, delta, event

from harness.records.request_record import Outcome, RequestRecord, ns_array
from harness.wire.decode import StreamDecoder
from harness.wire.sse import EVENT_STREAM

BODY = b"".join(EVENTS)


def decode(
    pieces: list[bytes], status: int = 200, kind: str = EVENT_STREAM, *, exact: bool = True
) -> RequestRecord:
    """Piece i comes at 10 (i + 1), not before 10 i + 5."""
    decoder = StreamDecoder(ASKED)
    decoder.head(status, 9, kind)
    for i, piece in enumerate(pieces):
        decoder.feed(piece, 10 * i + 10, 10 * i + 5, exact)
    return decoder.end(None, "", 99)


def test_a_stream_event_by_event() -> None:
    """The role, usage and [DONE] events are no tokens; the answer begins with the second token."""
    got = decode(EVENTS)
    assert got == RequestRecord(
        worker=0,
        number=7,
        user=3,
        sent_ns=1_000,
        done_ns=99,
        outcome=Outcome.ok,
        head_ns=9,
        first_event_ns=10,
        status=200,
        finish_reason="length",
        planned_tokens=4,
        prompt_tokens=9,
        output_tokens=4,
        cached_tokens=5,
        answer_index=1,
        events_before=1,
        silent_events=0,
        last_silent_ns=10,
        at_ns=ns_array([20, 30, 40]),
        not_before_ns=ns_array([20, 30, 40]),
        tokens=ns_array([1, 1, 2]),
    )


TOKEN = event(delta(content="a"))
EMPTY = event(delta(content=""))


@pytest.mark.parametrize(
    ("pieces", "before", "after", "last_ns"),
    [
        ([TOKEN, TOKEN], 0, 0, -1),
        ([EVENTS[0], TOKEN, TOKEN], 1, 0, 10),  # the role
        ([EMPTY, EMPTY, TOKEN, EMPTY, TOKEN], 2, 1, 40),  # half a character each
        ([TOKEN, event(delta(content="", finish="length")), EVENTS[4]], 0, 1, 20),  # not the usage
    ],
)
def test_choices_without_a_token_are_counted(
    pieces: list[bytes], before: int, after: int, last_ns: int
) -> None:
    """Other tools take them for tokens: how many there were, and when the last one came."""
    got = decode([*pieces, EVENTS[-1]])
    assert got.events_before == before
    assert got.silent_events == after
    assert got.last_silent_ns == last_ns


@pytest.mark.parametrize(
    ("pieces", "exact", "at", "low"),
    [
        ([BODY], True, [10, 10, 10], [5, 5, 5]),  # all in one read: none ends it
        ([b"".join(EVENTS[:2]), b"".join(EVENTS[2:])], True, [10, 20, 20], [10, 15, 15]),
        (EVENTS, False, [20, 30, 40], [15, 25, 35]),  # not drained
        ([EVENTS[1][:9], EVENTS[1][9:]], True, [20], [20]),  # when its last byte came
        ([EVENTS[1] + EVENTS[2]], True, [10, 10], [5, 10]),  # the first ended before the read
    ],
)
def test_only_the_event_that_ends_a_drained_read_is_exact(
    pieces: list[bytes], exact: bool, at: list[int], low: list[int]
) -> None:
    """All others lie between the read's bound and its stamp."""
    got = decode(pieces, exact=exact)
    assert got.at_ns.tolist() == at
    assert got.not_before_ns.tolist() == low


def test_tokens_at_every_cut() -> None:
    """The same tokens, counts and outcome wherever the body is cut."""
    for pieces in cuts(BODY):
        got = decode(pieces)
        assert got.outcome == Outcome.ok
        assert got.tokens.tolist() == [1, 1, 2]
        assert got.answer_index == 1


@pytest.mark.parametrize(
    ("pieces", "status", "kind", "outcome", "error", "tokens"),
    [
        ([TOKEN], 200, EVENT_STREAM, "truncated", "the stream ended without [DONE]", 1),
        (
            [TOKEN, event({"error": {"message": "died"}}), event(b"[DONE]")],
            200,
            EVENT_STREAM,
            "status",
            "died",
            1,
        ),
        ([TOKEN, event(b"{nonsense")], 200, EVENT_STREAM, "protocol", "an event is not JSON: ", 1),
        (
            [TOKEN, event([1])],
            200,
            EVENT_STREAM,
            "protocol",
            "an event is JSON, but not that of a completion",
            1,
        ),
        (
            [b'{"choices":[]}'],
            200,
            "application/json",
            "protocol",
            "the server answered application/json, not text/event-stream",
            0,
        ),
        ([b'{"error":{"message":"full"}}'], 503, "application/json", "status", "HTTP 503: full", 0),
        ([b"Bad ", b"Gateway"], 502, "text/plain", "status", "HTTP 502: Bad Gateway", 0),
        ([], 401, "", "status", "HTTP 401", 0),
        ([], 200, EVENT_STREAM, "truncated", "the stream ended without [DONE]", 0),
    ],
)
def test_outcomes(
    pieces: list[bytes], status: int, kind: str, outcome: str, error: str, tokens: int
) -> None:
    """How a response ended, by its content; what came before counts."""
    got = decode(pieces, status, kind)
    assert got.outcome.value == outcome
    assert got.error[: len(error)] == error
    assert len(got.at_ns) == tokens


def test_parts_join_to_the_whole() -> None:
    """Cut at every event; what was told in a part is whole in the record."""
    want = decode(EVENTS)
    for i in range(len(EVENTS) + 1):
        decoder = StreamDecoder(ASKED)
        decoder.head(200, 9, EVENT_STREAM)
        for k in range(i):
            decoder.feed(EVENTS[k], 10 * k + 10, 10 * k + 5, 1)
        part = decoder.part(50)
        for k in range(i, len(EVENTS)):
            decoder.feed(EVENTS[k], 10 * k + 10, 10 * k + 5, 1)
        new = decoder.new_events
        assert part.outcome == Outcome.open
        assert decoder.end(None, "", 99) == want
        assert len(part.at_ns) + new == len(want.at_ns)
        assert decoder.part(60).at_ns == want.at_ns[len(part.at_ns) :]


def test_token_counts_by_ids_and_else_one() -> None:
    """Without usage the ids count; without either an event is one token."""
    plain = event({"choices": [{"text": "ab"}]})
    ids = event({"choices": [{"text": "ab", "token_ids": [1, 2]}]})
    assert decode([plain, ids]).tokens.tolist() == [1, 2]


LAST = EVENTS[-1]


COUNTED = [event(delta(content="a", usage=n)) for n in (1, 5)]
THOUGHT = event(delta(reasoning="a"))


def used(tokens: int, thought: int | None = None) -> bytes:
    """The event with the final count."""
    usage: dict[str, Any] = {"completion_tokens": tokens, "prompt_tokens": 9}
    if thought is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": thought}
    return event({"choices": [], "usage": usage})


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        ([TOKEN, TOKEN, TOKEN, used(8), LAST], [2, 3, 3]),  # three tokens an event: (40 - 10) / 6
        ([TOKEN, TOKEN, TOKEN, used(4), LAST], [1, 1, 2]),  # an end token has no event
        ([TOKEN, TOKEN, TOKEN, used(3), LAST], [1, 1, 1]),
        ([TOKEN, TOKEN, TOKEN, used(2), LAST], [1, 1, 1]),  # more events than tokens: left alone
        ([TOKEN, TOKEN, TOKEN, LAST], [1, 1, 1]),
        # with the last token, as TGI counts them
        ([TOKEN, TOKEN, event(delta(content="a", usage=9)), LAST], [3, 3, 3]),
        ([TOKEN, TOKEN, event(delta(content="a", usage=3)), LAST], [1, 1, 1]),
        # one that does not say amid others that do
        ([COUNTED[0], TOKEN, COUNTED[1], used(5), LAST], [1, 1, 3]),
        ([event({"choices": [{"text": "ab", "token_ids": [1, 2]}]}), used(5), LAST], [2]),
        ([used(5), LAST], []),
        ([TOKEN, TOKEN, used(106, thought=100), LAST], [3, 3]),  # its reasoning did not come
        ([THOUGHT, TOKEN, used(106, thought=100), LAST], [53, 53]),
    ],
)
def test_a_final_count_is_spread_over_the_events(pieces: list[bytes], want: list[int]) -> None:
    """Where no event says how many tokens it has, the last one says how many there were."""
    assert decode(pieces).tokens.tolist() == want


def test_tokens_that_the_reader_matched_are_counted_by_the_end() -> None:
    """They come as rows, without a running count."""
    decoder = StreamDecoder(ASKED)
    times = memoryview(ns_array([10, 20])).cast("B")
    decoder.head(200, 9, EVENT_STREAM)
    decoder.tokens(times, times, [-1, -1], True, 2)
    decoder.feed(used(6) + LAST, 30, 30, 1)
    assert decoder.end(None, "", 40).tokens.tolist() == [3, 3]


def test_a_heartbeat_is_no_event() -> None:
    """Empty data are neither the stream's first event nor a token."""
    got = decode([b"data:\n\n", TOKEN, b"data:\n\n", TOKEN, LAST])
    assert got.outcome == Outcome.ok
    assert got.first_event_ns == 20
    assert got.at_ns.tolist() == [20, 40]


def test_the_last_event_without_its_empty_line() -> None:
    """It counts, and may have come any time after the one before it."""
    last = event(delta(content="a", finish="length")).rstrip()
    got = decode([TOKEN, last, b""])
    assert got.outcome == Outcome.truncated
    assert got.finish_reason == "length"
    assert got.at_ns.tolist() == [10, 99]
    assert got.not_before_ns.tolist() == [10, 10]
