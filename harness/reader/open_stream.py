"""One exchange under way, whether it takes too long, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gevent.event import Event

from harness.records.request_record import Outcome
from harness.units import MS, SECOND
from harness.wire.decode import EMPTY, ENDED_BY_STRANGER, broken_off, outcome_of_body
from harness.wire.http import OK_STATUS, Response
from harness.wire.openai import (
    FAILED_FINISHES,
    Chunk,
    NotACompletion,
    end_of,
    read_event,
    read_json,
)
from harness.wire.sse import (
    ABORT,
    CHOICES_KEY,
    DATA_FIELD,
    DONE,
    EMPTY_EVENTS,
    ERROR_KEY,
    EVENT_END,
    EVENT_ENDS,
    EVENT_STREAM,
    LAST_EVENT,
    MAX_EVENT_BYTES,
    TOO_LONG,
    EventTooLong,
    SseDecoder,
)

if TYPE_CHECKING:
    from harness.core.timeouts import Timeouts
    from harness.reader.fast_path import FastPath

KEPT: Final = 8  # reads of the body kept, its last ones, to see how it ended
# Bytes; a shorter read counts as one with the next. So the kept ones hold the last event of the
# responses API, 1.3 kB, however small the reads are.
SHORT: Final = 512
FIRST_READS: Final = 8  # kept from the body's begin: roles and empty events come before a token
QUIET: Final = (b":", *EMPTY_EVENTS)  # what a read without content begins with
EMPTY_DATA: Final = (b"data:", b"data: ")


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a request ended, known at once; the record follows from the decoder."""

    outcome: Outcome
    e2e_ns: int
    n_bytes: int
    error: str
    # of an answer that was to be kept and ended well, without reasoning and calls of tools
    text: str = ""
    sent_ns: int = 0
    first_reads: tuple[tuple[int, bytes], ...] = ()  # of the body, with their times
    last_bytes: bytes = b""  # of the body, as far as Python saw it
    # the latest running count of tokens in what C read past Python; -1: none
    counted_past_python: int = -1

    @property
    def e2e_ms(self) -> float:
        """From the send to the last byte, or to the failure."""
        return self.e2e_ns / MS

    # Computed when somebody asks: the searches of `vllm-harness` never do.
    @property
    def ttft_ms(self) -> float | None:
        """From the send to the read of the first token, as the record has it; None: none came."""
        sse = SseDecoder()
        for at_ns, body in self.first_reads:
            if any(event.carries_token for event in _events_of(sse, body)):
                return (at_ns - self.sent_ns) / MS
        return None

    @property
    def output_tokens(self) -> int | None:
        """As the server counted them last; None: it did not say."""
        count = self.counted_past_python
        for event in _events_of(SseDecoder(), self.last_bytes):
            count = max(count, event.completion_tokens)
        return count if count >= 0 else None


