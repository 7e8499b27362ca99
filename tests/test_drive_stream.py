"""What the user is told at once agrees with the record, which is read from every event later."""

from __future__ import annotations

from collections import deque

import pytest
from wire_examples import ASKED, EVENTS, HEAD, cuts, delta, event

from harness.measure.records.request_record import Outcome
from harness.reader.open_stream import KEPT, SHORT, Stream
from harness.wire.decode import StreamDecoder
from harness.wire.sse import EVENT_ENDS, MAX_EVENT_BYTES, TOO_LONG

DONE = event(b"[DONE]")
TOKEN = event(delta(content="x" * SHORT))
FAILED = event({"error": {"message": "EngineCore encountered an issue.", "code": 500}})
QUOTED = event(delta(content='{"error": {"message": "so it is written"}} [DONE]'))
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
    "after many tokens": ([*[TOKEN] * 50, FAILED, DONE], "status", "EngineCore encountered an"),
}


def told(pieces: list[bytes], ended: Outcome | None) -> tuple[Stream, str, str]:
    """What the user hears of a body in these reads."""
    stream = Stream(0)
    stream.response.feed(HEAD)
    for piece in pieces:
        stream.keep(piece, 1)
    stream.end(ended, "the server closed the connection" if ended else "", 1)
    said = stream.exchange()
    return stream, said.outcome.value, said.error


def recorded(pieces: list[bytes], ended: Outcome | None) -> tuple[str, str]:
    """What the record says of them."""
    decoder = StreamDecoder(ASKED)
    decoder.head(200, 1, "text/event-stream")
    for piece in pieces:
        decoder.feed(piece, 2, 1, 0)
    record = decoder.end(ended, "the server closed the connection" if ended else "", 3)
    return record.outcome.value, record.error


@pytest.mark.parametrize("name", BODIES)
def test_agreed(name: str) -> None:
    """One read for each event: a failure is one for Locust's statistics as for the record."""
    events, outcome, error = BODIES[name]
    _, got, why = told(events, None)
    assert (got, why[: len(error)]) == (outcome, error)
    assert (got, why) == recorded(events, None)


@pytest.mark.parametrize("name", BODIES)
def test_agreed_at_any_cut(name: str) -> None:
    """Bytes may be cut anywhere: in two, or each alone."""
    whole = b"".join(BODIES[name][0][-4:])
    for pieces in cuts(whole):
        assert told(pieces, None)[1:] == recorded(pieces, None)


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
        assert (stream.open_bytes <= 60_000 + len(end), stream.problem) == (True, "")
    for _ in range(20):
        stream.keep(b"x" * 60_000, 1)
    assert stream.problem == TOO_LONG


def test_little_is_kept() -> None:
    """A long stream leaves only its last reads in memory."""
    pieces = [event(delta(content=f"{n:0{SHORT}}")) for n in range(1000)]
    assert told(pieces, None)[0].latest == deque(pieces[-KEPT:])
