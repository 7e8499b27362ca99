"""The load processes of the `vllm-harness` command: its children, and Locust as a guest beside it.

with child_processes(options) as load:
    ...                                  # sessions; Ctrl-C, SIGTERM and SIGHUP interrupt them
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import gevent
import gevent.hub
from locust import runners
from locust.env import Environment
from locust.event import Events

from harness.errors import MeasurementInvalid
from harness.reader.loop_lag import Collecting
from harness.senders.load_runner import POLL_S, LoadRunner
from harness.senders.users import session_user
from harness.server.address import LOOPBACK

if TYPE_CHECKING:
    from harness.senders.drive_options import DriveOptions

START_S: Final = 60.0  # for a worker to import everything on a busy machine
EXIT_S: Final = 5.0
# Locust gives a worker up after 4 s without a sign, and with the last one the run. Ours are
# children whose death is seen at once, and a busy machine keeps one from its turn for longer.
SILENT_S: Final = 30

# Ctrl-C outside `_signals` reaches main(), which says so: gevent's hub must not print it too.
gevent.hub.Hub.NOT_ERROR = (*gevent.hub.Hub.NOT_ERROR, KeyboardInterrupt)


@contextlib.contextmanager
def child_processes(options: DriveOptions) -> Iterator[LoadRunner]:
    """As many as the options say, ready to send, until the block ends.

    Even a single process's users run in a child, so that what the controller and the sinks compute
    never delays the reader. Raises MeasurementInvalid when the children do not start.
    """
    # Locust reads this constant for each worker that connects: so before the master listens.
    runners.HEARTBEAT_LIVENESS = SILENT_S // runners.HEARTBEAT_INTERVAL
    user_class = session_user(options)
    environment = Environment(user_classes=[user_class], events=Events(), host=options.url)
    # A KeyboardInterrupt while a ZeroMQ socket is made leaves half of one, and Python prints the
    # traceback of its end. So signals are caught before Locust makes any.
    with _quiet(), _signals() as signals:
        environment.create_master_runner(LOOPBACK, 0)
        load = ChildProcesses(environment, options)
        signals.send_to(load.interrupt)
        collecting = Collecting()
        try:
            load.start()
            yield load
        finally:
            collecting.close()
            load.close()


class ChildProcesses(LoadRunner):
    """The master of workers that are children of this process."""

    def __init__(self, environment: Environment, options: DriveOptions) -> None:
        super().__init__(environment)
        self.given = options
        self.children: list[subprocess.Popen[bytes]] = []
        self._interrupted = False
        self._quit = False

    def interrupt(self) -> None:
        """As Ctrl-C does; a session that attaches later is interrupted at once."""
        self._interrupted = True
        super().interrupt()

    def attach_session(self, *given: Any, interrupt: Callable[[], None], **more: Any) -> None:
        super().attach_session(*given, interrupt=interrupt, **more)
        if self._interrupted:
            interrupt()

    def start(self) -> None:
        """Start the workers and wait until they are ready. Raises MeasurementInvalid."""
        assert self.master is not None  # noqa: S101 - made so
        self.options = self.given  # its records come from now on
        self.master.begin(self.given.run_id)
        for _ in range(self.given.processes):
            self._start_child()
        until_s = time.monotonic() + START_S
        known_ns = self.master.inbox.known_ns
        while True:
            n_decoders = sum(at_ns > 0 for at_ns in known_ns.values())  # 0: it does not run yet
            # A worker whose heartbeats were late while it started its decoder is "missing" until
            # the next one, and Locust starts no users without a worker that is ready.
            n_ready = len(self.runner.clients.ready)
            if min(n_decoders, n_ready) >= self.given.processes or self._interrupted:
                return
            if trouble := self.trouble():
                raise MeasurementInvalid(trouble)
            if time.monotonic() > until_s:
                raise MeasurementInvalid(
                    f"{n_decoders} of {self.given.processes} load processes were ready after "
                    f"{START_S:.0f} s: expected all; try fewer --processes."
                )
            gevent.sleep(POLL_S)

    def _start_child(self) -> None:
        port = str(self.runner.server.port)
        command = [sys.executable, "-m", "harness.senders.worker", port]
        child = subprocess.Popen(  # noqa: S603 - our own
            command,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us, from the child's first moment on
        )
        self.children.append(child)
        assert child.stdin is not None  # noqa: S101 - asked for above
        # Options by pipe, not by argument: other users of the machine can read arguments. It
        # stays open: its end tells the child that we are gone.
        options = json.dumps(self.given.to_json())
        child.stdin.write(options.encode() + b"\n")
        child.stdin.flush()

    def trouble(self) -> str:
        """Which child died and how, or that one is silent."""
        for child in self.children:
            code = child.poll()
            if code is not None and not self._stopping:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                return (
                    f"a load process (pid {child.pid}) ended {how} in the middle of the run: its "
                    "users are gone, so the level is incomplete; what was measured "
                    "before is kept; see its message above, and run again."
                )
        return super().trouble()

    def n_dead(self) -> int:
        """Locust would take SILENT_S to notice."""
        return sum(child.poll() is not None for child in self.children)

    def _end_test(self) -> None:
        """Send the workers home too: a dead one would be waited for."""
        if not self._quit:
            self._quit = True
            if self.runner.shape_greenlet is not None:
                self.runner.shape_greenlet.kill()  # in a ramp it would go on to spawn users
            self.runner.quit()

    def close(self) -> None:
        """Wait a moment for the children, then end those that are left."""
        # From here on the end of a child is no trouble.
        self._stopping = True
        for child in self.children:
            if child.stdin is not None:
                # Its end of file is what tells a child that still serves to leave.
                child.stdin.close()
            try:
                child.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        # `quit` has ended these greenlets, unless the load never began.
        self.runner.greenlet.kill(block=False)
        super().close()


class _Signals:
    """Passes each signal on, and those that came before there was anybody to pass them to."""

    def __init__(self) -> None:
        self._interrupt: Callable[[], None] | None = None
        self._came_early = False

    def came(self) -> None:
        if self._interrupt is None:
            self._came_early = True
        else:
            self._interrupt()

    def send_to(self, interrupt: Callable[[], None]) -> None:
        self._interrupt = interrupt
        if self._came_early:
            interrupt()


@contextlib.contextmanager
def _signals() -> Iterator[_Signals]:
    """Catch SIGINT, SIGTERM and a hangup, and handle each in a greenlet of its own.

    Python's own handler would raise inside whichever greenlet happens to run, the reader's perhaps.
    A hangup that is ignored (`nohup`) stays so.
    """
    kinds = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        kinds.append(signal.SIGHUP)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    signals = _Signals()
    watchers = [gevent.signal_handler(kind, signals.came) for kind in kinds]
    try:
        yield signals
    finally:
        for watcher in watchers:
            watcher.cancel()
        # A watcher that is cancelled leaves the system's default action, not Python's handler.
        for kind, handler in before.items():
            signal.signal(kind, handler)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No chatter from Locust."""
    locust = logging.getLogger("locust")
    root = logging.getLogger()
    level = locust.level
    locust.setLevel(logging.ERROR)
    root.addFilter(_not_cpu)
    try:
        yield
    finally:
        root.removeFilter(_not_cpu)
        locust.setLevel(level)


def _not_cpu(record: logging.LogRecord) -> bool:
    """Locust's CPU warning: the client's load is in our figures."""
    return "CPU usage above" not in record.getMessage()
