"""What the user is told at once agrees with the record, which is read from every event later."""

from __future__ import annotations

from collections import deque

import pytest
from wire_examples import ASKED, EVENTS, HEAD, cuts, delta, event

from harness.reader.open_stream import KEPT, SHORT, Stream
from harness.records.request_record import Outcome
from harness.wire.decode import StreamDecoder
from harness.wire.sse import EVENT_ENDS, MAX_EVENT_BYTES, TOO_LONG

DONE = event(b"[DONE]")
TOKEN = event(delta(content="x" * SHORT))
FAILED = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
QUOTED = event(delta(content='{"error": {"message": "so it is written"}} [DONE]'))
NAMED = b'event: error\ndata: {"code": 503, "details": "overloaded"}\n\n'
ABORTED = "the server broke the answer off (finish_reason abort)"
STRANGER = "the stream ended by an object that is no part of a completion"
USED = EVENTS[-2]
NOTHING = event({"error": None, "choices": [{"index": 0, "delta": {"content": "x"}}]})

BODIES = {
    "good": ([*EVENTS], "ok", ""),
    "no [DONE]": ([*EVENTS[:-1]], "truncated", "the stream ended without [DONE]"),
    "error, [DONE]": ([TOKEN, FAILED, DONE], "status", "EngineCore encountered an issue."),
    "error at first": ([FAILED, DONE], "status", "EngineCore encountered an issue."),
    "error, no [DONE]": ([TOKEN, FAILED], "status", "EngineCore encountered an issue."),
    "in plain words": ([event({"error": "no room"}), DONE], "status", "no room"),
    "only quoted": ([QUOTED, DONE], "ok", ""),
    "[DONE] only quoted": ([TOKEN, QUOTED], "truncated", "the stream ended without [DONE]"),
    "error: null": ([NOTHING, TOKEN, DONE], "ok", ""),
    "detail": ([TOKEN, event({"detail": "no room"}), DONE], "status", "no room"),
    "event: error": ([TOKEN, NAMED, DONE], "status", "overloaded"),
    "event: error at first": ([NAMED, DONE], "status", "overloaded"),
    "event: error in words": ([TOKEN, b"event: error\ndata: gone\n\n"], "status", "gone"),
    "aborted": ([TOKEN, event(delta(content="", finish="abort")), DONE], "status", ABORTED),
    "broken off": (
        [TOKEN, event(delta(content="x", finish="error")), USED, DONE],
        "status",
        "the server broke the answer off (finish_reason error)",
    ),
    "stopped": ([TOKEN, event(delta(content="", finish="stop")), USED, DONE], "ok", ""),
    "a stranger at last": ([TOKEN, event({"some": 1}), USED, DONE], "protocol", STRANGER),
    "a stranger amid": ([event({"some": 1}), TOKEN, TOKEN, DONE], "ok", ""),
    "nothing": ([DONE], "protocol", "the stream ended without a token or a reason"),
    "nothing but a role": ([EVENTS[0], DONE], "ok", ""),
    "no token, but a count": ([USED, DONE], "ok", ""),
    "heartbeats": ([b"data:\n\n", TOKEN, b"data: \n\n", TOKEN, b"data:\n\n", DONE], "ok", ""),
    "empty objects": ([TOKEN, event({}), DONE], "ok", ""),
    "no UTF-8": ([TOKEN, TOKEN.replace(b"xx", b"\xff\xf0\x9f"), DONE], "ok", ""),
    "half a pair": ([TOKEN.replace(b"xx", b"\\ud83d"), TOKEN, DONE], "ok", ""),
    "[DONE] without an empty line": ([TOKEN, b"data: [DONE]\n"], "ok", ""),
    "[DONE] without a line end": ([TOKEN, b"data: [DONE]"], "ok", ""),
    "an error without a line end": ([TOKEN, FAILED.rstrip()], "status", "EngineCore"),
    "half an event at last": ([TOKEN, b'data: {"choices":[{"ind'], "truncated", "the stream ended"),
    "JSON without a stream": (
        [b'{"error":{"message":"is loading"}}'],
        "protocol",
        "the server answered without a stream: is loading",
    ),
    "after many tokens": ([*[TOKEN] * 50, FAILED, DONE], "status", "EngineCore encountered an"),
}


