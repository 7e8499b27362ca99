"""One continuous run on the load processes of either door.

    session = Session(load, options, controller, sinks)
    ended = session.run()          # until the controller says done, or somebody ends it

`load` is a LoadRunner: the children of `vllm-harness`, or what the `locust` command has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import gevent
from gevent.event import Event
from locust import LoadTestShape
from locust.runners import STATE_INIT, STATE_STOPPED

from harness.diagnosis.cohort import MAX_SERVER_LAG_NS
from harness.reader.clock import CLOCK
from harness.reader.loop_lag import LoopLag
from harness.reader.transport import say_held, say_missing
from harness.senders.process_figures import client_samples
from harness.senders.scraper import Scraper
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.load.arrivals import LoadTarget
    from harness.records.request_record import RecordSink
    from harness.records.samples import ClientSample, ServerSample
    from harness.senders.drive_options import DriveOptions
    from harness.senders.load_runner import LoadRunner

TICK_S: Final = 1.0
ASKS_PER_S: Final = 4  # of a search that may decide a level within seconds
WATCH_S: Final = 0.2
MASTER_LAG_S: Final = 0.1  # nothing is timed in this process


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, and what it says about itself."""

    interrupted: bool  # Ctrl-C or SIGTERM
    invalid: str  # a sentence when the figures must not be believed; "" otherwise
    missing: dict[int, int] = field(default_factory=dict)  # worker -> requests without a record
    figures: dict[str, Any] = field(default_factory=dict)  # the client's figures about itself
    lost: tuple[str, ...] = ()  # a sentence for each worker that was lost


class Session:
    """One continuous run. Use it once."""

    def __init__(
        self,
        load: LoadRunner,
        options: DriveOptions,
        controller: Controller,
        sinks: Sequence[RecordSink],
        *,
        on_sample: Callable[[ServerSample], None] | None = None,
        on_some: Callable[[ServerSample], None] | None = None,
        drain_ns: int = 30 * SECOND,
        decides: bool = True,
        asks_per_s: int = 1,
    ) -> None:
        """`sinks` get every record and part; `on_sample` the server's figures once a second.

        `on_some`: is given the figures of the replicas that answered where others did not.
        `drain_ns`: how long open requests may take to end once the controller is done; what is
        left becomes `cancelled`. `decides` False: Locust's own form or command line says how many
        users there are and when the test ends; the controller is ticked all the same.
        """
        self.load = load
        self.options = options
        self.sinks = sinks
        self.drain_s = drain_ns / SECOND
        self.decides = decides
        replicas = options.access().replicas(options.metrics)
        prefill = {}
        if options.prefill:
            prefill = options.access().replicas(options.prefill)
        self.scraper = Scraper(replicas, on_sample, on_some, options.model, prefill)
        self.interrupted = False
        self.over_ns = 0  # when the load was to end: what is open then is let go or cut off
        self._over = Event()
        self._lag = LoopLag(CLOCK, MASTER_LAG_S)
        self.shape = ControllerShape(
            controller,
            CLOCK.now_ns,
            load.known_ns,
            self.scraper.latest,
            self._over.set,
            pace=load.pace,
            pacers=options.processes,
            asks_per_s=asks_per_s,
        )
        self.shape.runner = load.runner

    def client_samples(self) -> list[ClientSample]:
        """What each process of the load generator says of itself, newest only."""
        return client_samples(self.load.by_worker(), CLOCK.now_ns(), self._lag.recent_ms())

    @property
    def over(self) -> bool:
        """Whether it is at its own end by now."""
        return bool(self._over.is_set())

    def interrupt(self) -> None:
        """End it now, as Ctrl-C does: open requests are cut off."""
        self.interrupted = True
        self._over.set()

    def run(self) -> Ended:
        load = self.load
        ticks = None
        try:
            self._attach()
            self.scraper.start()
            if self.decides:
                load.runner.start_shape()
            else:
                ticks = gevent.spawn(self._tick)
            invalid = self._watch()
            self._over.set()  # what ends it meanwhile is no interruption any more
            self.over_ns = CLOCK.now_ns()
            load.finish(self._drain_s(invalid))
            if not self.interrupted:
                # by then the server has counted what has ended
                gevent.sleep(MAX_SERVER_LAG_NS / SECOND)
                self.scraper.finish()
            if self.shape.error is not None:
                raise self.shape.error
            return self._ended(invalid)
        finally:
            if ticks is not None:
                ticks.kill()
            self.scraper.stop()
            self._lag.close()
            load.detach_session()

    def _attach(self) -> None:
        load = self.load
        if self.decides:
            # a step down waits for the longest request that is allowed, then cuts it off
            patience_s = self.options.timeouts.total_ns / SECOND + self.drain_s
            load.environment.stop_timeout = patience_s
        load.attach_session(
            self.options,
            self.sinks,
            interrupt=self.interrupt,
            on_stopping=self._on_stopping,
            shape=self.shape if self.decides else None,
        )

    def _drain_s(self, invalid: str) -> float:
        if self.interrupted or invalid:
            return 0.0
        return self.drain_s if self.decides else self.load.environment.stop_timeout

    def _ended(self, invalid: str) -> Ended:
        """`invalid` is what `_watch` said; else the first trouble that shows at the end counts."""
        load = self.load
        missing = load.missing()
        figures = load.figures() | self.scraper.figures()
        lost = () if self.interrupted else load.lost_workers()
        # The cause before its consequences: a lost decoder or worker is why records are missing.
        invalid = (
            invalid
            or load.lost_records
            or say_lost(lost)
            or say_missing(missing)
            or say_held(figures.get("decoder_held", 0))
        )
        return Ended(self.interrupted, invalid, missing, figures, lost)

    def _watch(self) -> str:
        """Wait for the end; a sentence when it comes because a process died."""
        load = self.load
        while not self._over.wait(WATCH_S):
            load.watch_workers()
            # where Locust decides, its test goes on with the users that are left
            trouble = load.trouble() if self.decides else load.lost_records
            if trouble:
                return trouble
            self._ask_again()
            if load.used_up():
                self._over.set()
        return ""

    def _ask_again(self) -> None:
        """Begin a test that could not begin, as Locust heard of no worker when it asked the shape.

        `start` returns without a user and without an error then, and Locust asks the shape's
        unchanged answer no second time: forgetting it makes it ask. And any message of a missing
        worker makes Locust believe that the test has stopped, which ends the greenlet that asks.
        """
        # A runner without workers is in the first state, too, as long as its driver starts: asked
        # again it would kill the greenlet that starts it.
        if not self.decides or self.load.master is None:
            return
        runner = self.load.runner
        if runner.state in (STATE_INIT, STATE_STOPPED):
            runner.shape_last_tick = None
            runner.start_shape()  # does nothing while it asks

    def _tick(self) -> None:
        """In place of Locust's greenlet that asks a shape; the answer is not asked for."""
        while True:
            self.shape.tick()
            gevent.sleep(TICK_S)

    def _on_stopping(self) -> None:
        """Locust ends the test: somebody pressed Stop, the time is up, or no worker is left."""
        if not self.decides:
            self._over.set()
        elif not self._over.is_set() and not self.load.trouble():  # else `_watch` says so
            # Somebody pressed Stop: open requests are cut off, as with Ctrl-C.
            self.load.environment.stop_timeout = 0.0
            self.interrupt()


