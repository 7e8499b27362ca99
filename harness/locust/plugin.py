"""A locustfile's way to the harness: a study registers itself, and conducts the tests of `locust`.

    init_command_line_parser   our options and the study's
    init                       in each process a LoadRunner; beside the web UI a LocustHost
    quitting                   the study ends, its results are computed, records arrive

It works alone, headless, with the web UI, with --processes and with --master and --worker.
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary

import gevent
import psutil
from flask import Response, request
from locust import LoadTestShape, events, runners
from locust.runners import STATE_RUNNING, STATE_SPAWNING, WorkerRunner

from harness.errors import ConfigError, HarnessError
from harness.locust import arguments
from harness.locust.interrupts import interrupt_main_greenlet
from harness.senders.load_runner import POLL_S, REPORT_S, LoadRunner
from harness.senders.relay import retire_users

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.core.run_kinds import RunKind

logger = logging.getLogger("locust.harness")  # Locust's handlers show it
QUIT_S: Final = 5.0
INIT_S: Final = 60.0  # a worker's own start takes seconds
MASTER_SILENT_S: Final = 20  # then a worker ends: a load that nobody records is only a burden
SILENT_S: Final = 10  # a worker that sends no sign for so long is gone; Locust's own 4 s are few
DRAIN_S: Final = 30.0  # Locust's own default, 0, kills streams at every step down
TTFT_ROW: Final = "TTFT"  # the type of a row in Locust's statistics, beside POST
BUSY: Final = (STATE_SPAWNING, STATE_RUNNING)


class Study(Protocol):
    """What a host conducts, test after test."""

    kind: type[RunKind]

    def __init__(self, host: LocustHost) -> None:
        """Once for each process that is not a worker. Raises ConfigError, RunFolderError."""

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Its options on Locust's command line."""

    def check(self, form: Mapping[str, str]) -> dict[str, str]:
        """By field of the form, a sentence on what is wrong; nothing is sent."""

    def given(self) -> dict[str, str]:
        """The form as the command line, or Locust's own form, fills it in."""

    def run(self, form: Mapping[str, str]) -> int | None:
        """Conduct it to its end; the exit code, None for Locust's own."""

    def stop(self) -> None:
        """End it early, in order; harmless when nothing runs."""


STUDY: list[type[Study]] = []  # exactly one: the locustfile's import registers it


def register_study(study: type[Study]) -> None:
    """From now on the `locust` command conducts this study."""
    STUDY[:] = [study]
    runners.WORKER_REPORT_INTERVAL = REPORT_S
    runners.HEARTBEAT_LIVENESS = SILENT_S // runners.HEARTBEAT_INTERVAL


class LocustHost:
    """What a study has of the `locust` command: its senders, its options, its Start and Stop."""

    def __init__(self, load: LoadRunner, study: type[Study]) -> None:
        self.load = load
        self.environment = load.environment
        self.fixed = arguments.fixed(self.environment)  # before any form could change them
        self._greenlet: gevent.Greenlet | None = None
        self.study = study(self)
        if self.study.kind.decides:
            self.environment.shape_class = DelegatingShape(self)
            self.environment.shape_class.runner = load.runner
        else:
            load.on_test_without_session = self._attach
        load.on_refused = self._refused
        self.environment.events.quitting.add_listener(self._on_quitting)
        web_ui = self.environment.web_ui
        if web_ui is not None and web_ui.app is not None:
            web_ui.app.after_request(self._stopped_there)

    def _stopped_there(self, response: Response) -> Response:
        """Stop on Locust's own page ends a study that has no test yet, too.

        Locust has nothing to stop then, and a master does not even say that somebody asked.
        """
        if request.endpoint == "locust.stop" and response.is_json and self.busy:
            self.stop()
        return response

    @property
    def options(self) -> Any:
        """The command line's, and what Locust's own form made of them."""
        return self.environment.parsed_options

    @property
    def attended(self) -> bool:
        """Whether a person watches; else somebody waits for the exit code."""
        return not (self.options.headless or self.options.autostart)

    def require_workers(self) -> None:
        if not self.load.n_workers:
            raise ConfigError(
                "no load process is connected to this master: expected at least one; try "
                "`locust -f LOCUSTFILE --worker` with the same file beside it, then start again."
            )

    @property
    def busy(self) -> bool:
        return self._greenlet is not None and not self._greenlet.ready()

    def start(self, form: Mapping[str, str]) -> dict[str, str]:
        """Begin; by field what is wrong with the form ("" for all of it), {} when it began."""
        if self.busy:
            return {"": "A run is under way: expected it to end first; try Stop."}
        wrong = self.study.check(form)
        if not wrong:
            self._greenlet = gevent.spawn(self.conduct, dict(form))
        return wrong

    def conduct(self, form: Mapping[str, str]) -> None:
        """The study to its end, or to what it refuses; its code."""
        code = self.study.run(form)
        if not self.attended and code is not None:
            self.environment.process_exit_code = code

    def _attach(self) -> None:
        """Locust has started a test by itself: the study attaches to it, or refuses it."""
        self.wait()  # for the results of the test before
        self.start(self.study.given())
        while self.busy and self.load.options is None:
            gevent.sleep(POLL_S)

    def _refused(self) -> None:
        """Nothing can be sent, and the study has said why: without a web UI, end."""
        runner = self.load.runner
        is_headless = self.environment.web_ui is None
        end = runner.quit if is_headless else runner.stop
        # Not here: this is called while Locust starts the test.
        gevent.spawn(end)

    def stop(self) -> None:
        self.study.stop()

    def wait(self) -> None:
        if self._greenlet is not None:
            self._greenlet.join()

    def _on_quitting(self, **_: Any) -> None:
        self.stop()
        self.wait()
        self.load.close()


