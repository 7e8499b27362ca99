"""One reader for all streams of a process: the kernel keeps the time, so it may be lazy.

User greenlets send and sleep. One greenlet (`poller`) reads every ready socket and works out when
the bytes arrived (`stamping`); another process makes records of them. All that is
parsed here is HTTP: where a body begins and where the response ends.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any, Final

import gevent

from harness.reader.backends import END_OF_FILE, IN_C
from harness.reader.client_connection import READ_BYTES, Addresses, ConnectFailed, Connection, Place
from harness.reader.clock import CLOCK, Clock
from harness.reader.cpu_limit import read_cpu_limit
from harness.reader.decoder_link import DecoderLink
from harness.reader.loop_lag import Collecting, LoopLag
from harness.reader.open_stream import Exchange, Stream
from harness.reader.poller import Poller
from harness.reader.raw_batch import HEAD, Output
from harness.reader.stamping import Stamping
from harness.records.request_record import Outcome, RequestRecord
from harness.units import MS, SECOND
from harness.wire.http import ChunkedResponse, Response, ends_with_body

SWEEP_S: Final = 0.1  # how often timeouts are looked for
# A request whose connection was reset later than this is not sent again: the server had it.
STALE_NS: Final = SECOND
CONNECT: Final = 5  # place of `connect_ns` in a SentRequest
SENT: Final = 6  # place of `sent_ns`
STOPPED: Final = "the harness stopped it"
# An answer without an end would fill the memory long before its time is up. One of a million tokens
# with its framing is smaller.
MAX_ANSWER_BYTES: Final = 256 << 20
TOO_MUCH: Final = f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"
DROPPED: Final = "too many requests were in flight when it was due"


class Reader:
    """Sends requests and reads their streams."""

    def __init__(
        self,
        worker: int,
        put: Callable[[list[RequestRecord]], None] | None,
        place: Place,
        *,
        clock: Clock = CLOCK,
        stamps: bool = True,
        read_bytes: int = READ_BYTES,
        stand_in: bool = True,
        output: Output | None = None,
    ) -> None:
        """`output`: where records and parts go; without a master there, to `put`, on this loop.

        `stamps` False: as on a system without them. `stand_in`: see `backends.Sockets`. Starts the
        decoder process. Raises ConfigError (see `backends.which`).
        """
        self.worker = worker
        self.addresses = Addresses(place, first=worker)
        self.timeouts = place.timeouts
        self.clock = clock
        self.stamping = Stamping()
        self.source = self.stamping.source if stamps else "read"
        self.link = DecoderLink(clock, put, output or Output(worker=worker))
        self.poller = Poller(
            clock,
            self.link,
            self._deliver,
            self._closed,
            stamped=self.source == "kernel",
            read_bytes=read_bytes,
            stand_in=stand_in,
        )
        self.link.read_until_ns = self._read_until_ns
        self._idle: list[Connection] = []
        self._open: dict[int, Stream] = {}
        self.resent = 0  # requests that found their kept connection closed
        self._stopped = False
        self._ran_ns = clock.now_ns()  # all that came before it has been read
        self._lag = LoopLag(clock)
        self._sweeper = gevent.spawn(self._sweep)
        self._collecting = Collecting()

    # a request, in its user's greenlet

    def request(
        self,
        data: bytes,
        number: int,
        user: int,
        planned_tokens: int,
        scheduled_ns: int = -1,
        *,
        plan: tuple[int | str, ...] = (),
        keep_text: bool = False,
    ) -> Exchange:
        """Send the request's bytes and block the calling greenlet until the response has ended.

        `number` is unique in this reader. A killed greenlet leaves a record: `cancelled`.
        `plan`: from its session on, the fields of a `SentRequest`.
        """
        response = self._new_response()
        stream = self._open[number] = Stream(number, response=response, keeps_all=keep_text)
        # a SentRequest in the making
        request: list[int | str] = [
            self.worker,
            number,
            user,
            planned_tokens,
            scheduled_ns,
            0,
            0,
            *plan,
        ]
        connection = None
        # Whatever raises in here, a kill of this greenlet too, leaves a record: see `finally`.
        try:
            self.link.wait_for_room()
            connection = self._connection(request)
            self._send_and_wait(connection, stream, data, request)
            while stream.stale:
                # closed while it was idle, nothing served: once more, on a connection of its own
                self._take_back(connection, stream)
                connection = None  # there is none to release where the next line fails
                connection = self._connect_again(request)
                self._send_and_wait(connection, stream, data, request)
        except ConnectFailed as error:
            stream.end(error.outcome, str(error), self.clock.now_ns())
        finally:
            self._finish(connection, stream, request)
        return stream.exchange()

    def drop(self, number: int, user: int, planned_tokens: int, scheduled_ns: int) -> None:
        """Record a request that is not sent."""
        now_ns = self.clock.now_ns()
        connect_ns = 0
        sent_ns = now_ns  # a record has such an instant, though nothing was sent
        request = (self.worker, number, user, planned_tokens, scheduled_ns, connect_ns, sent_ns)
        self.link.open(number, request)
        self.link.end(number, Outcome.dropped, DROPPED, now_ns)

    def _new_response(self) -> Response:
        if self.poller.code == IN_C:
            return ChunkedResponse()
        return Response()

    def _connection(self, request: list[int | str]) -> Connection:
        """An idle one that still works, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if self.poller.has(connection):
                if connection.is_quiet():
                    return connection
                self.poller.drop(connection)
        return self._connect(request)

    def _connect(self, request: list[int | str]) -> Connection:
        begun_ns = self.clock.now_ns()
        if self._stopped:
            raise ConnectFailed(STOPPED, Outcome.cancelled)
        connection = Connection(self.addresses)
        request[CONNECT] = self.clock.now_ns() - begun_ns
        self.poller.add(connection)
        return connection

    def _connect_again(self, request: list[int | str]) -> Connection:
        """For a request that is sent again: connecting is then a part of its own time."""
        connect_ns = request[CONNECT]
        connection = self._connect(request)
        request[CONNECT] = connect_ns  # what passed before the first send, as before
        return connection

    def _send_and_wait(
        self, connection: Connection, stream: Stream, data: bytes, request: list[int | str]
    ) -> None:
        """Until it is over, or `stale`."""
        if self._send(connection, stream, data, request):
            stream.over.wait()

    def _send(
        self, connection: Connection, stream: Stream, data: bytes, request: list[int | str]
    ) -> bool:
        """Put the request on its way; False when that failed, and the stream says how."""
        out = connection.tls.encrypt(data) if connection.tls else data
        # may wait for the thread's round, so before the stamp
        connection.stamps.mark_request_sent(self.clock.now_ns())
        connection.stream = stream
        stream.fast_path = connection.fast_path
        if not stream.sent_ns:  # else it is sent again, and its time runs on
            stream.sent_ns = request[SENT] = self.clock.now_ns()
        # before the first byte leaves: the decoder must know a stream before its reads
        self.link.open(stream.number, tuple(request))
        try:
            connection.send_all(out)
        except OSError as error:  # TimeoutError too
            if self._was_stale(connection, stream, reset=error.errno == errno.ECONNRESET):
                stream.send_again()
            else:
                why = f"the request could not be sent ({error.strerror or error})"
                stream.end(Outcome.connect, why, self.clock.now_ns())
            return False
        return True

    def _take_back(self, connection: Connection, stream: Stream) -> None:
        """As if the request had not been sent on this connection."""
        self.resent += 1
        stream.stale = False
        stream.over.clear()
        self.poller.drop(connection)

    def _finish(
        self, connection: Connection | None, stream: Stream, request: list[int | str]
    ) -> None:
        """Record how it ended, also where the user's greenlet is being killed."""
        if not stream.over.is_set():
            self.poller.read_round()  # what came before it was stopped
        # Only the first end counts: this one does where the greenlet is being killed.
        stream.end(Outcome.cancelled, STOPPED, self.clock.now_ns())
        self._record(stream, request)
        if connection is not None:
            self._release(connection, stream)

    def _record(self, stream: Stream, request: list[int | str]) -> None:
        """Tell the decoder how it ended, once."""
        if self._open.pop(stream.number, None) is None:
            return
        if not stream.sent_ns:  # it never came to sending
            stream.sent_ns = request[SENT] = stream.done_ns
            self.link.open(stream.number, tuple(request))
        if stream.outcome is not None:
            self.poller.read_round()  # what was read of it, aside from the loop, comes before
        self.link.end(stream.number, stream.outcome, stream.error, stream.done_ns)
        stream.response.release()

    def _release(self, connection: Connection, stream: Stream) -> None:
        """Keep the connection if it can be used again."""
        connection.stream = None
        connection.used = True
        reusable = stream.outcome is None and stream.response.keep_alive and not self._stopped
        if reusable and self.poller.has(connection):
            self._idle.append(connection)
        else:
            self.poller.drop(connection)

    # reading, in the poller's greenlet

    def _deliver(
        self, connection: Connection, data: bytes, at_ns: int, bound_ns: int, exact: bool
    ) -> None:
        """Pass a read's body on to the decoder and see whether it ends the response."""
        if connection.tls is not None:
            plain = self._decrypt(connection, data)
            if not plain:
                return
            data = plain
            # the stamp is of the last byte that came, which may not be decrypted yet
            exact = exact and connection.tls.whole
            if self.poller.take(connection, data, at_ns, bound_ns, exact=exact):
                return
        stream = connection.stream
        if stream is None or stream.over.is_set():
            self.poller.drop(connection)  # bytes that nobody asked for
            return
        stream.n_bytes += len(data)
        response = stream.response
        body = response.feed(data)
        if stream.body_ns < 0:
            self._begun(stream, body, at_ns)
        if body:
            stream.keep(body, at_ns)
            # nor is it of the body's last byte where the end of a chunk follows that one
            is_exact = exact and ends_with_body(data, body)
            self.link.batch.read(stream.number, at_ns, bound_ns, is_exact, body)
        problem = stream.problem
        if problem:
            stream.end(Outcome.protocol, problem, self.clock.now_ns())
        elif response.complete:
            stream.end(None, "", at_ns)
        elif stream.fast_path is not None and not stream.keeps_all:
            # From here on C may read: it has no place to keep what a user wants to see.
            stream.fast_path.after_read(stream.number, response, body)

    def _begun(self, stream: Stream, body: bytes, at_ns: int) -> None:
        """Tell the decoder the response's head when all of it is there."""
        if stream.head_ns < 0:
            stream.head_ns = at_ns
        response = stream.response
        if body or response.complete:
            self.link.batch.notice(
                stream.number, HEAD, response.status, stream.head_ns, response.content_type
            )

    def _decrypt(self, connection: Connection, data: bytes) -> bytes:
        tls = connection.tls
        assert tls is not None  # noqa: S101 - the caller looked
        try:
            plain = tls.decrypt(data)
            if out := tls.outgoing():  # an answer to a change of keys
                connection.sock.send(out)
        except OSError as error:  # ssl.SSLError too
            self._closed(connection, f"TLS: {getattr(error, 'reason', None) or error}")
            return b""
        return plain

    def _closed(self, connection: Connection, why: str) -> None:
        now_ns = self.clock.now_ns()
        stream = connection.stream
        if stream is not None and not stream.over.is_set():
            self._end_by_close(connection, stream, why, now_ns)
        self.poller.drop(connection)

    def _end_by_close(self, connection: Connection, stream: Stream, why: str, now_ns: int) -> None:
        in_order = why == END_OF_FILE
        response = stream.response
        if self._was_stale(connection, stream, reset=not in_order):
            stream.send_again()
        elif in_order and response.status and not response.keep_alive:
            stream.end(None, "", max(stream.body_ns, stream.head_ns))  # its body ends here
        else:
            stream.end(Outcome.truncated, why, now_ns)

    def _was_stale(self, connection: Connection, stream: Stream, *, reset: bool) -> bool:
        """Whether the server may have closed this kept connection before it took the request.

        One that ends a connection in order has acknowledged what it had got by then: that request
        was dropped. One that resets it may not have looked: nobody can tell, so the request is sent
        again, and as its time runs on, nothing is hidden.
        """
        unanswered = stream.n_bytes == 0 and stream.head_ns < 0
        if not (connection.used and unanswered):
            return False
        if not reset:
            return connection.is_untouched()
        # Not by the time now: a loop that stood still learns of it late. It came after the last
        # moment at which the loop was surely running.
        return self._ran_ns < stream.sent_ns + STALE_NS

    def _sweep(self) -> None:
        """Timeouts, all of them, ten times a second: no timer per request, let alone per token.

        Sizes are looked at when as much has come in all as one answer may have.
        """
        looked_at_bytes = 0
        swept_ns = self._ran_ns
        while True:
            gevent.sleep(SWEEP_S)
            now_ns = self.clock.now_ns()
            # The sweep before this one: this one may come first of all that waited in a stall.
            self._ran_ns = swept_ns
            swept_ns = now_ns
            if self.poller.n_bytes - looked_at_bytes > MAX_ANSWER_BYTES:
                looked_at_bytes = self.poller.n_bytes
                self._end_oversized(now_ns)
            self._end_overdue(now_ns)

    def _end_oversized(self, now_ns: int) -> None:
        too_large = [s for s in self._open.values() if s.size > MAX_ANSWER_BYTES]
        for stream in too_large:
            stream.end(Outcome.protocol, TOO_MUCH, now_ns)

    def _end_overdue(self, now_ns: int) -> None:
        # One that waits for room or for a connection has not been sent: its time has not begun.
        due = [s for s in self._open.values() if s.in_time_ns <= now_ns and s.sent_ns]
        for stream in due:
            sentence = stream.overdue(now_ns, self.timeouts)
            if sentence:
                stream.end(Outcome.timeout, sentence, now_ns)

    def _read_until_ns(self) -> int:
        """All that happened before this instant is in the batch: asked when parts are due.

        A response that was read to its end is recorded when its user's greenlet wakes up, a moment
        later: until then nothing from its end on is known.
        """
        known_ns = self.poller.known_ns()
        for stream in self._open.values():
            # A stale stream is over too, but not done: it is sent again.
            if stream.over.is_set() and stream.done_ns:
                known_ns = min(known_ns, stream.done_ns - 1)
        return known_ns

    # the end

    def close(self) -> None:
        """Record what is open as cancelled and stop; harmless when repeated."""
        if self._stopped:
            return
        self._stopped = True
        for stream in self._open.values():
            stream.end(Outcome.cancelled, STOPPED, self.clock.now_ns())
        gevent.sleep(0)  # users wake up and say how it ended
        # The poller first: what it read later would go to a link that is closed.
        self.poller.close()
        self.link.close()
        self._sweeper.kill(block=False)
        self._lag.close()
        self._collecting.close()
        self.stamping.close()

    def figures(self) -> dict[str, Any]:
        link = self.link
        exact_share = None
        if link.events:
            exact_share = round(link.exact_events / link.events, 6)
        return {
            "stamp_source": self.source,
            "reader": self.poller.code,
            "addresses": sorted(self.addresses.used),
            "events": link.events,
            "exact_share": exact_share,
            "at_ns": self.clock.now_ns(),
            "reads": self.poller.reads,
            "stamped_reads": self.poller.stamped_reads,
            **self._lag.figures(),
            "throttled_s": read_cpu_limit().throttled_s,
            "clock_steps": self.clock.steps,
            "resent": self.resent,
            "cpu_s": round(time.process_time(), 3),
            **self._decoder_figures(),
        }

    def _decoder_figures(self) -> dict[str, float]:
        link = self.link
        return {
            "decoder_cpu_s": round(link.cpu_s, 3),
            "decoder_hold_max_ms": round(link.hold_ns / 1e6, 3),
            "decoder_backlog": link.backlog,
            "decoder_held": link.held,
            "clock_apart_ms": round(link.clock_apart_ns / MS, 3),
        }
