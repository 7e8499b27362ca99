"""One reader for all streams of a process: the kernel keeps the time, so it may be lazy.

User greenlets send and sleep. One greenlet owns one epoll over every socket, naps a little so that
reads come in bunches, reads each ready socket once with `recvmsg`, works out by the rules of
`wire.stamps` when the bytes arrived, and passes them on to the decoder process. All that it parses
itself is where a response ends.
"""

from __future__ import annotations

import gc
import resource
import ssl
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent import monkey
from gevent.hub import get_hub

from harness.drive.clock import CLOCK, Clock
from harness.drive.connection import READ_BYTES, ConnectFailed, Connection, Place, Stream
from harness.drive.decoding import DecoderLink
from harness.drive.stamping import ANCILLARY, Stamping, stamp_of
from harness.measure.records import Outcome
from harness.units import SECOND
from harness.wire.http import NotHttp
from harness.wire.stamps import NO_STAMP, SocketStamps

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.measure.records import RequestRecord
    from harness.wire.stamps import Arrival

NAP_S: Final = 0.002  # with stamps a late read costs nothing; without them it does not nap
SWEEP_S: Final = 0.1  # how often timeouts are looked for
LAG_S: Final = 0.02  # the loop lag's own timer
OK_STATUS: Final = 200
TAIL: Final = 64  # bytes kept to see [DONE] in
_epoll: Final = monkey.get_original("select", "epoll")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each phase may take; from sent, or between two reads."""

    first_byte_ns: int = 120 * SECOND
    idle_ns: int = 60 * SECOND
    total_ns: int = 600 * SECOND


@dataclass(frozen=True, slots=True)
class Exchange:
    """How a request ended, known at once; the record follows from the decoder."""

    outcome: Outcome
    e2e_ns: int
    n_bytes: int
    error: str


class Reader:
    """Sends requests and reads their streams. Records and parts go to `put`, on this loop."""

    def __init__(
        self,
        worker: int,
        put: Callable[[list[RequestRecord]], None],
        place: Place,
        limits: Limits | None = None,
        *,
        clock: Clock = CLOCK,
        stamps: bool = True,
    ) -> None:
        """`stamps` False: as on a system without them. Starts the decoder process."""
        self.worker = worker
        self.place = place
        self.limits = limits or Limits()
        self.clock = clock
        self.stamping = Stamping()
        self.source = self.stamping.source if stamps else "read"
        self.link = DecoderLink(clock, put)
        self.reads = 0
        self.lags_ns: deque[int] = deque(maxlen=20_000)
        self._idle: list[Connection] = []
        self._busy: dict[int, Connection] = {}  # by fd, idle ones too
        self._poll = _epoll()
        self._round = 0
        self._polled_ns = self._before_ns = clock.now_ns()
        self._greenlets = [gevent.spawn(f) for f in (self._read_loop, self._sweep, self._lag)]
        gc.collect()
        gc.freeze()
        gc.set_threshold(200_000, 50, 100)  # a full collection would stall the loop

    def request(
        self,
        data: bytes,
        number: int,
        user: int,
        planned_tokens: int,
        scheduled_ns: int = -1,
    ) -> Exchange:
        """Send the request's bytes and block the calling greenlet until the response has ended."""
        stream = Stream(number)
        begun = self.clock.now_ns()
        asked = [self.worker, number, user, planned_tokens, scheduled_ns, 0, begun]
        connection = None
        try:
            connection = self._send(stream, data, asked)
            stream.over.wait()
            while stream.stale:
                stream.stale = False
                stream.over.clear()
                connection = self._send(stream, data, asked)
                stream.over.wait()
        except ConnectFailed as error:
            self._fail(stream, Outcome.connect, str(error))
        except BaseException:
            self._fail(stream, Outcome.cancelled, "the harness stopped it")
            raise
        finally:
            if not stream.sent_ns:
                stream.sent_ns = begun
                self.link.add(("o", number, tuple(asked), 0))
            self._release(connection, stream)
        return self._exchange(stream)

    def _send(self, stream: Stream, data: bytes, asked: list[int]) -> Connection:
        """Put the request on a connection; once more if a kept one turns out to be closed."""
        while True:
            connection = self._connection(asked)
            out = connection.tls.encrypt(data) if connection.tls else data
            stream.sent_ns = asked[6] = self.clock.now_ns()
            # before the first byte leaves: the decoder must know a stream before its reads
            self.link.add(("o", stream.number, tuple(asked), 0))
            connection.stream = stream
            try:
                connection.send_all(out)
            except (OSError, TimeoutError) as error:
                self._drop(connection)
                if not connection.used:
                    raise ConnectFailed(f"the request could not be sent ({error})") from None
                continue
            return connection

    def _connection(self, asked: list[int]) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if self._busy.get(connection.fd) is connection:
                asked[5] = 0
                return connection
        begun = self.clock.now_ns()
        connection = Connection(self.place)
        now = self.clock.now_ns()
        asked[5] = now - begun
        connection.stamps = SocketStamps(now, self._round)
        self._busy[connection.fd] = connection
        self._poll.register(connection.fd, 1)
        return connection

    def _release(self, connection: Connection | None, stream: Stream) -> None:
        """Tell the decoder how it ended; keep the connection if it can be used again."""
        outcome = stream.outcome.value if stream.outcome is not None else ""
        self.link.add(("c", stream.number, outcome, stream.error, stream.done_ns))
        if connection is None:
            return
        connection.stream = None
        connection.used = True
        alive = self._busy.get(connection.fd) is connection
        if alive and stream.outcome is None and stream.ending.keep_alive:
            self._idle.append(connection)
        else:
            self._drop(connection)

    def _exchange(self, stream: Stream) -> Exchange:
        outcome, error = stream.outcome, stream.error
        if outcome is None:
            status = stream.ending.status
            if status != OK_STATUS:
                outcome, error = Outcome.status, f"HTTP {status}"
            elif b"[DONE]" not in stream.tail:
                outcome, error = Outcome.truncated, "the stream ended without [DONE]"
            else:
                outcome = Outcome.ok
        return Exchange(outcome, stream.done_ns - stream.sent_ns, stream.n_bytes, error)

    def _fail(self, stream: Stream, outcome: Outcome, error: str) -> None:
        if not stream.over.is_set():
            stream.outcome, stream.error = outcome, error
            stream.done_ns = self.clock.now_ns()
            stream.over.set()

    def _drop(self, connection: Connection) -> None:
        if self._busy.get(connection.fd) is connection:
            del self._busy[connection.fd]
            self._poll.unregister(connection.fd)
        connection.close()

    # reading

    def _read_loop(self) -> None:
        hub = get_hub()
        watcher = hub.loop.io(self._poll.fileno(), 1)
        nap = NAP_S if self.source == "kernel" else 0.0
        while True:
            hub.wait(watcher)
            if nap and len(self._busy) > 1:
                gevent.sleep(nap)
            self._read_round()

    def _read_round(self) -> None:
        self._before_ns, self._polled_ns = self._polled_ns, self.clock.now_ns()
        ready = self._poll.poll(0, len(self._busy) + 1)
        self._round += 1
        now, stepped = self.clock.sample()
        use = self.source == "kernel" and not stepped
        offset = self.clock.offset_ns
        busy = self._busy
        for fd, _ in ready:
            connection = busy.get(fd)
            if connection is not None:
                self._read(connection, now, offset, use=use)

    def _read(self, connection: Connection, now: int, offset: int, *, use: bool) -> None:
        """One read of one socket, and when it arrived."""
        try:
            data, ancillary, _, _ = connection.recvmsg(READ_BYTES, ANCILLARY)
        except BlockingIOError:
            return
        except OSError as error:
            self._closed(connection, str(error))
            return
        if not data:
            self._closed(connection, "the server closed the connection")
            return
        self.reads += 1
        stamp = stamp_of(ancillary) if use else NO_STAMP
        assert connection.stamps is not None  # noqa: S101 - set before it is polled
        arrival = connection.stamps.arrival(
            stamp - offset if stamp != NO_STAMP else NO_STAMP,
            now,
            drained=len(data) < READ_BYTES,
            round_number=self._round,
            previous_poll_ns=self._before_ns,
        )
        if connection.tls is not None:
            try:
                data = connection.tls.decrypt(data)
            except ssl.SSLError as error:
                self._closed(connection, f"TLS: {error.reason}")
                return
        if data:
            self._deliver(connection, data, arrival)

    def _deliver(self, connection: Connection, data: bytes, arrival: Arrival) -> None:
        """Pass bytes of a response on to the decoder and see whether they end it."""
        stream = connection.stream
        if stream is None or stream.over.is_set():
            self._drop(connection)  # bytes that nobody asked for
            return
        stream.last_read_ns = arrival.at_ns
        if stream.first_byte_ns < 0:
            stream.first_byte_ns = arrival.at_ns
        stream.n_bytes += len(data)
        stream.tail = (stream.tail + data)[-TAIL:] if len(data) < TAIL else data[-TAIL:]
        self.link.add(("r", stream.number, data, arrival.at_ns, arrival.bound_ns, arrival.exact))
        try:
            stream.ending.feed(data)
        except NotHttp as error:
            self._fail(stream, Outcome.protocol, str(error))
            return
        if stream.ending.complete:
            stream.done_ns = arrival.at_ns
            stream.over.set()

    def _closed(self, connection: Connection, why: str) -> None:
        """End of file or a broken connection."""
        stream = connection.stream
        self._drop(connection)
        if stream is None or stream.over.is_set():
            return
        if stream.n_bytes == 0 and connection.used:
            stream.stale = True  # closed while it was idle: nothing was served, so send it again
            stream.over.set()
            return
        complete = stream.ending.status and not stream.ending.keep_alive
        if complete:  # without a length the server's close is the end of the body
            stream.done_ns = stream.last_read_ns
            stream.over.set()
        else:
            self._fail(stream, Outcome.truncated, why)

    # timers

    def _sweep(self) -> None:
        limits = self.limits
        while True:
            gevent.sleep(SWEEP_S)
            now = self.clock.now_ns()
            for connection in list(self._busy.values()):
                stream = connection.stream
                if stream is None or not stream.sent_ns or stream.over.is_set():
                    continue
                if now - stream.sent_ns > limits.total_ns:
                    phase, limit = "the whole request", limits.total_ns
                elif stream.first_byte_ns < 0 and now - stream.sent_ns > limits.first_byte_ns:
                    phase, limit = "the first byte", limits.first_byte_ns
                elif stream.first_byte_ns >= 0 and now - stream.last_read_ns > limits.idle_ns:
                    phase, limit = "the next byte", limits.idle_ns
                else:
                    continue
                self._fail(
                    stream, Outcome.timeout, f"{phase} took longer than {limit / SECOND:g} s"
                )

    def _lag(self) -> None:
        while True:
            due = self.clock.now_ns() + round(LAG_S * SECOND)
            gevent.sleep(LAG_S)
            self.lags_ns.append(self.clock.now_ns() - due)

    # the end

    def flush(self, timeout_s: float = 15.0) -> bool:
        """Wait until everything that was read has come back as records."""
        return self.link.flush(timeout_s)

    def close(self) -> None:
        """Record what is open as cancelled and stop; harmless when repeated."""
        for connection in list(self._busy.values()):
            if connection.stream is not None:
                self._fail(connection.stream, Outcome.cancelled, "the harness stopped it")
        gevent.sleep(0)  # users wake up and say how it ended
        self.link.close()
        gevent.killall(self._greenlets, block=False)
        for connection in list(self._busy.values()):
            self._drop(connection)
        self._poll.close()
        self.stamping.close()

    def figures(self) -> dict[str, Any]:
        """What this process says about its own measuring."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        lags = sorted(self.lags_ns)
        events = self.link.events
        return {
            "stamp_source": self.source,
            "events": events,
            "exact_share": round(self.link.exact_events / events, 6) if events else None,
            "reads": self.reads,
            "loop_lag_p99_ms": round(lags[len(lags) * 99 // 100] / 1e6, 3) if lags else None,
            "loop_lag_max_ms": round(lags[-1] / 1e6, 3) if lags else None,
            "clock_steps": self.clock.steps,
            "cpu_s": round(used.ru_utime + used.ru_stime, 3),
            "decoder_cpu_s": round(self.link.cpu_s, 3),
            "decoder_restarts": self.link.restarts,
            "decoder_backlog": self.link.backlog,
        }


__all__ = ["Exchange", "Limits", "Reader"]
