"""What a worker and the master tell each other, and the orderly end of a distributed run.

Records do not pass here: each worker's decoder sends them to the master. The
worker says once a second what it has begun, how it fares, and whether its decoder is lost.

Locust's own end of a run sends "quit" and waits half a second: records would be lost. So before it,
the master says FINISH to each worker; the worker lets its users retire (or cuts them off after
`drain_s`), waits until every record has arrived, and answers FINISHED.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import gevent
from gevent.event import Event
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from harness.load.arrivals import Schedule
from harness.reader.clock import CLOCK
from harness.reader.transport import ACK, BEAT, RECORDS, Ack, Beat, Inbox, RecordBatch

if TYPE_CHECKING:
    from locust.env import Environment
    from locust.rpc import Message

    from harness.records.request_record import RequestRecord
    from harness.senders.driver import Driver

logger = logging.getLogger(__name__)

FINISH: Final = "harness_finish"  # master -> worker: {"drain_s": seconds}
SCHEDULE: Final = "harness_schedule"  # master -> worker: the fields of load.arrivals.Schedule
FINISHED: Final = "harness_finished"  # worker -> master: {"worker": index}
TICK_S: Final = 0.2
BEAT_S: Final = 1.0
FLUSH_S: Final = 15.0  # how long records may take to arrive at the end of a run


class WorkerRelay:
    """The worker's end."""

    def __init__(self, runner: WorkerRunner, driver: Driver) -> None:
        """`driver` is this process's; `begin` replaces it."""
        self.runner = runner
        self._tell = Event()
        self.begin(driver)
        # `concurrent`: it waits for users and records, and other messages must not wait with it.
        runner.register_message(FINISH, self._finish, concurrent=True)
        runner.register_message(SCHEDULE, self._schedule)
        self._greenlet = gevent.spawn(self._loop)

    def begin(self, driver: Driver) -> None:
        """From now on the beats are of this driver, whose numbers count from 0."""
        self.driver = driver
        driver.on_trouble = self.tell

    def tell(self, _: str = "") -> None:
        """Let the master know at once how it stands."""
        self._tell.set()

    def close(self) -> None:
        self._greenlet.kill(block=False)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until the master has everything, or for so long."""
        self.driver.flush(timeout_s)
        # The last count has to arrive, also where records did not: it tells how many are missing.
        self._beat()

    def _loop(self) -> None:
        while True:
            self._beat()
            self._tell.wait(BEAT_S)
            self._tell.clear()

    def _beat(self) -> None:
        driver = self.driver
        beat = Beat(
            run=driver.options.run_id,
            worker=driver.worker,
            issued=driver.issued,
            figures=driver.figures(),
            trouble=driver.trouble,
        )
        try:
            self.runner.send_message(BEAT, dict(beat))
        except Exception:  # Locust's RPCError among others: the next one comes
            logger.debug("A beat could not be sent.", exc_info=True)

    def _schedule(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        schedule = Schedule(**msg.data)
        self.driver.tell(schedule)

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
        store: Callable[[int, list[RequestRecord]], None],
    ) -> None:
        """`store` gets what no decoder writes."""
        self.runner = runner
        self._deliver = deliver
        self._store = store
        self._worker_of: dict[str, int] = {}  # Locust's id -> the number in our records
        self._silent: set[str] = set()  # Locust's ids
        self.begin("")
        self._finished: set[str] = set()
        self._change = Event()
        runner.register_message(RECORDS, self._take)
        runner.register_message(BEAT, self._beat)
        runner.register_message(FINISHED, self._worker_finished)

    def begin(self, run: str) -> None:
        """From now on the records of this run, and of no other."""
        self.inbox = Inbox(self._deliver, self._store, run)
        self._silent.clear()

    def finish(self, drain_s: float, n_dead: Callable[[], int]) -> None:
        """Let every worker end its requests and deliver its records.

        Blocks the calling greenlet until all have but the `n_dead` that cannot, at most `drain_s`
        and twice FLUSH_S: a worker that gives up on some of its records after FLUSH_S still says
        so.
        """
        self._finished.clear()
        clients = self.runner.clients.all
        client_ids = [client.id for client in clients if client.state != STATE_MISSING]
        for client_id in client_ids:
            self.runner.send_message(FINISH, {"drain_s": drain_s}, client_id)
        until_s = time.monotonic() + drain_s + 2 * FLUSH_S
        while self._must_wait(client_ids, n_dead()) and time.monotonic() < until_s:
            # No greenlet runs between that look and the wait, so no sign is missed. The dead send
            # none: TICK_S is for them.
            self._change.clear()
            self._change.wait(TICK_S)
        self.watch()
        # Who has left in order is known to Locust no more.
        still_known = {client_id for client_id in client_ids if client_id in self.runner.clients}
        self._silent |= still_known - self._finished

    def watch(self) -> None:
        """Note which workers are not heard any more, and which are heard again."""
        for client in self.runner.clients.all:
            if client.state == STATE_MISSING:
                self._silent.add(client.id)
            else:
                self._silent.discard(client.id)

    def lost(self) -> tuple[str, ...]:
        """A sentence for each worker that was silent at the end, whenever that was found."""
        numbered = []
        for client_id in self._silent:
            worker = self._worker_of.get(client_id, -1)
            numbered.append((worker, client_id))
        sentences = []
        for worker, client_id in sorted(numbered):
            number = str(worker) if worker >= 0 else "?"  # it never sent a beat
            host, _, _ = client_id.rpartition("_")
            sentences.append(
                f"worker {number} ({host}) ended or fell silent before the end of the "
                "run: its users and its open requests are lost"
            )
        return tuple(sentences)

    def _must_wait(self, client_ids: list[str], n_dead: int) -> bool:
        """Whether more workers than the dead have not finished, and one of them still can."""
        clients = self.runner.clients
        unfinished = set(client_ids) - self._finished
        if len(unfinished) <= n_dead:
            return False
        # One that left in order is known to Locust no more, and one that is missing says nothing.
        known = [clients[client_id] for client_id in unfinished if client_id in clients]
        return any(client.state != STATE_MISSING for client in known)

    def _take(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        data: RecordBatch = msg.data
        taken = self.inbox.take(data)
        # both instants, so that the decoder can tell how far its clock is from ours
        ack = Ack(taken=taken, sent_ns=data["sent_ns"], at_ns=CLOCK.now_ns())
        self.runner.send_message(ACK, dict(ack), data["stream"])

    def _beat(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - as above
        self._worker_of[msg.node_id] = msg.data["worker"]
        self.inbox.beat(msg.data)

    def _worker_finished(self, environment: Environment, msg: Message) -> None:  # noqa: ARG002 - Locust's signature
        self._finished.add(msg.node_id)
        self._change.set()


def retire_users(environment: Environment, drain_s: float) -> None:
    """Let this process's users end their request and leave; cut off what is left after `drain_s`.

    A request that is cut off becomes a `cancelled` record.
    """
    runner = environment.runner
    if runner is not None and runner.user_count:
        # `stop_users` waits that long for users to end in order, then kills those that are left.
        environment.stop_timeout = drain_s
        runner.stop_users(runner.user_classes_count)
