"""Decodes the body of one response into a RequestRecord, or into partial records while it runs.

HTTP is already parsed: the input is the status and pieces of the body, each with the interval in
which it arrived.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from harness.records.request_record import Outcome, RequestRecord, ns_array
from harness.wire.http import OK_STATUS
from harness.wire.openai import (
    FAILED_FINISHES,
    Chunk,
    NotACompletion,
    error_message,
    read_error,
    read_event,
)
from harness.wire.sse import EVENT_STREAM, EventTooLong, SseDecoder
from harness.wire.token_template import NO_MATCH, TokenTemplate

ONE: Final = ns_array([1])
MAX_ERROR_BYTES: Final = 16_384  # each is looked at, of each failure
PLAIN_TEXT: Final = "text/plain"
EMPTY: Final = "the stream ended without a token or a reason"
ENDED_BY_STRANGER: Final = "the stream ended by an object that is no part of a completion"
# Of one answer, ten times what any model writes: figures of gaps take memory for each token that
# was counted, not for each that came.
MAX_OUTPUT_TOKENS: Final = 1 << 20


class SentRequest(NamedTuple):
    """What is known of a request when it has been sent, as its record has it."""

    worker: int
    number: int
    user: int
    planned_tokens: int
    scheduled_ns: int
    connect_ns: int
    sent_ns: int
    session: int = -1
    turn: int = -1
    think_ns: int = -1
    new_tokens: int = -1
    mix_row: int = -1
    planned_prompt: int = -1
    name: str = ""


class StreamDecoder:
    """Call `head`, then `feed` for each read, then `end`; `part` at any time in between.

    A partial record holds the token-bearing events since the previous part; the record that `end`
    returns holds all of them.
    """

    def __init__(self, request: SentRequest) -> None:
        self.request = request
        self.exact_events = 0  # since the last part
        self.status = 0
        self._type = EVENT_STREAM
        self._head_ns = -1
        self._first_event_ns = -1
        self._finish = ""
        self._prompt = -1
        self._output = -1
        self._cached = -1
        self._answer = -1  # index of the first event that is not reasoning
        # choices without a token: before the first token, and after it
        self._events_before = 0
        self._silent_events = 0
        self._last_silent_ns = -1
        self._counted = 0  # tokens that usage has accounted for so far
        self._done = False
        self._uncounted = 0  # events with tokens before the first that had a count
        self._ids = -1  # tokens of the latest event, by their ids
        self._thought = -1  # reasoning tokens, in the final count
        self._progress_at_stranger = -1  # how far the answer had come at an object that is no part
        self._problem: tuple[str, str] | None = None  # (outcome, sentence)
        self._keeps_body = False  # by its head it is no stream: its words may be wanted
        self._body = b""
        self._sse = SseDecoder()
        self._template = TokenTemplate()
        self._reported = 0  # events that earlier parts contained
        self._at: array[int] = ns_array()
        self._low: array[int] = ns_array()
        self._tokens: array[int] = ns_array()

    @property
    def new_events(self) -> int:
        return len(self._at) - self._reported

    def head(self, status: int, head_ns: int, content_type: str) -> None:
        self.status = status
        self._head_ns = head_ns
        self._type = content_type
        self._keeps_body = status != OK_STATUS or content_type not in (EVENT_STREAM, "")

    def feed(self, body: bytes, at_ns: int, bound_ns: int, exact: int) -> None:
        """Decode one read, in order. `exact`: its timestamp is that of the body's last byte."""
        if self._problem is not None:
            return
        if self._keeps_body:
            room = MAX_ERROR_BYTES - len(self._body)
            self._body += body[:room]
            # With status 200 it may be a stream whose head calls it something else.
            if self.status != OK_STATUS:
                return
        sse = self._sse
        match = self._template.match
        try:
            events = sse.feed(body)
            left = len(events)
            for data in events:
                left -= 1
                # One timestamp belongs to one byte: only the last event of a read can be exact, and
                # only if the read ended with it.
                is_last_byte = not left and sse.last
                low_ns = at_ns if exact and is_last_byte else bound_ns
                count = match(data)  # tokens of the answer so far; -1: the server does not count
                if count != NO_MATCH:
                    self._token(at_ns, low_ns, count, 1)
                    continue
                chunk = read_event(data)
                self._template.learn(data, chunk)
                self._event(chunk, at_ns, low_ns)
        except NotACompletion as error:
            self._problem = (Outcome.protocol.value, str(error))
        except EventTooLong as error:
            # For an HTML page without line ends, its type explains more than its length.
            outcome, sentence = outcome_of_body(self._type, "", done=self._done, body=self._body)
            if outcome is not Outcome.protocol:
                sentence = str(error)
            self._problem = (Outcome.protocol.value, sentence)

    def _event(self, chunk: Chunk, at_ns: int, low_ns: int) -> None:
        carries, answer, ids, completion, prompt, cached, finish, error, done = chunk[:9]
        if self._first_event_ns < 0:
            self._first_event_ns = at_ns
        if finish:
            self._finish = finish
        if error:
            self._problem = (Outcome.status.value, error)
        self._done = self._done or done
        if prompt >= 0:
            self._prompt = prompt
        if cached >= 0:
            self._cached = cached
        if completion >= 0 and self._plausible(completion):
            self._output = completion
        if not carries:
            self._without_token(chunk, at_ns)
            return
        if answer and self._answer < 0:
            self._answer = len(self._at)
        self._ids = ids
        self._token(at_ns, low_ns, completion, ids if ids > 0 else 1)

    def _without_token(self, chunk: Chunk, at_ns: int) -> None:
        self._thought = max(self._thought, chunk.reasoning_tokens)
        if chunk.stranger:
            self._progress_at_stranger = self._progress
        if chunk.silent:
            if self._at:
                self._silent_events += 1
            else:
                self._events_before += 1
            self._last_silent_ns = at_ns

    @property
    def _progress(self) -> int:
        """How many events belonged to the answer so far."""
        return len(self._at) + self._events_before + self._silent_events

    def tokens(
        self, at_ns: memoryview, low_ns: memoryview, running: list[int], even: bool, exact: int
    ) -> None:
        """Take events with one token each, which the reader matched with a template already.

        Times are int64. `even`: each running count is one more than the previous one, or all are
        -1. `exact`: how many of the events have an exact timestamp.
        """
        if self._problem is not None:
            return
        first = running[0]
        last = running[-1]
        # In one piece only where the counts go on from those before: else each one says itself how
        # many tokens its event brought.
        if not even or first not in (-1, self._counted + 1):
            for at, low, count in zip(at_ns.cast("q"), low_ns.cast("q"), running, strict=True):
                self._token(at, low, count, 1)
            return
        if last >= 0:
            self._counted = self._output = last
        else:
            self._take_uncounted(len(running))
        self.exact_events += exact
        self._at.frombytes(at_ns)
        self._low.frombytes(low_ns)
        self._tokens.extend(ONE * len(running))

    def _token(self, at_ns: int, low_ns: int, running: int, tokens: int) -> None:
        """Append an event of `tokens` tokens, or of as many as the running count grew by."""
        if not self._plausible(running):
            return
        if running > self._counted:
            tokens = running - self._counted
            self._counted = self._output = running
        elif running < 0:
            self._take_uncounted(1)
        if low_ns == at_ns:
            self.exact_events += 1
        self._at.append(at_ns)
        self._low.append(low_ns)
        self._tokens.append(tokens)

    def _take_uncounted(self, events: int) -> None:
        """Events without a running count: the next one, if any, counts their tokens too."""
        if self._counted:
            self._counted += events
        else:
            self._uncounted += events

    def _plausible(self, count: int) -> bool:
        if count <= MAX_OUTPUT_TOKENS:
            return True
        self._problem = (Outcome.protocol.value, f"the server counts {count:,} output tokens")
        return False

    def part(self, known_until_ns: int) -> RequestRecord:
        """Return the events since the previous part, as an open record."""
        start = self._reported
        self._reported = len(self._at)
        self.exact_events = 0
        events = (self._at[start:], self._low[start:], self._tokens[start:])
        return self._record(Outcome.open, "", known_until_ns, events)

    def end(self, outcome: Outcome | None, error: str, done_ns: int) -> RequestRecord:
        """Return the whole record; `outcome` None: the response is complete, judge its content."""
        if outcome is None:
            self._take_unended(done_ns)
        if outcome is None or (outcome is Outcome.truncated and self._problem):
            outcome, error = self._verdict(error)
        self._spread_final_count()
        return self._record(outcome, error, done_ns, (self._at, self._low, self._tokens))

    def _take_unended(self, done_ns: int) -> None:
        """Take the last event although its empty line never came; half an event is none."""
        if self._problem is not None or self.status != OK_STATUS:
            return
        # It came at some time since the last event, and nobody saw when.
        low_ns = self._at[-1] if self._at else self._head_ns
        for data in self._sse.finish():
            try:
                self._event(read_event(data), done_ns, low_ns)
            except NotACompletion:
                return

    def _spread_final_count(self) -> None:
        """Give the tokens of the final count to the events, where these did not say how many.

        Evenly, and what is left over to the later ones: an end token comes last and has no event.
        """
        if not self._uncounted or self._ids > 0 or self._output < 0:
            return
        tokens = self._output
        if self._answer == 0:  # what it thought of before its answer did not come
            tokens -= max(self._thought, 0)
        events = len(self._at)
        tokens = max(tokens, events)
        tokens_before = [tokens * n // events for n in range(events + 1)]
        self._tokens = ns_array([end - begin for begin, end in pairwise(tokens_before)])

    def _verdict(self, error: str) -> tuple[Outcome, str]:
        if self._problem is not None:
            return Outcome(self._problem[0]), self._problem[1]
        if self.status != OK_STATUS:
            return Outcome.status, f"HTTP {self.status}: {words_of(self._body)}".rstrip(": ")
        if self._finish.lower() in FAILED_FINISHES:
            return Outcome.status, broken_off(self._finish)
        # Nothing of the answer came after it.
        if self._progress_at_stranger == self._progress:
            return Outcome.protocol, ENDED_BY_STRANGER
        if self._done and not self._carried_anything:
            return Outcome.protocol, EMPTY
        body = self._body or self._sse.stray
        return outcome_of_body(self._type, error, done=self._done, body=body)

    @property
    def _carried_anything(self) -> bool:
        return self._progress > 0 or self._output > 0 or bool(self._finish)

    def _record(
        self, outcome: Outcome, error: str, done_ns: int, events: Sequence[array[int]]
    ) -> RequestRecord:
        at_ns, not_before_ns, tokens = events
        return RequestRecord(
            **self.request._asdict(),
            done_ns=done_ns,
            outcome=outcome,
            head_ns=self._head_ns,
            first_event_ns=self._first_event_ns,
            status=self.status,
            error=error,
            finish_reason=self._finish,
            prompt_tokens=self._prompt,
            output_tokens=self._output,
            cached_tokens=self._cached,
            answer_index=self._answer,
            events_before=self._events_before,
            silent_events=self._silent_events,
            last_silent_ns=self._last_silent_ns,
            at_ns=at_ns,
            not_before_ns=not_before_ns,
            tokens=tokens,
        )


def broken_off(finish: str) -> str:
    """The sentence of an answer that the server gave up."""
    return f"the server broke the answer off (finish_reason {finish})"


def words_of(body: bytes) -> str:
    """What a body that is no stream says: an error object's words, else the text as it is."""
    return read_error(body) or error_message(body.decode("utf-8", "replace"))


def outcome_of_body(
    content_type: str, error: str, *, done: bool, body: bytes = b""
) -> tuple[Outcome, str]:
    """Return the outcome of a complete response with status 200.

    `done`: [DONE] was seen. `body`: the beginning of one that is no stream, which is quoted if it
    is an error: it may as well be an answer in one piece.
    """
    if done:
        return Outcome.ok, ""
    words = words_of(body) if content_type == PLAIN_TEXT else read_error(body)
    quoted = f": {words}" if words else ""
    if content_type not in (EVENT_STREAM, ""):
        return Outcome.protocol, f"the server answered {content_type}, not {EVENT_STREAM}{quoted}"
    if words:
        return Outcome.protocol, f"the server answered without a stream{quoted}"
    return Outcome.truncated, error or "the stream ended without [DONE]"
