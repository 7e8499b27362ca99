"""One exchange under way, whether it takes too long, and how it ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gevent.event import Event

from harness.records.request_record import Outcome
from harness.units import MS, SECOND
from harness.wire.decode import EMPTY, ENDED_BY_STRANGER, broken_off, outcome_of_body
from harness.wire.http import OK_STATUS, Response
from harness.wire.openai import FAILED_FINISHES, end_of, read_event, read_json
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
    SseDecoder,
)

if TYPE_CHECKING:
    from harness.core.timeouts import Timeouts
    from harness.reader.fast_path import FastPath

KEPT: Final = 8  # reads of the body kept, its last ones, to see how it ended
# Bytes; a shorter read counts as one with the next. So the kept ones hold the last event of the
# responses API, 1.3 kB, however small the reads are.
SHORT: Final = 512
QUIET: Final = (b":", *EMPTY_EVENTS)  # what a read without content begins with
EMPTY_DATA: Final = (b"data:", b"data: ")


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a request ended, known at once; the record follows from the decoder."""

    outcome: Outcome
    e2e_ns: int
    n_bytes: int
    error: str
    # of the answer, if it was to be kept
    text: str = ""  # of one that ended well, without reasoning and calls of tools
    ttft_ms: float | None = None  # from the send to the read of the first token; None: none came
    output_tokens: int | None = None  # as the server counted them; None: it did not say

    @property
    def e2e_ms(self) -> float:
        """From the send to the last byte, or to the failure."""
        return self.e2e_ns / MS