@dataclass(slots=True, eq=False)
class Stream:
    """One exchange under way on a connection."""

    number: int
    sent_ns: int = 0
    head_ns: int = -1  # first byte
    body_ns: int = -1  # latest read with more than comments in it that Python saw
    n_bytes: int = 0
    counted_past_python: int = -1  # as `Exchange` has it
    fast_path: FastPath | None = None  # its connection's, from sending to the end
    latest: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT))
    response: Response = field(default_factory=Response)
    stale: bool = False  # the kept connection had been closed: send again
    over: Event = field(default_factory=Event)
    outcome: Outcome | None = None  # None: the response is complete, its content decides
    error: str = ""
    done_ns: int = 0
    in_time_ns: int = 0  # no limit can pass before: nobody need look
    # the reads of the body with their times: the first ones that Python sees, among which that of
    # the first token is; all of them if the text is wanted, as C keeps none
    reads: list[tuple[int, bytes]] = field(default_factory=list)
    keeps_all: bool = False
    open_bytes: int = 0  # since the latest end of an event in the body that Python saw
    _tail: bytes = b""
    # of the comments since the latest event: b":" within a line of one; None: there are none
    _comment: bytes | None = None

    @property
    def size(self) -> int:
        if self.fast_path is None:
            return self.n_bytes
        past_python, _ = self.fast_path.progress()
        return self.n_bytes + past_python

    def overdue(self, now_ns: int, timeouts: Timeouts) -> str:
        """The sentence of a timeout; "" while there is time, and `in_time_ns` says for how long."""
        body_ns = self.body_ns
        if self.fast_path is not None:
            _, past_python_ns = self.fast_path.progress()
            body_ns = max(body_ns, past_python_ns)
        has_begun = body_ns >= 0
        # until when the whole of it, its first token and its next byte have time
        total_ns = self.sent_ns + timeouts.total_ns
        first_ns = total_ns if has_begun else self.sent_ns + timeouts.first_token_ns
        idle_ns = max(body_ns, self.sent_ns) + timeouts.idle_ns
        if now_ns > total_ns:
            return f"the whole request took longer than {timeouts.total_ns / SECOND:g} s"
        if now_ns > first_ns:
            return f"no first token in {timeouts.first_token_ns / SECOND:g} s"
        if has_begun and now_ns > idle_ns:
            but = "" if self._comment is None else " but comments"
            return f"no further byte{but} in {timeouts.idle_ns / SECOND:g} s"
        # a body that has not begun may begin at any time: so `idle_ns` may lie in the past
        self.in_time_ns = min(total_ns, first_ns, max(idle_ns, now_ns))
        return ""

    def end(self, outcome: Outcome | None, error: str, done_ns: int) -> None:
        """It is over: wake the user. Only the first end counts."""
        if self.over.is_set():
            return
        if self.fast_path is not None:
            n_bytes, body_ns, self.counted_past_python = self.fast_path.end_response()
            self.n_bytes += n_bytes
            self.body_ns = max(self.body_ns, body_ns)
            self.fast_path = None
        self.outcome = outcome
        self.error = error
        self.done_ns = done_ns
        self.over.set()

    def send_again(self) -> None:
        """The kept connection was closed before it served this: wake the user for a new one."""
        self.stale = True
        self.fast_path = None
        self.over.set()

    def keep(self, body: bytes, at_ns: int) -> None:
        """The end of the body so far; no more than this is done for each read in Python.

        What C reads past Python is never how a stream ends, nor an error object, nor a comment.
        """
        if not self._only_comments(body):
            self.body_ns = at_ns
            if self.keeps_all or len(self.reads) < FIRST_READS:
                self.reads.append((at_ns, body))
        latest = self.latest
        if latest and len(latest[-1]) < SHORT:
            latest[-1] += body
        else:
            latest.append(body)
        if body.endswith(EVENT_END):
            self.open_bytes = 0
            return
        # a cut may go through the line ends: the last three bytes may belong to one
        lately = self._tail + body
        self._tail = lately[-3:]
        event_end = max(map(lately.rfind, EVENT_ENDS))
        if event_end >= 0:
            self.open_bytes = len(lately) - event_end
        else:
            self.open_bytes += len(body)

    def _only_comments(self, body: bytes) -> bool:
        """Whether `body`, which follows what was kept, is no sign of life.

        That is a comment, `: keep-alive`, cut anywhere, or whole events without data.
        """
        if self._comment is None and (self.open_bytes or not body.startswith(QUIET)):
            return False
        lines = (self._comment or b"") + body
        quiet = all(line[:1] in (b"", b":") or line in EMPTY_DATA for line in lines.splitlines())
        if not quiet:
            self._comment = None
        elif lines.endswith((b"\n", b"\r")):
            self._comment = b""
        else:
            self._comment = b":"
        return quiet

    @property
    def problem(self) -> str:
        """What is wrong: no HTTP, or an event too long for the decoder; "" for nothing."""
        response = self.response
        if response.problem or response.complete:
            return response.problem
        if self.open_bytes <= MAX_EVENT_BYTES or response.status != OK_STATUS:
            return ""
        if response.content_type in (EVENT_STREAM, ""):
            return TOO_LONG
        return ""

    def exchange(self) -> Exchange:
        """What the user is told at once; the decoder, which reads every event, has more to say."""
        e2e_ns = max(self.done_ns - self.sent_ns, 0)
        outcome, error = self._how_it_ended()
        return Exchange(
            outcome,
            e2e_ns,
            self.n_bytes,
            error,
            text=self._text() if self.keeps_all and outcome is Outcome.ok else "",
            sent_ns=self.sent_ns,
            first_reads=tuple(self.reads[:FIRST_READS]),
            last_bytes=b"".join(self.latest),
            counted_past_python=self.counted_past_python,
        )

    def _how_it_ended(self) -> tuple[Outcome, str]:
        status = self.response.status
        if self.outcome is None and status != OK_STATUS:
            return Outcome.status, f"HTTP {status}"
        # A body that was cut off may end in an error object all the same, which says more.
        if self.outcome is not None and self.outcome is not Outcome.truncated:
            return self.outcome, self.error
        latest = b"".join(self.latest)
        if self.outcome is None and plainly_ended_well(latest):
            return Outcome.ok, ""
        return self._judge(latest)

    def _judge(self, latest: bytes) -> tuple[Outcome, str]:
        """How a response with status 200 ended, by the end of its body."""
        sse = SseDecoder()
        events = sse.feed(latest)
        if self.outcome is None:
            events += sse.finish()
        end = end_of(events)
        if end.error:
            return Outcome.status, end.error
        if self.outcome is not None:
            return self.outcome, self.error
        if end.finish_reason.lower() in FAILED_FINISHES:
            return Outcome.status, broken_off(end.finish_reason)
        if end.stranger:
            return Outcome.protocol, ENDED_BY_STRANGER
        # Only of a body that was kept from its beginning can it be said that no token came.
        all_kept = len(self.latest) < KEPT
        if end.done and all_kept and not (end.carries_token or end.silent):
            return Outcome.protocol, EMPTY
        kind = self.response.content_type
        body = sse.stray if kind in (EVENT_STREAM, "") else latest
        return outcome_of_body(kind, self.error, done=end.done, body=body)

    def _text(self) -> str:
        """The text of `Exchange`."""
        sse = SseDecoder()
        try:
            events = [event for _, body in self.reads for event in sse.feed(body)]
            return joined_text(_words_of(events))
        except (ValueError, LookupError, TypeError, AttributeError):
            return ""  # the decoder says what is wrong