def say_lost(lost: Sequence[str]) -> str:
    """The first worker's sentence, and how many more there are."""
    if not lost:
        return ""
    others = len(lost) - 1
    were = "was" if others == 1 else "were"
    more = f" ({others} more {were} lost)" if others else ""
    return f"{lost[0]}{more}; see its log, and run again."


class Controller(Protocol):
    """Decides about the load. Pure: time and the server's figures are passed in."""

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        """Called once a second or more often; both instants are on the records' clock.

        All that happened before `known_ns` is in the sinks.
        """


class ControllerShape(LoadTestShape):
    """Asks the controller some times a second and hands its answer to Locust's runner.

    Locust counts users that were told to retire as users until their request has ended: another
    target before that would spawn too few, or retire the wrong ones, and leave the level short
    when they go. So the next target waits until the backlog of a step down has drained; only zero
    does not, since there everybody leaves.

    After `done` the shape keeps its last answer: ending the run in order is the session's part,
    and returning None would let Locust kill the open requests first.
    """

    def __init__(
        self,
        controller: Controller,
        now_ns: Callable[[], int],
        known_ns: Callable[[], int],
        sample: Callable[[], ServerSample | None],
        done: Callable[[], None],
        *,
        pace: Callable[[int, float], None] = lambda _level, _rate: None,
        pacers: int = 1,
        asks_per_s: int = 1,
    ) -> None:
        """`sample` gives the server's latest figures; `done` is called once, at the end.

        In an open loop `pace` is told the level and its rate, and Locust's users are `pacers`.
        """
        super().__init__()
        self.controller = controller
        self.sample = sample
        self.done = done
        self.now_ns = now_ns
        self.known_ns = known_ns
        self.pace = pace
        self.pacers = pacers
        self.asks_per_s = asks_per_s
        self.current: tuple[int, float] = (0, 1.0)
        self.over = False
        self.error: Exception | None = None  # what the controller raised

    def tick(self) -> tuple[int, float]:
        self._ask()
        # Locust takes another answer once a second, or at once after one that took longer. So an
        # answer that it has already is not given again.
        while self.asks_per_s > 1 and not self.over and self.current == self._taken():
            gevent.sleep(1 / self.asks_per_s)
            self._ask()
        return self.current

    def _taken(self) -> object:
        """What Locust has of us; None before it has a runner."""
        if self.runner is None:
            return None
        return self.runner.shape_last_tick

    def _ask(self) -> None:
        if not self.over:
            try:
                self._follow()
            except Exception as error:  # noqa: BLE001 - Locust would log it and go on for ever
                self.error = error
                self._end()

    def _follow(self) -> None:
        running: int = self.get_current_user_count()
        now_ns = self.now_ns()
        sample = self.sample()
        known_ns = self.known_ns()
        target = self.controller.tick(now_ns, running, sample, known_ns)
        asked, _ = self.current
        draining = running > asked
        if target.done:
            self._end()
        elif target.pace is not None:
            self.current = (self.pacers, float(self.pacers))
            if running == self.pacers:  # one that comes later would begin late
                self.pace(*target.pace)
        elif not draining or target.users == 0:
            self.current = (target.users, spawn_rate(target.spawn_per_s))

    def _end(self) -> None:
        self.over = True
        self.done()


def spawn_rate(users_per_s: float) -> float:
    """A rate that Locust accepts: finite and above zero."""
    return users_per_s if math.isfinite(users_per_s) and users_per_s > 0 else 1.0