@dataclass(slots=True, eq=False)
class Stream:
    """One exchange under way on a connection."""

    number: int
    sent_ns: int = 0
    head_ns: int = -1  # first byte
    body_ns: int = -1  # latest read with more than comments in it that Python saw
    n_bytes: int = 0
    fast_path: FastPath | None = None  # its connection's, from sending to the end
    latest: deque[bytes] = field(default_factory=lambda: deque(maxlen=KEPT))
    response: Response = field(default_factory=Response)
    stale: bool = False  # the kept connection had been closed: send again
    over: Event = field(default_factory=Event)
    outcome: Outcome | None = None  # None: the response is complete, its content decides
    error: str = ""
    done_ns: int = 0
    in_time_ns: int = 0  # no limit can pass before: nobody need look
    # the reads of the body so far with their times, if its text is wanted: C keeps none
    whole: list[tuple[int, bytes]] | None = None
    open_bytes: int = 0  # since the latest end of an event in the body that Python saw
    _tail: bytes = b""
    # of the comments since the latest event: b":" within a line of one; None: there are none
    _comment: bytes | None = None

    @property
    def size(self) -> int:
        return self.n_bytes + (self.fast_path.progress()[0] if self.fast_path is not None else 0)

    def overdue(self, now_ns: int, timeouts: Timeouts) -> str:
        """The sentence of a timeout; "" while there is time, and `in_time_ns` says for how long."""
        body_ns = self.body_ns
        if self.fast_path is not None:
            body_ns = max(body_ns, self.fast_path.progress()[1])
        total_ns = self.sent_ns + timeouts.total_ns
        first_ns = self.sent_ns + timeouts.first_token_ns if body_ns < 0 else total_ns
        idle_ns = max(body_ns, self.sent_ns) + timeouts.idle_ns
        if now_ns > total_ns:
            return f"the whole request took longer than {timeouts.total_ns / SECOND:g} s"
        if now_ns > first_ns:
            return f"no first token in {timeouts.first_token_ns / SECOND:g} s"
        if body_ns >= 0 and now_ns > idle_ns:
            but = "" if self._comment is None else " but comments"
            return f"no further byte{but} in {timeouts.idle_ns / SECOND:g} s"
        # until the body begins, it may at any time
        self.in_time_ns = min(total_ns, first_ns, max(idle_ns, now_ns))
        return ""

    def end(self, outcome: Outcome | None, error: str, done_ns: int) -> None:
        """It is over: wake the user. Only the first end counts."""
        if self.over.is_set():
            return
        if self.fast_path is not None:
            n_bytes, body_ns = self.fast_path.end_response()
            self.n_bytes += n_bytes
            self.body_ns = max(self.body_ns, body_ns)
            self.fast_path = None
        self.outcome, self.error, self.done_ns = outcome, error, done_ns
        self.over.set()

    def send_again(self) -> None:
        """The kept connection was closed before it served this: wake the user for a new one."""
        self.stale, self.fast_path = True, None
        self.over.set()

    def keep(self, body: bytes, at_ns: int) -> None:
        """The end of the body so far; no more than this is done for each read in Python.

        What C reads past Python is never how a stream ends, nor an error object, nor a comment.
        """
        if self.whole is not None:
            self.whole.append((at_ns, body))
        if not self._only_comments(body):
            self.body_ns = at_ns
        latest = self.latest
        if latest and len(latest[-1]) < SHORT:
            latest[-1] += body
        else:
            latest.append(body)
        if body.endswith(EVENT_END):
            self.open_bytes = 0
            return
        # a cut may go through the line ends: the last three bytes may belong to one
        seen = self._tail + body
        self._tail = seen[-3:]
        ended = max(map(seen.rfind, EVENT_ENDS))
        self.open_bytes = len(seen) - ended if ended >= 0 else self.open_bytes + len(body)

    def _only_comments(self, body: bytes) -> bool:
        """Whether `body`, which follows what was kept, is no sign of life.

        That is a comment, `: keep-alive`, cut anywhere, or whole events without data.
        """
        if self._comment is None and (self.open_bytes or not body.startswith(QUIET)):
            return False
        whole = (self._comment or b"") + body
        quiet = all(line[:1] in (b"", b":") or line in EMPTY_DATA for line in whole.splitlines())
        ended = whole[-1:] in (b"\n", b"\r")
        self._comment = (b"" if ended else b":") if quiet else None
        return quiet

    @property
    def problem(self) -> str:
        """What is wrong with the body: an event too long for the decoder; "" for nothing."""
        if self.open_bytes <= MAX_EVENT_BYTES or self.response.status != OK_STATUS:
            return ""
        return TOO_LONG if self.response.content_type in (EVENT_STREAM, "") else ""

    def exchange(self) -> Exchange:
        """What the user is told at once; the decoder, which reads every event, has more to say."""
        outcome, error, response = self.outcome, self.error, self.response
        took_ns = max(self.done_ns - self.sent_ns, 0)
        if outcome is None and response.status != OK_STATUS:
            outcome, error = Outcome.status, f"HTTP {response.status}"
        elif outcome is None or outcome is Outcome.truncated:
            latest = b"".join(self.latest)
            if outcome is None and plainly_ended_well(latest):
                return Exchange(Outcome.ok, took_ns, self.n_bytes, "", *self._answer())
            outcome, error = self._judge(latest)
        text, ttft_ms, tokens = self._answer()
        text = text if outcome is Outcome.ok else ""
        return Exchange(outcome, took_ns, self.n_bytes, error, text, ttft_ms, tokens)

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
        if end.done and not (end.carries_token or end.silent or len(self.latest) == KEPT):
            return Outcome.protocol, EMPTY
        kind = self.response.content_type
        body = sse.stray if kind in (EVENT_STREAM, "") else latest
        return outcome_of_body(kind, self.error, done=end.done, body=body)

    def _answer(self) -> tuple[str, float | None, int | None]:
        """The text, TTFT in ms and output tokens of `Exchange`.

        These are the reads that the decoder has, with the same times: so is the TTFT.
        """
        sse, events, ttft_ms = SseDecoder(), list[bytes](), None
        try:
            for at_ns, body in self.whole or ():
                new = sse.feed(body)
                if ttft_ms is None and any(read_event(data).carries_token for data in new):
                    ttft_ms = (at_ns - self.sent_ns) / MS
                events += new
            counts = (read_event(data).completion_tokens for data in reversed(events))
            tokens = next((count for count in counts if count >= 0), None)
            whole = [read_json(data) for data in events if data != DONE]
            firsts = [event["choices"][0] for event in whole if event.get("choices")]
            words = (x.get("delta", x).get("content") or x.get("text") or "" for x in firsts)
            return joined_text(words), ttft_ms, tokens
        except (ValueError, LookupError, TypeError, AttributeError):  # the decoder says what
            return "", ttft_ms, None  # is wrong


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
