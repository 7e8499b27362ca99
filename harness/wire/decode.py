"""One response's reads into one RequestRecord, or into parts of it while it is still open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from harness.measure.records import Outcome, RequestRecord, ns_array
from harness.wire.http import Body, NotHttp
from harness.wire.openai import Chunk, NotACompletion, error_message, read_event
from harness.wire.sse import SseDecoder

OK_STATUS: Final = 200
MOST_ERROR_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True)
class Asked:
    """What the reader knows when it has sent a request."""

    worker: int
    number: int
    user: int
    planned_tokens: int
    scheduled_ns: int
    connect_ns: int
    sent_ns: int


@dataclass(slots=True)
class Read:
    """What one read of the socket gave, and when its last byte arrived (see stamps)."""

    data: bytes
    at_ns: int
    bound_ns: int
    exact: bool


@dataclass(slots=True)
class StreamDecoder:
    """Feed reads, then `end`; `part` in between. `skip` events were already given in parts."""

    asked: Asked
    skip: int = 0
    events: int = 0  # token-bearing ones so far
    exact_events: int = 0
    _http: Body = field(default_factory=Body)
    _sse: SseDecoder = field(default_factory=SseDecoder)
    _head_ns: int = -1
    _first_event_ns: int = -1
    _last_ns: int = -1
    _finish: str = ""
    _prompt: int = -1
    _output: int = -1
    _cached: int = -1
    _counted: int = 0  # tokens that usage has accounted for so far
    _answer: int = -1
    _done: bool = False
    _problem: tuple[Outcome, str] | None = None
    _error_body: bytes = b""
    _at: list[int] = field(default_factory=list)
    _low: list[int] = field(default_factory=list)
    _tokens: list[int] = field(default_factory=list)
    _given: int = 0  # events given in parts

    def feed(self, read: Read) -> None:
        """Account one read, in order."""
        if self._head_ns < 0:
            self._head_ns = read.at_ns
        self._last_ns = read.at_ns
        if self._problem is not None:
            return
        try:
            self._http.feed(read.data)
            body = self._http.take()
            if self._http.status not in (0, OK_STATUS):
                self._error_body += body[: MOST_ERROR_BYTES - len(self._error_body)]
                return
            for event in self._sse.feed(body):
                self._event(read_event(event.data), read, last=event.last)
        except NotHttp as error:
            self._problem = Outcome.protocol, str(error)
        except NotACompletion as error:
            self._problem = Outcome.protocol, str(error)

    def _event(self, chunk: Chunk, read: Read, *, last: bool) -> None:
        if self._first_event_ns < 0:
            self._first_event_ns = read.at_ns
        self._done |= chunk.done
        self._finish = chunk.finish_reason or self._finish
        self._prompt = max(self._prompt, chunk.prompt_tokens)
        self._output = max(self._output, chunk.completion_tokens)
        self._cached = max(self._cached, chunk.cached_tokens)
        if chunk.error:
            self._problem = Outcome.status, chunk.error
        if not chunk.carries_token:
            return
        exact = last and read.exact
        self._at.append(read.at_ns)
        self._low.append(read.at_ns if exact else min(read.bound_ns, read.at_ns))
        self._tokens.append(self._count(chunk))
        if chunk.is_answer and self._answer < 0:
            self._answer = self.events
        self.events += 1
        self.exact_events += exact

    def _count(self, chunk: Chunk) -> int:
        """Tokens of this event: by running usage, by ids, else one."""
        if chunk.completion_tokens > self._counted:
            new = chunk.completion_tokens - self._counted
            self._counted = chunk.completion_tokens
            return new
        return max(chunk.new_tokens, 1)

    def part(self, known_until_ns: int) -> RequestRecord:
        """What came since the part before, as an open record."""
        record = self._record(Outcome.open, "", known_until_ns, max(self._given, self.skip))
        self._given = self.events
        return record

    def end(self, outcome: Outcome | None, error: str, done_ns: int) -> RequestRecord:
        """The whole record. `outcome` None: the response is complete, judge it by its content."""
        if outcome is None or (outcome is Outcome.truncated and self._problem):
            outcome, error = self._verdict(error)
            done_ns = self._last_ns if self._last_ns >= 0 else done_ns
        return self._record(outcome, error, done_ns, 0)

    def _verdict(self, error: str) -> tuple[Outcome, str]:
        if self._problem is not None:
            return self._problem
        status = self._http.status
        if status not in (0, OK_STATUS):
            return Outcome.status, f"HTTP {status}: {self._server_says()}".rstrip(": ")
        if not self._done:
            return Outcome.truncated, error or "the stream ended without [DONE]"
        return Outcome.ok, ""

    def _server_says(self) -> str:
        try:
            return read_event(self._error_body).error or error_message(
                self._error_body.decode("utf-8", "replace")
            )
        except NotACompletion:
            return error_message(self._error_body.decode("utf-8", "replace"))

    def _record(self, outcome: Outcome, error: str, done_ns: int, since: int) -> RequestRecord:
        a = self.asked
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
            status=self._http.status,
            error=error,
            finish_reason=self._finish,
            planned_tokens=a.planned_tokens,
            prompt_tokens=self._prompt,
            output_tokens=self._output,
            cached_tokens=self._cached,
            answer_index=self._answer,
            at_ns=ns_array(self._at[since:]),
            not_before_ns=ns_array(self._low[since:]),
            tokens=ns_array(self._tokens[since:]),
        )
