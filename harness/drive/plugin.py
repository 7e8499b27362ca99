"""What makes a locustfile a harness run: import this module in it, and nothing else is needed.

It listens to Locust's events, so it works alone, headless, with the web UI, with --processes and
with --master and --worker:

    init_command_line_parser   our options
    init                       sinks, the web UI's table and metrics, the transport's end here
    test_start                 the target is asked what it is; the reader starts
    test_stopping, test_stop   users retire, every record arrives
    quitting                   what is missing is said; SLOs decide the exit code
"""

from __future__ import annotations

import logging
import subprocess
import sys
from math import nan
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import gevent
import psutil
from locust import events, runners
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner, WorkerRunner

from harness.drive import arguments, login, registry, webui
from harness.drive.clock import now_ns
from harness.drive.driver import Driver
from harness.drive.figures import client_samples
from harness.drive.files import RecordFiles
from harness.drive.hosted import MAKERS, Host
from harness.drive.plainlive import PlainLive
from harness.drive.prepare import prepare
from harness.drive.relay import FLUSH_S, MasterRelay, WorkerRelay, retire_users
from harness.drive.sinks import Fanout, Unsealed
from harness.drive.tables import LatencyTable, SloTable
from harness.drive.transport import say_missing
from harness.errors import HarnessError, MeasurementInvalid
from harness.export.live import LiveRun
from harness.measure.recent import Recent
from harness.server.address import Address

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from locust.env import Environment

    from harness.drive.options import DriveOptions
    from harness.measure.records import RecordSink

logger = logging.getLogger("locust.harness")  # Locust's handlers show it
QUIT_S: Final = 5.0
MASTER_SILENT_S: Final = 20  # then a worker ends: a load that nobody records is only a burden
INIT_S: Final = 60.0  # a worker's own start takes seconds
POLL_S: Final = 0.01
DRAIN_S: Final = 30.0  # Locust's own default, 0, kills streams at every step down
BUSY: Final = (STATE_SPAWNING, STATE_RUNNING)


