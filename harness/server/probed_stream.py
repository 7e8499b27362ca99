"""Reads the answer to the probe's one streamed request: a stream of tokens, and what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from harness.errors import ServerUnreachable
from harness.server.http_exchange import TRY_PRINTED_PORT, HttpAnswer, quoted
from harness.wire.openai import (
    FAILED_FINISHES,
    Chunk,
    NotACompletion,
    end_of,
    read_error,
    read_event,
)
from harness.wire.sse import EVENT_STREAM, EventTooLong, SseDecoder

if TYPE_CHECKING:
    from harness.server.access import TargetAccess

UNENDED: Final = (
    "the server's last event has no empty line behind it, which the standard asks for: clients "
    "take it all the same, and so does the harness"
)


class Seen(NamedTuple):
    """What a stream was found to have."""

    continuous_usage: bool  # an event with a token had a count
    final_usage: bool  # one without a choice had it
    notes: tuple[str, ...] = ()  # for a person


def read_stream(access: TargetAccess, answer: HttpAnswer) -> Seen:
    """Read a response with status 200. Raises ServerUnreachable if it is no stream of tokens."""
    _check_kind(access, answer)
    decoder = SseDecoder()
    try:
        events = decoder.feed(answer.body)
    except EventTooLong as error:
        what = f"does not stream events: {error}; expected OpenAI's chunks; {TRY_PRINTED_PORT}"
        raise _refused(access, what) from None
    unended = decoder.finish()
    if not events and (said := read_error(decoder.stray)):
        what = f"answers an error ({quoted(access, said)}): expected a stream; see its log."
        raise _refused(access, what)
    events += unended
    chunks = [_chunk(access, data) for data in events]
    if not any(chunk.carries_token for chunk in chunks):
        what = "streams no token: expected two; try the same request with curl -N."
        raise _refused(access, what)
    _check_end(access, end_of(events))
    counted = [chunk for chunk in chunks if chunk.completion_tokens >= 0]
    continuous = any(chunk.carries_token for chunk in counted)
    final = any(not chunk.carries_token and not chunk.silent for chunk in counted)
    notes = (UNENDED,) if unended else ()
    return Seen(continuous, final, notes)


def _refused(access: TargetAccess, what: str) -> ServerUnreachable:
    return ServerUnreachable(f"{access.address} {what}")


def _chunk(access: TargetAccess, data: bytes) -> Chunk:
    try:
        chunk = read_event(data)
    except NotACompletion:
        said = quoted(access, data.decode(errors="replace"))
        what = (
            f"streams what is not JSON of a completion ({said}): expected OpenAI's chunks; "
            f"{TRY_PRINTED_PORT}"
        )
        raise _refused(access, what) from None
    if chunk.error:
        said = quoted(access, chunk.error)
        what = f"streams an error ({said}): expected tokens; see the server's log."
        raise _refused(access, what)
    return chunk


def _check_end(access: TargetAccess, end: Chunk) -> None:
    if end.finish_reason.lower() in FAILED_FINISHES:
        what = (
            f"breaks its answer off (finish_reason {end.finish_reason}): expected two tokens; see "
            "the server's log."
        )
        raise _refused(access, what)
    if end.stranger:
        what = (
            "ends its stream by an object that is no part of a completion: expected OpenAI's "
            "chunks; try the same request with curl -N."
        )
        raise _refused(access, what)
    if not end.done:
        what = (
            "breaks its stream off: expected data: [DONE] at its end; try without the proxy in "
            "between."
        )
        raise _refused(access, what)


def _check_kind(access: TargetAccess, answer: HttpAnswer) -> None:
    """Raises ServerUnreachable if the response is no stream, by its head."""
    encoding = answer.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        what = (
            f"answers encoded ({quoted(access, encoding)}), which was not asked for: expected "
            "plain text/event-stream, as each event must arrive by itself; try without the proxy "
            "in between, or without compression in it."
        )
        raise _refused(access, what)
    if answer.content_type == EVENT_STREAM:
        return
    said = read_error(answer.body)
    words = f", which says {quoted(access, said)!r}" if said else ""
    advice = "see the server's log" if said else "try without the proxy in between"
    what = (
        f"does not stream: it answered a request for a stream with "
        f"{quoted(access, answer.content_type)} in one piece{words}; expected text/event-stream; "
        f"{advice}."
    )
    raise _refused(access, what)
