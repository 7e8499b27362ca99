"""SSE from bytes cut anywhere."""

from __future__ import annotations

import contextlib
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_examples import cuts

from harness.wire.sse import MAX_EVENT_BYTES, EventTooLong, NamedError, SseDecoder

SAMPLES = [
    (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),  # mixed line ends
    (b": a comment\n\n:\ndata: a\n\n", [b"a"]),
    (b"event: x\nid: 1\ndata: a\nretry: 3\n\n", [b"a"]),
    (b"data: a\ndata: b\n\n", [b"a\nb"]),
    (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),  # one space goes, if there is one
    (b"data\n\ndata:\n\ndata: \n\ndata:  \n\ndata:\ndata:\n\n", []),  # heartbeats
    (b"data: a\n\ndata:\n\ndata: b\n\n", [b"a", b"b"]),
    (b"event: error\n\ndata: a\n\n", [b"a"]),  # an event without data takes its name along
    (b"event: error\r\ndata: a\r\n\r\ndata: b\n\n", [NamedError(b"a"), b"b"]),
    (b"data: a\nevent:error\n\n", [NamedError(b"a")]),
    (
        b"data: a\xe2\x80\xa8b\xc2\x85c\x0bd\n\n",
        [b"a\xe2\x80\xa8b\xc2\x85c\x0bd"],
    ),  # U+2028, NEL, VT
    (b"data: \xe2\x82\xac\xf0\x9f\x98\x80\n\n", ["\u20ac\U0001f600".encode()]),
    (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),  # a byte order mark
    (b"\xef\xbbdata: a\n\n", []),  # half of one is part of a field's name
    (b"data: a\n\ndata: half", [b"a"]),
    (b"data: a\n\ndata: b\n", [b"a"]),
    (b"\n\n\ndata: a\n\n\n\n", [b"a"]),
    (b"datax: a\n\n", []),
    (b"", []),
]


@pytest.mark.parametrize(("data", "want"), SAMPLES)
def test_events_at_every_cut(data: bytes, want: list[bytes]) -> None:
    """The events are the same wherever the bytes are cut."""
    for pieces in cuts(data):
        sse = SseDecoder()
        got = [event for piece in pieces for event in sse.feed(piece)]
        assert got == want
        assert list(map(type, got)) == list(map(type, want))


@given(st.data())
def test_events_at_random_cuts(data: st.DataObject) -> None:
    """All samples with one kind of line end in a row, cut into many pieces."""
    whole = b"".join(sample for sample, _ in SAMPLES[:4] * 2)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    bounds = [0, *places, len(whole)]
    sse = SseDecoder()
    got = [e for a, b in pairwise(bounds) for e in sse.feed(whole[a:b])]
    assert got == [b"a", b"b"] * 8


@pytest.mark.parametrize(
    ("pieces", "want"),
    [
        ([b"data: a\n\n"], [True]),
        ([b"data: a\n\n", b"data: b\n\n"], [True, True]),  # the short way
        ([b"data: a\n\ndata: b\n\n"], [True]),
        ([b"data: a\n\nda"], [False]),
        ([b"data: a\n\n:"], [False]),
        ([b"data: a\n\n\n"], [True]),  # one more line end: the server's, in one piece
        ([b"data: a\n\ndata: b\n"], [False]),
        ([b"data: a\n", b"\n"], [False, True]),
        ([b"data: a\r\n\r\n"], [True]),
        ([b"data: a\r\n\r", b"\n"], [True, False]),  # it had ended at the CR
        ([b"da", b""], [False, False]),
        ([b"data: a\n\ndata:\n\n"], [False]),  # what follows came later
        ([b"data: a\n\n: x\n\n"], [False]),
    ],
)
def test_last_says_whether_the_feed_ends_with_an_event(
    pieces: list[bytes], want: list[bool]
) -> None:
    """Only then may the read's stamp be the event's."""
    sse = SseDecoder()
    got = []
    for piece in pieces:
        sse.feed(piece)
        got.append(sse.last)
    assert got == want


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (b"data: a\n\ndata: b\n", [b"b"]),
        (b"data: a\n\ndata: b", [b"b"]),
        (b"data: b\r", [b"b"]),
        (b"data: a\n\n", []),
        (b"data: a\n\n: b", []),
        (b"", []),
    ],
)
def test_what_the_end_leaves_without_its_empty_line(data: bytes, want: list[bytes]) -> None:
    """The standard drops it; clients do not."""
    for pieces in cuts(data):
        sse = SseDecoder()
        for piece in pieces:
            sse.feed(piece)
        assert sse.finish() == want


@pytest.mark.parametrize(
    "piece",
    [b"x" * 65_536, b"data: x\n" * 8192, b"data\n" * 13_108],
    ids=["one line", "one event", "empty lines of one event"],
)
def test_a_body_without_an_end_is_neither_copied_nor_kept(piece: bytes) -> None:
    """Of 16 MB, 1 MiB is taken: lines are split once, the pieces of one are kept as they are."""
    sse = SseDecoder()
    sse.feed(b"data: a\n\n")
    pieces = [bytes(bytearray(piece)) for _ in range(256)]
    fed = kept = 0
    tracemalloc.start()
    with contextlib.suppress(EventTooLong):
        for each in pieces:
            sse.feed(each)
            fed += len(each)
            kept = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert MAX_EVENT_BYTES - len(piece) <= fed <= 2 * MAX_EVENT_BYTES
    assert b"\n" in piece or kept < 4096  # a list of pieces


def test_a_line_in_many_pieces_is_joined_once() -> None:
    """Work is counted by the bytes that are joined: as many as there are."""
    sse = SseDecoder()
    for _ in range(500):
        assert sse.feed(b"data: " + b"x" * 1000 if not sse.held else b"x" * 1000) == []
    assert sse.held == 500_006
    assert sse.feed(b"\n\n") == [b"x" * 500_000]
    assert sse.held == 0
