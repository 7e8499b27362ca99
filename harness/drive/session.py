"""A run without Locust's command line: what the knee search and `run` drive.

    session = Session(options, controller, sinks)
    ended = session.run()          # until the controller says done, or Ctrl-C

A MasterRunner of Locust's is here; its workers are children that die with us, and their records
arrive at the sinks. Under the `locust` command its own runners do the same.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from locust.env import Environment
from locust.event import Events

from harness.drive import login, webui
from harness.drive.clock import CLOCK
from harness.drive.crew import Crew, Together
from harness.drive.figures import client_samples
from harness.drive.guest import quiet, signals
from harness.drive.hosted import Hosted
from harness.drive.options import UI_HOST
from harness.drive.scrape import Scraper
from harness.drive.selfcheck import LoopLag
from harness.drive.shape import Controller, ControllerShape
from harness.drive.sinks import Fanout
from harness.drive.tables import LatencyTable
from harness.drive.users import session_user
from harness.measure.edges import LATE_NS
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.drive.hosted import Host
    from harness.drive.livepage import LivePage
    from harness.drive.options import DriveOptions
    from harness.measure.records import RecordSink
    from harness.measure.samples import ClientSample, ServerSample

WATCH_S: Final = 0.2
MASTER_LAG_S: Final = 0.1  # nothing is timed in this process


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, and what it says about itself."""

    interrupted: bool  # Ctrl-C or SIGTERM
    invalid: str  # a sentence when the figures must not be believed; "" otherwise
    missing: dict[int, int] = field(default_factory=dict)  # worker -> requests without a record
    figures: dict[str, Any] = field(default_factory=dict)  # the client's figures about itself


class Session:
    """One continuous run. Use it once."""

    def __init__(
        self,
        options: DriveOptions,
        controller: Controller,
        sinks: Sequence[RecordSink],
        *,
        ui_port: int | None = None,
        on_sample: Callable[[ServerSample], None] | None = None,
        drain_ns: int = 30 * SECOND,
        host: Host | None = None,
        page: LivePage | None = None,
    ) -> None:
        """`sinks` get every record and part; `on_sample` the server's figures once a second.

        `ui_port`: Locust's web UI on 127.0.0.1 (0: any free port). `drain_ns`: how long open
        requests may take to end once the controller is done; what is left becomes `cancelled`.
        Even a single process's users run in a child, so that what the controller and the sinks
        compute never delays the reader. `host`: users run where the `locust` command has them,
        whose web UI, signals and workers are its own. `page`: served with the web UI, and until
        somebody closes it.
        """
        self.options = options
        self.host = host
        self.page = page
        self.table = LatencyTable()
        shown = [self.table] if host is None and ui_port is not None else []
        self.sinks = Fanout([*sinks, *shown])
        self.drain_s = drain_ns / SECOND
        self.ui_port = ui_port
        self.scraper = Scraper(options.access(), on_sample)
        self.interrupted = False
        self.over_ns = 0  # when the load was to end: what is open then is let go or cut off
        self._over = Event()
        self._lag = LoopLag(CLOCK, MASTER_LAG_S)
        self.shape = ControllerShape(
            controller, CLOCK.now_ns, self._known_ns, self.scraper.latest, self._over.set
        )
        # a step down waits for the longest request that is allowed, then cuts it off
        patience_s = options.total_ns / SECOND + self.drain_s
        self.crew: Crew
        if host is not None:
            self.environment = host.environment
            self.environment.stop_timeout = patience_s
            self.shape.runner = self.environment.runner
            self.crew = Hosted(host, self._stopped_by_locust)
            return
        self.environment = Environment(
            user_classes=[session_user(options.workload.api)],
            events=Events(),
            shape_class=self.shape,
            host=options.url,
            stop_timeout=patience_s,
        )
        self.environment.events.test_stopping.add_listener(self._stopped_by_locust)
        self.crew = Together(self.environment, options, self.sinks)

    @property
    def running_users(self) -> int:
        """Users that run now, retiring ones included."""
        runner = self.environment.runner
        return 0 if runner is None else int(runner.user_count)

    def client_samples(self) -> list[ClientSample]:
        """What each process of the load generator says of itself, newest only."""
        return client_samples(self.crew.by_worker(), CLOCK.now_ns(), self._lag.recent_ms())

    def _known_ns(self) -> int:
        return self.crew.known_ns()

    def stop(self) -> None:
        """End the run early, in order; may be called from anywhere in this process."""
        self._over.set()

    def interrupt(self) -> None:
        """End it now, as Ctrl-C does: open requests are cut off."""
        self.interrupted = True
        self._over.set()

    def run(self) -> Ended:
        """Run until the controller says done. Ctrl-C and SIGTERM end it too, in order."""
        with self._guest():
            try:
                self.crew.start()
                self._serve_ui()
                if self.host is not None:
                    self.host.environment.host = self.options.url
                    self.host.shape = self.shape
                self.scraper.start()
                runner = self.environment.runner
                if runner is not None:
                    runner.start_shape()
                invalid = self._watch()
                self.over_ns = CLOCK.now_ns()
                self.crew.finish(0.0 if self.interrupted or invalid else self.drain_s)
                if not self.interrupted:
                    gevent.sleep(LATE_NS / SECOND)  # by then the server has counted what has ended
                    self.scraper.finish()
                if self.shape.error is not None:
                    raise self.shape.error
                missing = self.crew.missing()
                return Ended(self.interrupted, invalid, missing, self.crew.figures())
            finally:
                self.scraper.stop()
                self._lag.close()
                self.crew.close()
                if self.page is None and self.host is None:
                    self.stop_ui()
                self.sinks.close()

    @contextlib.contextmanager
    def _guest(self) -> Iterator[None]:
        """Signals and Locust's logging are ours meanwhile, unless the command is Locust's."""
        if self.host is not None:
            yield
            return
        with quiet(), signals(self.interrupt):
            yield

    def _watch(self) -> str:
        """Wait for the end; a sentence when it comes because a process died."""
        while not self._over.wait(WATCH_S):
            if trouble := self.crew.trouble():
                return trouble
            if self.crew.used_up():
                self._over.set()
        return ""

    def _serve_ui(self) -> None:
        if self.ui_port is None:
            return
        web_ui = self.environment.create_web_ui(UI_HOST, self.ui_port, delayed_start=True)
        login.protect(self.environment)
        webui.install(self.environment, self.table)
        if self.page is not None:
            self.page.install(self.environment)
            self.page.stop = self.interrupt
            self.page.close = self.stop_ui
        web_ui.start()

    def stop_ui(self) -> None:
        """Nobody is served any more; harmless when repeated."""
        web_ui = self.environment.web_ui
        if web_ui is not None and web_ui.server is not None:
            web_ui.stop()

    def _stopped_by_locust(self, **_: Any) -> None:
        """Somebody pressed Stop in the web UI: as Ctrl-C. With no worker left `_watch` says so."""
        if not self._over.is_set() and not self.crew.trouble():
            self.environment.stop_timeout = 0.0
            self.interrupt()
