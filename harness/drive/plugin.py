"""What makes a locustfile a harness run: import this module in it, and nothing else is needed.

It listens to Locust's events, so it works alone, headless, with the web UI, with --processes and
with --master and --worker:

    init_command_line_parser   our options
    init                       sinks, the web UI's table, the transport's end of this process
    test_start                 the target is asked what it is; the reader starts
    test_stopping, test_stop   users retire, every record arrives
    quitting                   what is missing is said; SLOs decide the exit code
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final

import gevent
from locust import events
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner, WorkerRunner

from harness.drive import arguments, registry, webui
from harness.drive.driver import Driver
from harness.drive.files import RecordFiles
from harness.drive.prepare import prepare
from harness.drive.relay import FLUSH_S, MasterRelay, WorkerRelay, retire_users
from harness.drive.sinks import Fanout
from harness.drive.tables import MISSED, LatencyTable, SloTable
from harness.drive.transport import say_missing
from harness.errors import EXIT_SLO_MISSED, HarnessError, MeasurementInvalid

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from locust.env import Environment

    from harness.drive.options import DriveOptions

logger = logging.getLogger("locust.harness")  # Locust's handlers show it
QUIT_S: Final = 5.0
DRAIN_S: Final = 30.0  # Locust's own default, 0, kills streams at every step down
BUSY: Final = (STATE_SPAWNING, STATE_RUNNING)


class Plugin:
    """One Locust process of a run started by the `locust` command."""

    def __init__(self, environment: Environment) -> None:
        """Set up the sinks and the transport's end. Raises ConfigError, RunFolderError."""
        self.environment = environment
        self.table = LatencyTable()
        self.slos = SloTable(arguments.slos(environment))
        self.files = RecordFiles(environment.parsed_options.run_folder)  # type: ignore[union-attr]
        self.sinks = Fanout([self.table, self.slos])
        self.driver: Driver | None = None
        self.master: MasterRelay | None = None
        self.worker: WorkerRelay | None = None
        environment.stop_timeout = environment.stop_timeout or DRAIN_S
        runner = environment.runner
        if not isinstance(runner, WorkerRunner):
            self.files.create()
            webui.install(environment, self.table, self.slos)
        if isinstance(runner, MasterRunner):
            self.master = MasterRelay(runner, self.sinks.put, self.files.store)
        for hook, listener in (
            (environment.events.test_start, self._on_start),
            (environment.events.test_stopping, self._on_stopping),
            (environment.events.test_stop, self._on_stop),
            (environment.events.quitting, self._on_quitting),
        ):
            hook.add_listener(listener)

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
        arguments.forget(environment)
        prepared = prepare(arguments.drive_options(environment))
        arguments.hand_over(environment, prepared.options)
        self.files.describe(prepared)
        return prepared.options

    def _drive(self, options: DriveOptions) -> None:
        runner = self.environment.runner
        if self.driver is not None:  # the next test of the same process: numbers go on
            self.driver.retarget(options)
            registry.register(self.environment, self.driver)
            return
        index = runner.worker_index if isinstance(runner, WorkerRunner) else 0
        self.driver = driver = Driver(options, index)
        if isinstance(runner, WorkerRunner):
            self.files = RecordFiles(options.run_folder)
            self.worker = WorkerRelay(runner, driver, kept=self.files.shared())
            driver.sinks.sinks.append(self.worker)
        else:
            driver.sinks.sinks.append(self.sinks)
        driver.sinks.sinks.extend(self.files.writers(index))
        driver.start()
        registry.register(self.environment, driver)

    def _refuse(self, error: HarnessError) -> None:
        """Nothing can be measured: say why; without a web UI, end with the error's code."""
        logger.error("%s", error)
        registry.refuse(self.environment)
        runner = self.environment.runner
        if runner is None:
            return
        self.environment.process_exit_code = error.exit_code
        headless = self.environment.web_ui is None
        gevent.spawn(runner.quit if headless else runner.stop)

    def _on_stopping(self, **_: Any) -> None:
        """Before Locust tells its workers to stop: records need longer than it gives them."""
        if self.master is not None:
            late = self.master.finish(self.environment.stop_timeout)
            if late:
                logger.warning("%d workers did not deliver all their records in time.", len(late))

    def _on_stop(self, **_: Any) -> None:
        if self.driver is not None and self.worker is None:
            self.driver.flush(FLUSH_S)

    def _on_quitting(self, **_: Any) -> None:
        runner = self.environment.runner
        if runner is not None and runner.state in BUSY:  # Ctrl-C, SIGTERM: cut off what is open
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
        self.files.close()
        if self.worker is None:
            self._conclude()

    def _conclude(self) -> None:
        """Say what is missing and which SLOs were missed; both change the exit code."""
        code: int | None = None
        if any(row["verdict"] == MISSED for row in self.slos.rows()):
            code = EXIT_SLO_MISSED
        for row in self.slos.rows():
            logger.info("SLO %s: %s (%s over, %s allowed, n %s)", *row.values())
        lost = self._missing()
        if lost:
            logger.error("%s", say_missing(lost))
            code = MeasurementInvalid.exit_code
        if code is not None and self.environment.process_exit_code is None:
            self.environment.process_exit_code = code

    def _missing(self) -> dict[int, int]:
        if self.master is not None:
            return self.master.inbox.missing()
        return self.driver.missing() if self.driver is not None else {}


@events.init_command_line_parser.add_listener
def _on_parser(parser: ArgumentParser, **_: Any) -> None:
    arguments.add_arguments(parser)


@events.init.add_listener
def _on_init(environment: Environment, **_: Any) -> None:
    try:
        Plugin(environment)
    except HarnessError as error:
        logger.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the trace is not
        sys.exit(error.exit_code)
