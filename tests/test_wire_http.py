"""HTTP: what is sent, and responses cut anywhere."""

from __future__ import annotations

import pytest
from wire_examples import EVENTS, HEAD, STREAM, chunk, cuts

from harness.wire.http import Response, ends_with_body, post

BODY = b"".join(EVENTS)
OK = b"HTTP/1.1 200 OK\r\n"
RESPONSES = [
    (STREAM, BODY, 200, True),
    (OK + b"Content-Length: 3\r\n\r\nabc", b"abc", 200, True),
    (OK + b"content-length: 0\r\n\r\n", b"", 200, True),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x", 200, True),
    (b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno", b"no", 500, True),
    (OK + b"Connection: close\r\nContent-Length: 1\r\n\r\nx", b"x", 200, False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", b"x", 200, False),
    (HEAD + b"3;ext=1\r\nabc\r\n0\r\nTrailer: x\r\n\r\n", b"abc", 200, True),
]


@pytest.mark.parametrize(("data", "body", "status", "keep_alive"), RESPONSES)
def test_responses_at_every_cut(data: bytes, body: bytes, status: int, keep_alive: bool) -> None:
    """Body, status and end are the same wherever the bytes are cut."""
    for pieces in cuts(data):
        response = Response()
        got = b"".join(response.feed(piece) for piece in pieces)
        assert got == body
        assert response.status == status
        assert response.complete is True
        assert response.keep_alive == keep_alive


def test_a_response_without_a_length_ends_with_the_connection() -> None:
    """It is not complete by itself."""
    response = Response()
    assert response.feed(OK + b"Content-Type: text/plain\r\n\r\nabc") == b"abc"
    assert response.complete is False
    assert response.keep_alive is False
    assert response.content_type == "text/plain"


@pytest.mark.parametrize(
    "data", [b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x01\x00\x02\x02", b"220 hi"]
)
def test_other_protocols_are_noticed(data: bytes) -> None:
    """SSH, a TLS alert, SMTP."""
    response = Response()
    assert response.feed(data) == b""
    assert response.problem.startswith("the answer is not HTTP (")


def test_what_came_before_nonsense_counts() -> None:
    """Body in the same bytes."""
    response = Response()
    assert response.feed(HEAD + b"1\r\nx\r\nzz\r\n") == b"x"
    assert response.problem


def test_what_follows_a_whole_response_does_not_spoil_it() -> None:
    """A server that sends more than it should."""
    response = Response()
    assert response.feed(OK + b"Content-Length: 1\r\n\r\nxgarbage\r\n\r\n") == b"x"
    assert response.complete is True
    assert response.problem == ""


EVENT = b'data: {"a":1}\n\n'


@pytest.mark.parametrize(
    ("data", "body", "want"),
    [
        (chunk(EVENT), EVENT, True),  # ends with its chunk
        (chunk(EVENT)[:-2], EVENT, True),  # the chunk's line end is still to come
        (EVENT, EVENT, True),  # no chunks
        (chunk(EVENT)[:-1], EVENT, False),
        (chunk(EVENT) + b"1f\r\n", EVENT, False),  # the next chunk's head came later
        (chunk(EVENT) + b"0\r\n\r\n", EVENT, False),
        (chunk(EVENT) + chunk(EVENT), EVENT + EVENT, True),
        (b"\n\r\n", b"\n", False),  # too short to tell from framing
        (b"data: x-yz\r\n\r\n\r\n", b"data: x-yz\r\n\r\n", True),
        (chunk(b"data: x-yz\n\n") + b"a\r\n", b"data: x-yz\n\n", False),
    ],
)
def test_ends_with_body(data: bytes, body: bytes, want: bool) -> None:
    """Whether the last byte of a read belongs to its last event."""
    assert ends_with_body(data, body) is want


def test_a_request_on_the_wire() -> None:
    """Every byte of it."""
    got = post("h:1", "/v1/x", {"a": "\u20ac"}, "k", {"X-Request-Id": "7"})
    assert got == (
        b"POST /v1/x HTTP/1.1\r\nHost: h:1\r\nAccept: text/event-stream\r\n"
        b"Content-Type: application/json\r\nAuthorization: Bearer k\r\nX-Request-Id: 7\r\n"
        b'Content-Length: 11\r\n\r\n{"a":"\xe2\x82\xac"}'
    )  # {"a":""} is 8 bytes, the euro sign 3


@pytest.mark.parametrize("key", ["s3cr\u20act", "s3cret\r\nX: y"])
def test_a_key_that_cannot_be_sent_is_not_quoted(key: str) -> None:
    """Not in the message, and not in what the message came from."""
    with pytest.raises(ValueError, match="Authorization") as caught:
        post("h", "/", {}, key)
    assert "s3cr" not in repr(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None
