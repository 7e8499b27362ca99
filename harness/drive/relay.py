"""The two ends of the transport on Locust's messages, and the orderly end of a distributed run.

Locust's own end of a run sends "quit" and waits half a second: records would be lost. So before it,
the master says FINISH to each worker; the worker lets its users retire (or cuts them off after
`drain_s`), waits until every record has arrived, and answers FINISHED.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from locust.runners import STATE_MISSING

from harness.drive.transport import ACK, RECORDS, Batch, Inbox, Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from locust.env import Environment
    from locust.rpc import Message
    from locust.runners import MasterRunner, WorkerRunner

    from harness.drive.driver import Driver
    from harness.measure.records import RequestRecord
    from harness.runfolder.codec import Sealed

logger = logging.getLogger(__name__)

FINISH: Final = "harness_finish"  # master -> worker: {"drain_s": seconds}
FINISHED: Final = "harness_finished"  # worker -> master: {"worker": index}
TICK_S: Final = 0.2
BEAT_S: Final = 1.0  # a batch at least this often, so that the master knows what was begun
FLUSH_S: Final = 15.0  # how long records may take to arrive at the end of a run


class WorkerRelay:
    """The worker's end: a sink of sealed records, which reach the master."""

    def __init__(self, runner: WorkerRunner, driver: Driver, *, kept: bool = False) -> None:
        """Start sending; `driver` is this process's; `kept`: it writes its own records file."""
        self.runner = runner
        self._beat_s = 0.0
        self.begin(driver, kept=kept)
        runner.register_message(ACK, self._acknowledged)
        runner.register_message(FINISH, self._finish, concurrent=True)
        self._greenlet = gevent.spawn(self._loop)

    def begin(self, driver: Driver, *, kept: bool = False) -> None:
        """From now on the records of this driver, whose numbers count from 0."""
        self.driver = driver
        self._run = driver.options.run_id if driver.options.fresh else ""
        self.outbox = Outbox(
            driver.worker,
            self._send,
            lambda: driver.issued,
            driver.figures,
            known_ns=lambda: driver.known_ns,
            kept=kept,
            run=self._run,
        )

    def put(self, records: list[Sealed]) -> None:
        """Take records; they leave within TICK_S."""
        self.outbox.put(records)

    def tell(self) -> None:
        """Let the master know within TICK_S, not BEAT_S, what is known by now."""
        self._beat_s = 0.0

    def close(self) -> None:
        """Stop sending."""
        self._greenlet.kill(block=False)

    def flush(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until the master has everything; False when it took too long."""
        until = time.monotonic() + timeout_s
        self.driver.flush(timeout_s)
        self.outbox.tick(time.monotonic(), always=True)
        while not self.outbox.empty and time.monotonic() < until:
            gevent.sleep(TICK_S / 4)
        return self.outbox.empty

    def _loop(self) -> None:
        while True:
            now = time.monotonic()
            due = now - self._beat_s >= BEAT_S
            if due:
                self._beat_s = now
            try:
                self.outbox.tick(now, always=due)
            except Exception:  # Locust's RPCError among others: the batch is sent again
                logger.debug("A batch could not be sent; it will be sent again.", exc_info=True)
            gevent.sleep(TICK_S)

    def _send(self, batch: Batch) -> None:
        self.runner.send_message(RECORDS, dict(batch))

    def _acknowledged(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        if msg.data["run"] == self._run:
            self.outbox.acknowledged(msg.data["taken"], time.monotonic())

    def _finish(self, environment: Environment, msg: Message) -> None:
        retire_users(environment, msg.data["drain_s"])
        self.flush()
        counted: dict[str, Any] = {}  # Locust's own last report may be on its way when it ends
        environment.events.report_to_master.fire(client_id=self.runner.client_id, data=counted)
        self.runner.send_message("stats", counted)
        environment.stop_timeout = 0.0  # nobody is left: Locust need not wait once more
        self.runner.send_message(FINISHED, {"worker": self.driver.worker})


class MasterRelay:
    """The master's end: hands every record of every worker to `deliver`, once."""

    def __init__(
        self,
        runner: MasterRunner,
        deliver: Callable[[list[RequestRecord]], None],
        store: Callable[[int, list[RequestRecord]], None] | None = None,
    ) -> None:
        """Start listening."""
        self.runner = runner
        self._deliver, self._store = deliver, store
        self.begin("")
        self._finished: set[str] = set()
        self._change = Event()
        runner.register_message(RECORDS, self._take)
        runner.register_message(FINISHED, self._worker_finished)

    def begin(self, run: str) -> None:
        """From now on the records of this run, and of no other."""
        self.inbox = Inbox(self._deliver, self._store, run)

    def finish(self, drain_s: float) -> list[str]:
        """Let every worker end its requests and deliver its records; ids of those that did not.

        Blocks the calling greenlet until all have, at most `drain_s` and twice FLUSH_S: a worker
        that gives up on some of its records after FLUSH_S still says so.
        """
        self._finished.clear()
        asked = [c.id for c in self.runner.clients.all if c.state != STATE_MISSING]
        for client_id in asked:
            self.runner.send_message(FINISH, {"drain_s": drain_s}, client_id)
        until = time.monotonic() + drain_s + 2 * FLUSH_S
        while (waiting := self._waiting(asked)) and time.monotonic() < until:
            self._change.clear()
            self._change.wait(TICK_S)
        return waiting

    def _waiting(self, asked: list[str]) -> list[str]:
        clients = self.runner.clients
        alive = (c for c in asked if c in clients and clients[c].state != STATE_MISSING)
        return [client_id for client_id in alive if client_id not in self._finished]

    def _take(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        data: dict[str, Any] = msg.data
        taken = self.inbox.take(Batch(**data))  # type: ignore[typeddict-item]
        self.runner.send_message(ACK, {"run": data["run"], "taken": taken}, msg.node_id)

    def _worker_finished(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        self._finished.add(msg.node_id)
        self._change.set()


def retire_users(environment: Environment, drain_s: float) -> None:
    """Let this process's users end their request and leave; cut off what is left after `drain_s`.

    A request that is cut off becomes a `cancelled` record.
    """
    runner = environment.runner
    if runner is not None and runner.user_count:
        environment.stop_timeout = drain_s
        runner.stop_users(runner.user_classes_count)