def told(pieces: list[bytes], ended: Outcome | None, head: bytes = HEAD) -> tuple[Stream, str, str]:
    """What the user hears of a body in these reads."""
    stream = Stream(0)
    stream.response.feed(head)
    for piece in pieces:
        stream.keep(piece, 1)
    stream.end(ended, "the server closed the connection" if ended else "", 1)
    said = stream.exchange()
    return stream, said.outcome.value, said.error


def recorded(
    pieces: list[bytes], ended: Outcome | None, kind: str = "text/event-stream"
) -> tuple[str, str]:
    """What the record says of them."""
    decoder = StreamDecoder(ASKED)
    decoder.head(200, 1, kind)
    for piece in pieces:
        decoder.feed(piece, 2, 1, 0)
    record = decoder.end(ended, "the server closed the connection" if ended else "", 3)
    return record.outcome.value, record.error


@pytest.mark.parametrize("name", BODIES)
def test_agreed(name: str) -> None:
    """One read for each event: a failure is one for Locust's statistics as for the record."""
    events, outcome, error = BODIES[name]
    _, got, why = told(events, None)
    assert got == outcome
    assert why[: len(error)] == error
    assert (got, why) == recorded(events, None)


@pytest.mark.parametrize("name", BODIES)
def test_agreed_at_any_cut(name: str) -> None:
    """Bytes may be cut anywhere: in two, or each alone."""
    whole = b"".join(BODIES[name][0][-4:])
    for pieces in cuts(whole):
        assert told(pieces, None)[1:] == recorded(pieces, None)


@pytest.mark.parametrize(
    ("kind", "body", "want"),
    [
        ("application/json", b'{"error":{"message":"model is loading"}}', ": model is loading"),
        ("application/json", b'{"detail":"Not ready"}', ": Not ready"),
        ("application/json", b'{"choices":[{"message":{"content":"a whole answer"}}]}', ""),
        ("text/plain", b"no  healthy\nupstream", ": no healthy upstream"),
        ("text/html", b"<html><body>Bad gateway</body></html>", ""),
    ],
)
def test_the_words_of_what_is_no_stream(kind: str, body: bytes, want: str) -> None:
    """A server that answers 200 with an error is quoted; an answer in one piece is not."""
    error = f"the server answered {kind}, not text/event-stream{want}"
    head = HEAD.replace(b"text/event-stream", kind.encode())
    want = ("protocol", error)
    assert told([body], None, head)[1:] == want
    assert recorded([body], None, kind) == want


@pytest.mark.parametrize("events", [[TOKEN], [TOKEN, FAILED], [TOKEN, DONE]])
@pytest.mark.parametrize("ended", [Outcome.truncated, Outcome.timeout, Outcome.cancelled])
def test_agreed_when_cut_off(events: list[bytes], ended: Outcome) -> None:
    """A connection that breaks after an error object failed for the object's reason."""
    assert told(events, ended)[1:] == recorded(events, ended)


@pytest.mark.parametrize("end", EVENT_ENDS)
def test_ends_of_events_cut_anywhere_are_seen(end: bytes) -> None:
    """A long stream whose events end in two reads has no event that is too long."""
    stream = Stream(0)
    stream.response.feed(HEAD)
    for n in range(3 * MAX_EVENT_BYTES // 60_000):
        cut = n % len(end)
        for piece in (b"x" * 60_000 + end[:cut], end[cut:]):
            stream.keep(piece, 1)
        assert stream.open_bytes <= 60_000 + len(end)
        assert stream.problem == ""
    for _ in range(20):
        stream.keep(b"x" * 60_000, 1)
    assert stream.problem == TOO_LONG


def test_little_is_kept() -> None:
    """A long stream leaves only its last reads in memory."""
    pieces = [event(delta(content=f"{n:0{SHORT}}")) for n in range(1000)]
    assert told(pieces, None)[0].latest == deque(pieces[-KEPT:])


@pytest.mark.parametrize("size", [7, 61, 300, 4096])
def test_a_long_last_event_in_small_reads(size: int) -> None:
    """The responses API repeats the request in its last event, 1.3 kB, and there is no [DONE]."""
    last = {"type": "response.completed", "response": {"instructions": "x" * 1200}}
    body = event({"type": "response.output_text.delta", "delta": "x"}) * 20 + event(last)
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    assert told(pieces, None)[1:] == ("ok", "")