def _events_of(sse: SseDecoder, body: bytes) -> list[Chunk]:
    """The events of a read, without those that are no part of an answer: the decoder names them.

    The first event of the last bytes may have lost its beginning.
    """
    events = []
    with suppress(EventTooLong):
        for data in sse.feed(body):
            with suppress(NotACompletion):
                events.append(read_event(data))
    return events


def _words_of(events: list[bytes]) -> list[str]:
    """What the first choice of each event adds to the answer."""
    words = []
    for data in events:
        if data == DONE:
            continue
        event = read_json(data)
        if not event.get("choices"):
            continue
        choice = event["choices"][0]
        delta = choice.get("delta", choice)  # chat; completions have the text in the choice
        words.append(delta.get("content") or choice.get("text") or "")
    return words


def joined_text(words: Iterable[str]) -> str:
    """The text of an answer; a surrogate pair may be cut in two by its events.

    Half a pair that stays alone is replaced: no request could be sent with it.
    """
    return "".join(words).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plainly_ended_well(latest: bytes) -> bool:
    """Whether a body that ends so needs no further look: [DONE], and nothing but chunks before."""
    if not latest.endswith(LAST_EVENT) or ERROR_KEY in latest or ABORT in latest:
        return False
    chunks = latest.count(CHOICES_KEY)
    return chunks > 0 and latest.count(DATA_FIELD + b":") <= chunks + 1