class Plugin:
    """One Locust process of a run started by the `locust` command."""

    def __init__(self, environment: Environment) -> None:
        """Set up the sinks and the transport's end. Raises ConfigError, RunFolderError."""
        self.environment = environment
        self.table = LatencyTable()
        self.plan = arguments.plan(environment)
        self.slos = SloTable(self.plan.slos)
        here = not MAKERS and not isinstance(environment.runner, WorkerRunner)
        self.judges = here and arguments.judges(environment)
        arguments.fix(environment)
        self.files = RecordFiles(environment.parsed_options.run_folder)  # type: ignore[union-attr]
        self.recent = Recent()
        self.live = LiveRun(
            "locust", arguments.workload_name(environment), self.slos.slos, self.recent
        )
        self.sinks = Fanout([self.table, self.slos, self.live.counts])
        self.lent: DriveOptions | None = None  # what a study has prepared
        self.before_stop: Callable[[], None] | None = None
        self.driver: Driver | None = None
        self.master: MasterRelay | None = None
        self.worker: WorkerRelay | None = None
        environment.stop_timeout = environment.stop_timeout or DRAIN_S
        runners.MASTER_HEARTBEAT_TIMEOUT = MASTER_SILENT_S
        runner = environment.runner
        if not isinstance(runner, WorkerRunner):
            self.files.create()
            login.protect(environment)
            slos = None if MAKERS else self.slos  # a study judges its own
            webui.install(environment, self.table, slos)
            webui.install_metrics(environment, self._metrics)
        if isinstance(runner, MasterRunner):
            self.master = MasterRelay(runner, self.sinks.put, self.files.store)
        self.host: Host | None = None
        self.page: PlainLive | None = None
        if MAKERS and not isinstance(runner, WorkerRunner):
            self.host = Host(self, MAKERS[0])
        elif not isinstance(runner, WorkerRunner):
            self.page = PlainLive(self)
        _attached[environment] = self
        for hook, listener in (
            (environment.events.test_start, self._on_start),
            (environment.events.test_stopping, self._on_stopping),
            (environment.events.test_stop, self._on_stop),
            (environment.events.quitting, self._on_quitting),
        ):
            hook.add_listener(listener)

    def _metrics(self) -> bytes:
        """What Prometheus is told, made when it asks."""
        runner = self.environment.runner
        if runner is not None:
            # Locust keeps the last level when a test is over; nobody asks for it any more
            target = runner.target_user_count if runner.state in BUSY else 0
            self.live.users(int(target), int(runner.user_count))
        self.live.clients(
            client_samples(self.by_worker(), now_ns(), nan)[1:]
        )  # this one's lag is not kept
        return self.live.page()

    def by_worker(self) -> dict[int, dict[str, Any]]:
        """The newest figures of each load process about itself."""
        if self.master is not None:
            return self.master.inbox.figures
        return {self.driver.worker: self.driver.figures()} if self.driver is not None else {}

    def lend(self, options: DriveOptions, sinks: Sequence[RecordSink], live: LiveRun) -> None:
        """Until `take_back`, tests send what `options` say and records go to `sinks` too."""
        self.lent, self.live = options, live
        self.table.clear()
        self.sinks.sinks = [self.table, live.counts, *sinks]
        if self.master is not None:
            self.master.begin(options.run_id)

    def take_back(self) -> None:
        """The study is over; its counts stay to be scraped."""
        self.lent = None
        self.sinks.sinks = [self.table, self.slos, self.live.counts]

    def _on_start(self, **_: Any) -> None:
        try:
            options = self._options()
        except HarnessError as error:
            self._refuse(error)
            return
        if options is None:
            registry.refuse(self.environment)
        elif self.master is None:
            self._drive(options)

    def _options(self) -> DriveOptions | None:
        """What to send: prepared here, or by the master for its workers."""
        environment = self.environment
        if isinstance(environment.runner, WorkerRunner):
            return arguments.handed_over(environment)
        if self.lent is not None:
            arguments.hand_over(environment, self.lent)
            return self.lent
        if self.master is not None and self.master.inbox.run:
            self.master.begin("")  # a study's run was before: its numbers are not this one's
        arguments.forget(environment)
        prepared = prepare(arguments.drive_options(environment))
        arguments.hand_over(environment, prepared.options)
        self.files.describe(prepared, self.plan)
        folder, to = self.files.folder, prepared.options
        name = folder.path.name if folder else ""
        self.live.known(name, to.model, Address.parse(to.url).authority)
        return prepared.options

    def _drive(self, options: DriveOptions) -> None:
        runner = self.environment.runner
        before = self.driver
        if before is not None and not (options.fresh or before.options.fresh):
            before.retarget(options)  # the next test of the same process: numbers go on
            before.start()
            registry.register(self.environment, before)
            return
        if before is not None:
            before.close()
        index = runner.worker_index if isinstance(runner, WorkerRunner) else 0
        self.driver = driver = Driver(options, index)
        if isinstance(runner, WorkerRunner):
            self.files = RecordFiles(options.run_folder)
            kept = self.files.shared()
            if self.worker is None:
                self.worker = WorkerRelay(runner, driver, kept=kept)
            else:
                self.worker.begin(driver, kept=kept)
            driver.sinks.sinks.append(self.worker)
        else:
            driver.sinks.sinks.append(Unsealed(self.sinks))
        driver.sinks.sinks.extend(self.files.writers(index))
        driver.start()
        registry.register(self.environment, driver)

    def _refuse(self, error: HarnessError) -> None:
        """Nothing can be measured: say why; without a web UI, end with the error's code."""
        logger.error("%s", error)
        if self.page is not None:
            self.page.refuse(str(error))
        registry.refuse(self.environment)
        runner = self.environment.runner
        if runner is None:
            return
        self.environment.process_exit_code = error.exit_code
        headless = self.environment.web_ui is None
        gevent.spawn(runner.quit if headless else runner.stop)

    def _on_stopping(self, **_: Any) -> None:
        """Before Locust tells its workers to stop: records need longer than it gives them."""
        if self.before_stop is not None:
            self.before_stop()
        if self.master is not None:
            late = self.master.finish(self.environment.stop_timeout)
            if late:
                logger.warning("%d workers did not deliver all their records in time.", len(late))

    def _on_stop(self, **_: Any) -> None:
        if self.driver is not None and self.worker is None:
            self.driver.flush(FLUSH_S)

    def _on_quitting(self, **_: Any) -> None:
        runner = self.environment.runner
        if self.host is not None:
            self.host.stop()
            self.host.wait()
        interrupted = runner is not None and runner.state in BUSY
        if runner is not None and interrupted:  # Ctrl-C, SIGTERM: cut off what is open
            self.environment.stop_timeout = 0.0
            if isinstance(runner, MasterRunner):
                runner.stop(send_stop_to_client=False)
            elif self.worker is not None:
                retire_users(self.environment, 0.0)
                self.worker.flush(QUIT_S)
            else:
                runner.stop()
        if self.driver is not None:
            self.driver.close()
        lost = say_missing(self.missing()) if self.worker is None else ""
        self.files.close(lost, interrupted=interrupted)
        if self.worker is None:
            self._conclude(lost)

    def _conclude(self, lost: str) -> None:
        """Say what is missing and what became of the SLOs; both change the exit code."""
        code: int | None = None
        if lost:
            logger.error("%s", lost)
            code = MeasurementInvalid.exit_code
        if self.judges and self.files.described is not None:
            code = self._judge(self.files.described)
        if code is not None and self.environment.process_exit_code is None:
            self.environment.process_exit_code = code

    def _judge(self, folder: Path) -> int:
        """The results of the run, as `run` has them: the same records give the same code."""
        command = [sys.executable, "-m", "harness", "report", str(folder)]
        done = subprocess.run(  # noqa: S603 - our own
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        logger.info("%s", (done.stdout or done.stderr).strip())
        return done.returncode

    def missing(self) -> dict[int, int]:
        """By worker, requests without a record."""
        if self.master is not None:
            return self.master.inbox.missing()
        return self.driver.missing() if self.driver is not None else {}


@events.init_command_line_parser.add_listener
def _on_parser(parser: ArgumentParser, **_: Any) -> None:
    arguments.add_arguments(parser)
    for maker in MAKERS:
        maker.add_arguments(parser)


# A worker connects to its master within its runner's constructor, before `init` is fired. If a test
# is under way there, the master answers at once with users to spawn, and `test_start` is fired
# before there is a Plugin. Users without a driver would be the end of the worker: so the greenlet
# that hears the master waits here for the one that makes the runner. `fire` goes through a copy
# of its listeners, so the new Plugin's own is called by hand.
_attached: WeakKeyDictionary[Environment, Plugin] = WeakKeyDictionary()


@events.test_start.add_listener
def _on_early_start(environment: Environment, **_: Any) -> None:
    if environment in _attached:
        return
    with gevent.Timeout(INIT_S, False):
        while environment not in _attached:
            gevent.sleep(POLL_S)
        _attached[environment]._on_start()  # noqa: SLF001 - our own, two lines up


@events.init.add_listener
def _on_init(environment: Environment, **_: Any) -> None:
    # imports took seconds in which the loop did not run: --run-time must not begin before them
    gevent.get_hub().loop.update_now()
    try:
        Plugin(environment)
    except HarnessError as error:
        logger.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the trace is not
        for child in psutil.Process().children():  # workers that --processes forked: Locust forgets
            child.terminate()  # them, and they would wait for ever
        sys.exit(error.exit_code)
