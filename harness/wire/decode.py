"""One response's body, as it was read, into one RequestRecord or into parts of it.

The reader has parsed HTTP already; what comes here is the status and pieces of body, each with the
interval in which it arrived.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.measure.records import Outcome, RequestRecord, ns_array
from harness.wire.alike import UNLIKE, Alike
from harness.wire.http import EVENT_STREAM, OK_STATUS
from harness.wire.openai import Chunk, NotACompletion, error_message, read_event
from harness.wire.sse import SseDecoder

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

ONE: Final = ns_array([1])
MOST_ERROR_BYTES: Final = 65_536
# what `state` saves: all that is not an array, the SSE decoder apart
_SCALARS: Final = (
    "status", "_type", "_head_ns", "_first_event_ns", "_finish", "_prompt",
    "_output", "_cached", "_counted", "_answer", "_done", "_problem", "_error_body",
    "_before", "_silent", "_last_silent_ns",
)  # fmt: skip


class Asked(NamedTuple):
    """What the reader knows when it has sent a request."""

    worker: int
    number: int
    user: int
    planned_tokens: int
    scheduled_ns: int
    connect_ns: int
    sent_ns: int


class StreamDecoder:
    """`head`, then `feed` for each read, then `end`; `part` in between.

    A part holds the token-bearing events since the part before it, the record at the end all.
    """

    __slots__ = (
        *_SCALARS, "_alike", "_at", "_low", "_sse", "_told", "_tokens", "asked", "exact_events",
    )  # fmt: skip

    def __init__(self, asked: Asked) -> None:
        """A request was sent."""
        self.asked = asked
        self.exact_events = 0  # since the last part
        self.status = 0
        self._type = EVENT_STREAM
        self._head_ns = self._first_event_ns = -1
        self._finish = ""
        self._prompt = self._output = self._cached = self._answer = -1
        self._before = self._silent = 0  # choices without a token, before the first and after
        self._last_silent_ns = -1
        self._counted = 0  # tokens that usage has accounted for so far
        self._done = False
        self._problem: tuple[str, str] | None = None  # (outcome, sentence)
        self._error_body = b""
        self._sse = SseDecoder()
        self._alike = Alike()
        self._told = 0  # events in parts
        self._at: array[int] = ns_array()
        self._low: array[int] = ns_array()
        self._tokens: array[int] = ns_array()

    @property
    def new_events(self) -> int:
        """Token-bearing ones since the last part."""
        return len(self._at) - self._told

    def head(self, status: int, head_ns: int, content_type: str) -> None:
        """The response has begun."""
        self.status, self._head_ns, self._type = status, head_ns, content_type

    def feed(self, body: bytes, at_ns: int, bound_ns: int, exact: int) -> None:
        """Account one read, in order. `exact`: its stamp is that of the body's last byte."""
        if self._problem is not None:
            return
        if self.status != OK_STATUS:
            self._error_body += body[: MOST_ERROR_BYTES - len(self._error_body)]
            return
        sse, count = self._sse, self._alike.count
        try:
            events = sse.feed(body)
            left = len(events)
            for data in events:
                left -= 1
                low_ns = at_ns if exact and not left and sse.last else bound_ns
                running = count(data)
                if running != UNLIKE:
                    self._token(at_ns, low_ns, running, 1)
                    continue
                chunk = read_event(data)
                self._alike.learn(data, chunk)
                self._event(chunk, at_ns, low_ns)
        except NotACompletion as error:
            self._problem = Outcome.protocol.value, str(error)

    def _event(self, chunk: Chunk, at_ns: int, low_ns: int) -> None:
        carries, answer, ids, completion, prompt, cached, finish, error, done, silent = chunk
        if self._first_event_ns < 0:
            self._first_event_ns = at_ns
        if finish:
            self._finish = finish
        if error:
            self._problem = Outcome.status.value, error
        self._done = self._done or done
        if prompt >= 0:
            self._prompt = prompt
        if cached >= 0:
            self._cached = cached
        if completion >= 0:
            self._output = completion
        if silent:
            self._before += not self._at
            self._silent += len(self._at) > 0
            self._last_silent_ns = at_ns
        if not carries:
            return
        if answer and self._answer < 0:
            self._answer = len(self._at)
        self._token(at_ns, low_ns, completion, ids if ids > 0 else 1)

    def tokens(
        self, at_ns: memoryview, low_ns: memoryview, running: list[int], even: bool, exact: int
    ) -> None:
        """Account events with a token each, known by their likeness elsewhere (`wire.alike`).

        The times are int64; `even`: each running count is one more than that before it, or all are
        -1; `exact` of them have an exact stamp.
        """
        if self._problem is not None:
            return
        n, first, last = len(running), running[0], running[-1]
        if not even or first not in (-1, self._counted + 1):
            for at, low, count in zip(at_ns.cast("q"), low_ns.cast("q"), running, strict=True):
                self._token(at, low, count, 1)
            return
        if last >= 0:
            self._counted = self._output = last
        self.exact_events += exact
        self._at.frombytes(at_ns)
        self._low.frombytes(low_ns)
        self._tokens.extend(ONE * n)

    def _token(self, at_ns: int, low_ns: int, running: int, tokens: int) -> None:
        """An event with `tokens` tokens, or as many as the running count has grown."""
        if running > self._counted:
            tokens = running - self._counted
            self._counted = self._output = running
        self.exact_events += low_ns == at_ns
        self._at.append(at_ns)
        self._low.append(low_ns)
        self._tokens.append(tokens)

    def part(self, known_until_ns: int) -> RequestRecord:
        """What came since the part before, as an open record."""
        told, self._told, self.exact_events = self._told, len(self._at), 0
        events = self._at[told:], self._low[told:], self._tokens[told:]
        return self._record(Outcome.open, "", known_until_ns, events)

    def end(self, outcome: Outcome | None, error: str, done_ns: int) -> RequestRecord:
        """All of it. `outcome` None: the response is complete, judge it by its content."""
        if outcome is None or (outcome is Outcome.truncated and self._problem):
            outcome, error = self._verdict(error)
        return self._record(outcome, error, done_ns, (self._at, self._low, self._tokens))

    def _verdict(self, error: str) -> tuple[Outcome, str]:
        if self._problem is not None:
            return Outcome(self._problem[0]), self._problem[1]
        if self.status != OK_STATUS:
            return Outcome.status, f"HTTP {self.status}: {self._server_says()}".rstrip(": ")
        return verdict(self._type, error, done=self._done)

    def _server_says(self) -> str:
        try:
            said = read_event(self._error_body).error
        except NotACompletion:
            said = ""
        return said or error_message(self._error_body.decode("utf-8", "replace"))

    def _record(
        self, outcome: Outcome, error: str, done_ns: int, events: Sequence[array[int]]
    ) -> RequestRecord:
        a = self.asked
        at_ns, not_before_ns, tokens = events
        return RequestRecord(
            worker=a.worker,
            number=a.number,
            user=a.user,
            sent_ns=a.sent_ns,
            done_ns=done_ns,
            outcome=outcome,
            scheduled_ns=a.scheduled_ns,
            connect_ns=a.connect_ns,
            head_ns=self._head_ns,
            first_event_ns=self._first_event_ns,
            status=self.status,
            error=error,
            finish_reason=self._finish,
            planned_tokens=a.planned_tokens,
            prompt_tokens=self._prompt,
            output_tokens=self._output,
            cached_tokens=self._cached,
            answer_index=self._answer,
            events_before=self._before,
            silent_events=self._silent,
            last_silent_ns=self._last_silent_ns,
            at_ns=at_ns,
            not_before_ns=not_before_ns,
            tokens=tokens,
        )

    def state(self) -> tuple[Any, ...]:
        """Plain values from which, with all parts, `resumed` goes on; take it after `part`."""
        return self._sse.state(), tuple(getattr(self, name) for name in _SCALARS)

    @classmethod
    def resumed(
        cls, asked: Asked, state: tuple[Any, ...], parts: list[RequestRecord]
    ) -> StreamDecoder:
        """The decoder that `state` and all of the stream's `parts` were taken from."""
        decoder = cls(asked)
        decoder._sse.resume(state[0])
        for name, value in zip(_SCALARS, state[1], strict=True):
            setattr(decoder, name, value)
        for part in parts:
            decoder._at += part.at_ns
            decoder._low += part.not_before_ns
            decoder._tokens += part.tokens
        decoder._told = len(decoder._at)
        return decoder


def verdict(content_type: str, error: str, *, done: bool) -> tuple[Outcome, str]:
    """How a complete response with status 200 ended; `done`: [DONE] was seen."""
    if done:
        return Outcome.ok, ""
    if content_type not in (EVENT_STREAM, ""):
        return Outcome.protocol, f"the server answered {content_type}, not {EVENT_STREAM}"
    return Outcome.truncated, error or "the stream ended without [DONE]"