class DelegatingShape(LoadTestShape):
    """The environment's shape as long as it lives: asks the session's, when there is one."""

    def __init__(self, host: LocustHost) -> None:
        super().__init__()
        self.host = host

    def tick(self) -> tuple[int, float] | None:
        """Users and spawn rate; begins a study if none is under way; None once it is over."""
        host = self.host
        load = host.load
        if load.shape is None and not host.busy:
            wrong = host.start(host.study.given())
            if wrong:
                host.conduct(host.study.given())  # says what is wrong, and sends nothing
        while load.shape is None and host.busy:
            gevent.sleep(POLL_S)
        if load.shape is None:
            return None
        return load.shape.tick()


def _end_worker(load: LoadRunner) -> None:
    """Ctrl-C or SIGTERM reached a worker, or its master sent it home."""
    if load.runner.state in BUSY:
        load.environment.stop_timeout = 0.0
        retire_users(load.environment, 0.0)
        if load.relay is not None:
            load.relay.flush(QUIT_S)
    load.close()


@events.init_command_line_parser.add_listener
def _on_parser(parser: ArgumentParser, **_: Any) -> None:
    arguments.add_arguments(parser)
    for study in STUDY:
        study.add_arguments(parser)


# A worker connects to its master within its runner's constructor, before `init` is fired. If a test
# is under way there, the master answers at once with users to spawn, and `test_start` is fired
# before there is a LoadRunner. Users without a driver would be the end of the worker: so the
# greenlet that hears the master waits here for the one that makes the runner. `fire` goes through a
# copy of its listeners, so the new LoadRunner's own is called by hand.
_loads: WeakKeyDictionary[Environment, LoadRunner] = WeakKeyDictionary()


@events.test_start.add_listener
def _on_early_start(environment: Environment, **_: Any) -> None:
    if environment in _loads:
        return
    with gevent.Timeout(INIT_S, False):
        while environment not in _loads:
            gevent.sleep(POLL_S)
        _loads[environment].on_test_start()


def _count_first_token(environment: Environment) -> None:
    """From now on TTFT is in Locust's statistics, as a row of its own for each name.

    Only in the rows: the aggregated one stays that of requests.
    """

    def on_request(name: str, context: Mapping[str, Any], **_: Any) -> None:
        ttft_ms = context.get("ttft_ms")
        if ttft_ms is not None:
            environment.stats.get(name, TTFT_ROW).log(ttft_ms, 0)

    environment.events.request.add_listener(on_request)


@events.init.add_listener
def _on_init(environment: Environment, **_: Any) -> None:
    # imports took seconds in which the loop did not run: --run-time must not begin before them
    gevent.get_hub().loop.update_now()
    runners.MASTER_HEARTBEAT_TIMEOUT = MASTER_SILENT_S
    environment.stop_timeout = environment.stop_timeout or DRAIN_S
    load = LoadRunner(environment)
    _count_first_token(environment)
    _loads[environment] = load
    if isinstance(environment.runner, WorkerRunner):
        environment.events.quitting.add_listener(lambda **_: _end_worker(load))
        return
    interrupt_main_greenlet()
    try:
        LocustHost(load, STUDY[0])
    except HarnessError as error:
        logger.error("%s", error)  # noqa: TRY400 - the sentence is for a person, the trace is not
        # Workers that --processes forked: Locust forgets them, and they would wait for ever.
        for child in psutil.Process().children():
            child.terminate()
        sys.exit(error.exit_code)
