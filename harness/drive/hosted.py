"""Whole studies on the senders that the `locust` command made: this process, or its workers.

A study registers itself (`conducts`); the plugin gives it a `Host`. Locust's Start button, our own
page, --autostart and --headless all come here, and the study's session then drives the load through
the environment's one runner, test after test, until the command is ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import gevent
from flask import request
from gevent.event import Event
from locust import LoadTestShape, runners
from locust.runners import STATE_INIT, STATE_MISSING, MasterRunner

from harness.drive import arguments
from harness.drive.figures import merge
from harness.drive.relay import FLUSH_S
from harness.drive.transport import say_missing
from harness.errors import ConfigError

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Mapping, Sequence

    from flask import Response
    from locust.env import Environment

    from harness.drive.options import DriveOptions
    from harness.drive.plugin import Plugin
    from harness.drive.shape import ControllerShape
    from harness.export.history import LiveState
    from harness.export.live import LiveRun
    from harness.measure.records import RecordSink

POLL_S: Final = 0.05
REPORT_S: Final = 1.0  # Locust's own 3 s make the master's user count late
SILENT_S: Final = 10  # a worker that sends no sign for so long is gone; Locust's own 4 s are few
END_S: Final = 60.0  # beyond the drain, for Locust's own end of a test


class Study(Protocol):
    """What is conducted. Its page is told of it through `state`."""

    state: LiveState

    def check(self, form: Mapping[str, str]) -> dict[str, str]:
        """By field of the form, a sentence on what is wrong; nothing is sent."""

    def given(self) -> dict[str, str]:
        """The form as the command line, or Locust's own form, fills it in."""

    def run(self, form: Mapping[str, str]) -> int:
        """Conduct it to its end; the exit code. Says everything through `state`."""

    def stop(self) -> None:
        """End it early, in order; harmless when nothing runs."""


class Maker(Protocol):
    """Makes a study for a host."""

    def __call__(self, host: Host) -> Study:
        """Once for each process that is not a worker."""

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Its options on Locust's command line."""


MAKERS: list[Maker] = []  # at most one: the locustfile's import registers it


def conducts(maker: Maker) -> None:
    """From now on the `locust` command conducts this study."""
    MAKERS[:] = [maker]
    runners.WORKER_REPORT_INTERVAL = REPORT_S
    runners.HEARTBEAT_LIVENESS = SILENT_S // runners.HEARTBEAT_INTERVAL


class Host:
    """The `locust` command's environment, lent to one session after another."""

    def __init__(self, plugin: Plugin, maker: Maker) -> None:
        """Locust's Start button leads here from now on."""
        self.plugin = plugin
        self.environment: Environment = plugin.environment
        self.shape: ControllerShape | None = None  # of the session under way
        self.fixed = arguments.fixed(self.environment)  # before any form could change them
        self.study = maker(self)
        self._greenlet: gevent.Greenlet | None = None
        self.environment.shape_class = door = Door(self)
        door.runner = self.environment.runner
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
    def workers(self) -> int:
        """Processes that can send."""
        runner = self.environment.runner
        return int(runner.worker_count) if isinstance(runner, MasterRunner) else 1

    def require_workers(self) -> None:
        """Somebody can send. Raises ConfigError."""
        if not self.workers:
            raise ConfigError(
                "no load process is connected to this master: expected at least one; try "
                "`locust -f locustfiles/knee.py --worker` beside it, then start again."
            )

    @property
    def busy(self) -> bool:
        """Whether a study is under way."""
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
        options = self.options
        if options.headless or options.autostart:  # somebody waits for the code
            self.environment.process_exit_code = code

    def stop(self) -> None:
        """End what is under way."""
        self.study.stop()

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._greenlet is not None:
            self._greenlet.join()

    def begin(self, options: DriveOptions, sinks: Sequence[RecordSink], live: LiveRun) -> None:
        """Users send this from the next start on, and their records go to `sinks` too."""
        self.plugin.lend(options, sinks, live)

    def end(self) -> None:
        """The session is over; its records have arrived."""
        self.shape = None
        self.plugin.take_back()


