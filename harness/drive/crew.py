"""Who sends: this process is the master of workers that are its children."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import gevent
from locust import runners

from harness.drive.collecting import Collecting
from harness.drive.figures import merge
from harness.drive.relay import MasterRelay
from harness.drive.transport import say_missing
from harness.errors import MeasurementInvalid

if TYPE_CHECKING:
    from locust.env import Environment

    from harness.drive.options import DriveOptions
    from harness.measure.records import RecordSink

LOOPBACK: Final = "127.0.0.1"
START_S: Final = 60.0  # for a worker to import everything on a busy machine
EXIT_S: Final = 5.0
# Locust gives a worker up after 4 s without a sign, and with the last one the run. Ours are
# children whose death is seen at once, and a busy machine keeps one from its turn for longer.
SILENT_S: Final = 30


class Crew(Protocol):
    """Starts and ends the senders of a session."""

    def __init__(self, environment: Environment, options: DriveOptions, sink: RecordSink) -> None:
        """Create the environment's runner; records go to `sink`."""

    def start(self) -> None:
        """Be ready to send."""

    def trouble(self) -> str:
        """A sentence when the run cannot go on; empty while it can."""

    def used_up(self) -> bool:
        """Whether `options.requests` have all ended."""

    def finish(self, drain_s: float) -> None:
        """Let open requests end for at most `drain_s`, then collect every record."""

    def missing(self) -> dict[int, int]:
        """By worker, requests without a record."""

    def figures(self) -> dict[str, Any]:
        """The client's figures about itself."""

    def by_worker(self) -> dict[int, dict[str, Any]]:
        """The newest figures of each load process about itself."""

    def known_ns(self) -> int:
        """All that happened before this instant is in the sinks; 0: nothing is known yet."""

    def close(self) -> None:
        """End what `start` started; harmless when repeated."""


class Together:
    """Users run in children of this process."""

    def __init__(self, environment: Environment, options: DriveOptions, sink: RecordSink) -> None:
        """A MasterRunner on a free port of the loopback."""
        self.options = options
        runners.HEARTBEAT_LIVENESS = SILENT_S // runners.HEARTBEAT_INTERVAL
        self.runner = environment.create_master_runner(LOOPBACK, 0)
        self.relay = MasterRelay(self.runner, sink.put)
        self.children: list[subprocess.Popen[bytes]] = []
        self.closing = False
        self._collecting: Collecting | None = None

    def start(self) -> None:
        """Start the workers and wait until they are ready. Raises MeasurementInvalid."""
        self._collecting = Collecting()
        command = [sys.executable, "-m", "harness.drive.worker", str(self.runner.server.port)]
        for _ in range(self.options.processes):
            child = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603 - our own
            self.children.append(child)
            self._brief(child)
        until = time.monotonic() + START_S
        while not self.known_ns():  # each has told that its decoder runs
            if trouble := self.trouble():
                raise MeasurementInvalid(trouble)
            if time.monotonic() > until:
                ready = sum(known > 0 for known in self.relay.inbox.known_ns.values())
                raise MeasurementInvalid(
                    f"{ready} of {self.options.processes} load processes "
                    f"were ready after {START_S:.0f} s: expected all; try fewer --processes."
                )
            gevent.sleep(0.05)

    def _brief(self, child: subprocess.Popen[bytes]) -> None:
        """Options by pipe, not by argument: other users of the machine can read arguments.

        The pipe stays open: its end tells the child that we are gone.
        """
        if child.stdin is not None:
            child.stdin.write(json.dumps(self.options.to_json()).encode() + b"\n")
            child.stdin.flush()

    def trouble(self) -> str:
        """Which child died and how, or that one is alive and silent."""
        for child in self.children:
            code = child.poll()
            if code is not None and not self.closing:
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                return (
                    f"a load process (pid {child.pid}) ended {how} in the middle of the run: its "
                    "users are gone, so the level is not what was asked for; what was measured "
                    "before is kept; see its message above, and run again."
                )
        if self.runner.clients.missing:
            return (
                f"a load process has not been heard for {SILENT_S} s: what its users do is not "
                "known; what was measured before is kept; give the machine more room, or use fewer "
                "--processes, and run again."
            )
        return ""

    def used_up(self) -> bool:
        """All begun, all ended."""
        return 0 <= self.options.requests <= self.relay.inbox.ended

    def finish(self, drain_s: float) -> None:
        """Let the workers retire their users and deliver, then send them home."""
        if self.runner.shape_greenlet is not None:
            self.runner.shape_greenlet.kill()  # in a ramp it would go on to spawn users
        self.relay.finish(drain_s)
        self.closing = True
        self.runner.quit()

    def missing(self) -> dict[int, int]:
        """By worker."""
        return self.relay.inbox.missing()

    def by_worker(self) -> dict[int, dict[str, Any]]:
        """As they came with each worker's latest batch, a second old at most."""
        return self.relay.inbox.figures

    def known_ns(self) -> int:
        """Of the worker that is furthest behind."""
        known = self.relay.inbox.known_ns
        return min(known.values()) if len(known) == self.options.processes else 0

    def figures(self) -> dict[str, Any]:
        """Of all workers."""
        return merge(list(self.by_worker().values())) | {
            "missing": say_missing(self.missing()),
            "duplicates": self.relay.inbox.duplicates,
        }

    def close(self) -> None:
        """Wait a moment for the children, then end those that are left."""
        self.closing = True
        if self._collecting is not None:
            self._collecting.close()
        for child in self.children:
            if child.stdin is not None:
                child.stdin.close()
            try:
                child.wait(EXIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.runner.greenlet.kill(block=False)
