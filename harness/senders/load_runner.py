"""What sends the load in one Locust process, and what a session sees of it.

The `locust` command (plugin.py) and `vllm-harness` (children.py) attach the same class to the
Environment of each of their processes: a master, its workers, or the only process there is. It
outlives sessions: `attach_session` says what is sent and where the records go, `detach_session`
ends that. Between the two, Locust's own events do the work:

    test_start      a worker, or the only process, starts its driver; users find it there.
                    Records go to the run folder and to the master without passing here
    test_stopping   a master lets its workers end their requests and deliver every record
    test_stop       the only process has every record handed over
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import gevent
from gevent.event import Event
from locust.dispatch import UsersDispatcher
from locust.runners import STATE_INIT, STATE_MISSING, MasterRunner, WorkerRunner

from harness.errors import HarnessError
from harness.load.arrivals import Schedule
from harness.reader.clock import CLOCK
from harness.reader.transport import say_missing
from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.senders.drive_options import DriveOptions
from harness.senders.driver import Driver
from harness.senders.process_figures import merge
from harness.senders.relay import FLUSH_S, SCHEDULE, MasterRelay, WorkerRelay
from harness.senders.users import StreamingUser, register
from harness.units import MS

if TYPE_CHECKING:
    from locust import LoadTestShape
    from locust.env import Environment

    from harness.records.request_record import RecordSink, RequestRecord


class Dispatcher(UsersDispatcher):
    """Locust's own, which after a mere rebalance stays "in progress" for good.

    A master does not dispatch to a worker that connects, or is heard again, meanwhile: once one
    had joined or recovered under load, the next one never got any users.
    """

    def _dispatcher(self) -> Generator[dict[str, dict[str, int]], None, None]:
        yield from super()._dispatcher()
        # Not in a `finally`: a generator that a newer dispatch has replaced is closed while that
        # one is in progress.
        self._dispatch_in_progress = False


logger = logging.getLogger("locust.harness")  # Locust's handlers show it
PREPARED: Final = "harness_prepared"  # the master's finished options, on their way to the workers
REPORT_S: Final = 1  # Locust's own 3 s make the master's user count late
POLL_S: Final = 0.05
LEAD_NS: Final = 300 * MS  # every process has heard of a rate before it begins
END_S: Final = 60.0  # beyond the drain, for Locust's own end of a test


class Fanout:
    """Every record to every sink, and a sink that fails stops nobody else."""

    def __init__(self, sinks: Iterable[RecordSink]) -> None:
        """`sinks` are fed in their order."""
        self.sinks = list(sinks)
        self.failures: dict[str, str] = {}  # name of a broken sink -> its first error

    def put(self, records: list[RequestRecord]) -> None:
        """Hand the records on; a sink that raises is reported once and loses only its own copy."""
        for sink in self.sinks:
            self._guarded(sink, partial(sink.put, records))

    def close(self) -> None:
        for sink in self.sinks:
            self._guarded(sink, sink.close)

    def _guarded(self, sink: RecordSink, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # a full disk must not end the measurement
            name = type(sink).__name__
            if name not in self.failures:
                self.failures[name] = f"{type(error).__name__}: {error}"
                log = logging.getLogger(__name__)  # Locust's is quiet in the children's parent
                log.warning("The sink %s failed, the others go on.", name, exc_info=True)


class RunningShape(Protocol):
    """The load that a session asks for, tick by tick."""

    runner: Any

    def tick(self) -> tuple[int, float] | None:
        """(users, users started per second); None ends the test."""


class LoadRunner:
    """One Locust process; in a master it stands for the workers too."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.runner: Any = environment.runner
        self.sinks = Fanout([])
        self.options: DriveOptions | None = None  # of the session that is attached
        self.shape: RunningShape | None = None
        self.driver: Driver | None = None
        self.relay: WorkerRelay | None = None
        self.master: MasterRelay | None = None
        # what a test that no session has started does: attach one, or leave it so: refused
        self.on_test_without_session: Callable[[], None] = lambda: None
        self.on_refused: Callable[[], None] = lambda: None
        self._interrupt: Callable[[], None] = lambda: None
        self._on_stopping: Callable[[], None] = lambda: None
        self._writers: dict[int, RecordWriter] = {}  # for workers that see no run folder
        self._clients: list[str] = []  # workers that the session began with
        self._stopping = False
        self._trouble = ""  # why Locust stopped by itself
        self._paced: tuple[int, float] | None = None
        self._stopped = Event()
        self._driven = Event()  # the driver has started, or failed to
        # A master makes its dispatcher with its first users: whatever comes later is too late.
        environment.dispatcher_class = Dispatcher
        if isinstance(self.runner, MasterRunner):
            self.master = MasterRelay(self.runner, self.sinks.put, self._store)
        events = environment.events
        events.test_start.add_listener(self.on_test_start)
        events.test_stopping.add_listener(self._on_test_stopping)
        events.test_stop.add_listener(self._on_test_stop)

    # What a session asks of it.

    def attach_session(
        self,
        options: DriveOptions,
        sinks: Sequence[RecordSink],
        *,
        interrupt: Callable[[], None],
        on_stopping: Callable[[], None],
        shape: RunningShape | None = None,
    ) -> None:
        """Until `detach_session`, tests send what `options` say and records go to `sinks`.

        `interrupt` is called when a person wants the end at once, `on_stopping` when Locust ends
        the test by itself. `shape` says how many users there are; without one, Locust's form does.
        """
        if self.master is not None:
            if self.options != options:  # else its workers' first batches have been taken
                self.master.begin(options.run_id)
            # A worker that is missing already is no loss of this session's.
            ready = [client for client in self.runner.clients.all if client.state == STATE_INIT]
            self._clients = [client.id for client in ready]
        self.sinks.sinks = list(sinks)
        self._interrupt = interrupt
        self._on_stopping = on_stopping
        self._stopping = False
        self._trouble = ""
        self._paced = None
        self._stopped.clear()
        self.shape = shape
        self.options = options
        if shape is not None:
            shape.runner = self.runner
            own_shape = self.environment.shape_class  # of a locustfile that has one
            self.environment.shape_class = own_shape or cast("LoadTestShape", shape)
            self.environment.host = options.url

    def detach_session(self) -> None:
        """The session is over; what can be known of it stays."""
        self._keep_sends()
        self.sinks.close()
        self.sinks.sinks = []  # a run's records are let go, whatever outlives it
        self.options = None
        self.shape = None
        self._interrupt = lambda: None
        self._on_stopping = lambda: None
        self._close_writers()
        if self.driver is not None and self.relay is None:
            self.driver.close()

    def interrupt(self) -> None:
        """End the session that is attached, as Ctrl-C does; harmless without one."""
        self._interrupt()

    @property
    def n_workers(self) -> int:
        if self.master is None:
            return 1
        return int(self.runner.worker_count)

    def trouble(self) -> str:
        """A sentence when a load process or its records are lost; "" while none are."""
        if self.lost_records:
            return self.lost_records
        if self.master is None or self._stopping:
            return self._trouble
        clients = self.runner.clients
        heard = {client.id for client in clients.all if client.state != STATE_MISSING}
        lost = [client_id for client_id in self._clients if client_id not in heard]
        if not lost:
            return ""
        host, _, _ = lost[0].rpartition("_")
        return (
            f"a load process ({host}) ended or fell silent in the "
            "middle of the run: its users are gone, so the level is incomplete; what "
            "was measured before is kept; see its log, and run again."
        )

    @property
    def lost_records(self) -> str:
        """Why what was recorded must not be believed; "" as long as it may."""
        if self.master is not None:
            return self.master.inbox.trouble
        if self.driver is not None:
            return self.driver.trouble
        return ""

    def own_users(self) -> int:
        """How many of the users that Locust has spawned send through the harness."""
        counts = self.runner.target_user_classes_count
        classes = {user_class.__name__: user_class for user_class in self.environment.user_classes}
        ours = [name for name, kind in classes.items() if issubclass(kind, StreamingUser)]
        return sum(counts.get(name, 0) for name in ours)

    def pace(self, level: int, rate_per_s: float) -> None:
        """All processes send at this rate, each its stripe, from one instant on. Told once."""
        if self._paced == (level, rate_per_s):
            return
        self._paced = level, rate_per_s
        schedule = Schedule(level, rate_per_s, CLOCK.now_ns() + LEAD_NS)
        if self.master is not None:
            self.runner.send_message(SCHEDULE, schedule._asdict())
        elif self.driver is not None:
            self.driver.tell(schedule)

    def used_up(self) -> bool:
        """Whether `options.requests` have all ended."""
        if self.options is None or self.options.requests < 0:
            return False
        n_ended = 0
        if self.master is not None:
            n_ended = self.master.inbox.ended
        elif self.driver is not None:
            n_ended = self.driver.ended
        # By those that have ended: with those that were begun, the last ones would be cut off.
        return self.options.requests <= n_ended

    def finish(self, drain_s: float) -> None:
        """End the test: users retire within `drain_s`, then every record arrives."""
        self.environment.stop_timeout = drain_s
        if not self._stopping:
            self._stopping = True
            self._end_test()
        until_s = time.monotonic() + drain_s + END_S
        while not self._stopped.wait(POLL_S) and time.monotonic() < until_s:
            # It never began: then Locust fires no `test_stop`, and nothing would end this wait.
            if self.runner.state == STATE_INIT:
                return

    def _end_test(self) -> None:
        headless = self.environment.web_ui is None
        if self.shape is None and headless:  # Locust would wait for its --run-time
            self.runner.quit()
        else:
            self.runner.stop()

    def n_dead(self) -> int:
        """How many load processes are known not to answer any more."""
        return 0

    def lost_workers(self) -> tuple[str, ...]:
        """A sentence for each worker that was lost, once the test has ended."""
        return self.master.lost() if self.master is not None else ()

    def watch_workers(self) -> None:
        """Note who is not heard: where Locust decides, its test goes on without them."""
        if self.master is not None:
            self.master.watch()

    def missing(self) -> dict[int, int]:
        if self.master is not None:
            return self.master.inbox.missing()
        return self.driver.missing() if self.driver is not None else {}

    def by_worker(self) -> dict[int, dict[str, Any]]:
        """The newest figures of each load process about itself."""
        if self.master is not None:
            return self.master.inbox.figures
        if self.driver is None:
            return {}
        return {self.driver.worker: self.driver.figures()}

    def figures(self) -> dict[str, Any]:
        """The same of all processes together."""
        missing = say_missing(self.missing()) or self._trouble
        by_worker = self.by_worker()
        merged = merge(list(by_worker.values()))
        return merged | {"missing": missing}

    def known_ns(self) -> int:
        """All that happened before this instant is in the sinks; 0: nothing is known yet."""
        if self.master is None:
            return self.driver.known_ns if self.driver is not None else 0
        known_ns = self.master.inbox.known_ns
        # A worker that has said nothing yet may hold records of any instant.
        if not known_ns or len(known_ns) < len(self._clients):
            return 0
        return min(known_ns.values())  # the worker that is furthest behind counts

    # What Locust's events do.

    def on_test_start(self, **_: Any) -> None:
        """Listener of Locust's event: make sure that users find a driver, or leave."""
        options = self._options()
        has_driver = self.driver is not None and self.driver.options is options
        if options is None:
            register(self.environment, None)
            self.on_refused()
        elif self.master is None and not has_driver:
            try:
                self.drive(options)
            except HarnessError as error:
                logger.error("%s", error)  # noqa: TRY400 - the sentence is for a person
                register(self.environment, None)
                if self.relay is not None:
                    # Not here: `quit` kills Locust's greenlets, and this is one of them.
                    gevent.spawn(self.runner.quit)
        elif self.master is None:
            # A worker is ready for its master from its constructor on, but the decoder of its
            # driver takes a moment to start. Users that come before would find none, and leave.
            self._driven.wait()

    def _options(self) -> DriveOptions | None:
        """What to send: the session's, or, in a worker, what its master hands over."""
        parsed = self.environment.parsed_options
        if isinstance(self.runner, WorkerRunner):
            handed_over = getattr(parsed, PREPARED, None)
            return DriveOptions.from_json(handed_over) if handed_over else self.options
        # Locust sends options that it does not know to its workers: so travel ours. Those of the
        # test before must not, where this one is refused.
        if parsed is not None:
            setattr(parsed, PREPARED, None)
        if self.options is None or self._stopped.is_set():  # or one whose test is over
            self.on_test_without_session()
        if parsed is not None and self.options is not None:
            setattr(parsed, PREPARED, self.options.to_json())
        return self.options

    def drive(self, options: DriveOptions) -> None:
        """Users of this process send this from now on, with numbers from 0.

        Raises ConfigError, MeasurementInvalid when the decoder does not start.
        """
        runner = self.runner
        if self.driver is not None:
            self.driver.close()
        self._driven.clear()
        self.options = options
        if isinstance(runner, WorkerRunner):
            master = (runner.master_host, runner.master_port, runner.client_id)
            driver = Driver(options, runner.worker_index, master=master)
            self.driver = driver
            if self.relay is None:
                self.relay = WorkerRelay(runner, driver)
            else:
                self.relay.begin(driver)
        else:
            driver = Driver(options, 0, self.sinks.put)
            self.driver = driver
        try:
            driver.start()
            register(self.environment, driver)
        except BaseException:
            self.driver = None  # the next test start tries again
            raise
        finally:
            self._driven.set()

    def _on_test_stopping(self, **_: Any) -> None:
        """Because a session asked, a person did, or the last worker is gone.

        This comes before Locust tells its workers to stop: records need longer than it gives them.
        """
        if not self._stopping:
            # Asked before it counts as stopping: from then on a worker that leaves is no trouble.
            self._trouble = self.trouble()
            self._stopping = True
            self._on_stopping()
        if self.master is not None:
            self.master.finish(self.environment.stop_timeout, self.n_dead)

    def _on_test_stop(self, **_: Any) -> None:
        if self.driver is not None and self.relay is None:
            self.driver.flush(FLUSH_S)
        self._stopped.set()

    def _store(self, worker: int, records: list[RequestRecord]) -> None:
        """Write the records of a worker that cannot."""
        options = self.options
        if options is None or not options.run_folder:
            return
        if worker not in self._writers:
            secrets = options.access().secrets
            folder = RunFolder(Path(options.run_folder), secrets)
            self._writers[worker] = RecordWriter(folder, worker)
        self._writers[worker].put(records)

    def _keep_sends(self) -> None:
        """Of workers that see no run folder: what they said last, a second ago at most."""
        if self.master is None:
            return
        folder = Path(self.options.run_folder) if self.options is not None else Path()
        if not (folder / names.RUN).is_file():
            return
        for worker, n_begun in self.master.inbox.issued.items():
            path = folder / names.sends(worker)
            # "x": a worker that sees the run folder has written its own.
            with contextlib.suppress(OSError), path.open("x") as file:
                file.write(f"{n_begun}\n")

    def _close_writers(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def close(self) -> None:
        """The process ends; what is open becomes `cancelled`."""
        if self.relay is not None:
            self.relay.close()
        if self.driver is not None:
            self.driver.close()
        self._close_writers()