class Door(LoadTestShape):
    """The environment's shape as long as it lives: asks the session's, when there is one."""

    def __init__(self, host: Host) -> None:
        """Behind it, nothing runs yet."""
        super().__init__()
        self.host = host

    def tick(self) -> tuple[int, float] | None:
        """Users and spawn rate; begins a study if none is under way; None once it is over."""
        host = self.host
        if host.shape is None and not host.busy:
            wrong = host.start(host.study.given())
            if wrong:
                host.conduct(host.study.given())  # says what is wrong, and sends nothing
        while host.shape is None and host.busy:
            gevent.sleep(POLL_S)
        return host.shape.tick() if host.shape is not None else None


class Hosted:
    """A crew of senders that are there before the session and after it."""

    def __init__(self, host: Host, interrupted: Callable[[], None]) -> None:
        """`interrupted` is called when Locust ends the test of itself."""
        self.host = host
        self.environment = host.environment
        self.runner: Any = host.environment.runner
        self._interrupted = interrupted
        self._clients: list[str] = []
        self._stopping = False
        self._trouble = ""  # why Locust stopped by itself
        self._stopped = Event()

    def start(self) -> None:
        """Note who is there. Raises ConfigError when nobody is."""
        self.host.require_workers()
        if isinstance(self.runner, MasterRunner):
            self._clients = [c.id for c in self.runner.clients.all if c.state == STATE_INIT]
        self.host.plugin.before_stop = self._before_stop
        self.environment.events.test_stop.add_listener(self._after_stop)

    def _before_stop(self) -> None:
        """Locust ends the test: because we asked, a person did, or the last worker is gone."""
        if not self._stopping:
            self._trouble = self.trouble()
            self._stopping = True
            self._interrupted()

    def _after_stop(self, **_: Any) -> None:
        self._stopped.set()

    def trouble(self) -> str:
        """Which load process went, while the run needs it."""
        if not isinstance(self.runner, MasterRunner) or self._stopping:
            return self._trouble
        clients = self.runner.clients
        lost = [c for c in self._clients if c not in clients or clients[c].state == STATE_MISSING]
        if not lost:
            return ""
        return (
            f"a load process ({lost[0].rpartition('_')[0]}) ended or was not heard any more in the "
            "middle of the run: its users are gone, so the level is not what was asked for; what "
            "was measured before is kept; see its log, and run again."
        )

    def used_up(self) -> bool:
        """A study's run counts no requests."""
        return False

    def finish(self, drain_s: float) -> None:
        """Locust's own end of a test: users retire, every record arrives (the plugin's part)."""
        self.environment.stop_timeout = drain_s
        if not self._stopping:
            self._stopping = True
            self.runner.stop()
        until = time.monotonic() + drain_s + END_S
        while not self._stopped.is_set() and time.monotonic() < until:
            if self.runner.state == STATE_INIT:  # it never began
                return
            self._stopped.wait(POLL_S)
        driver = self.host.plugin.driver
        if driver is not None and self.host.plugin.master is None:
            driver.flush(FLUSH_S)

    def missing(self) -> dict[int, int]:
        """By worker."""
        return self.host.plugin.missing()

    def by_worker(self) -> dict[int, dict[str, Any]]:
        """The newest figures of each process about itself."""
        return self.host.plugin.by_worker()

    def known_ns(self) -> int:
        """Of the worker that is furthest behind."""
        plugin = self.host.plugin
        if plugin.master is None:
            return plugin.driver.known_ns if plugin.driver is not None else 0
        known = plugin.master.inbox.known_ns
        return min(known.values()) if known and len(known) >= len(self._clients) else 0

    def figures(self) -> dict[str, Any]:
        """Of all processes."""
        return merge(list(self.by_worker().values())) | {"missing": say_missing(self.missing())}

    def close(self) -> None:
        """Give the environment back."""
        self.host.plugin.before_stop = None
        self.environment.events.test_stop.remove_listener(self._after_stop)
        self.host.end()
