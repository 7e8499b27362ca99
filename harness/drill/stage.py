"""The events of a drill, when they are due.

Events run in greenlets of their own, since a server takes its time to start. What an event did to a
server or to the way there is undone when its time is over, and whatever happens when the drill is.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import gevent
from gevent.pool import Group

from harness.errors import HarnessError
from harness.lifecycle.balancer import Fault
from harness.reader.clock import CLOCK
from harness.server.http_exchange import HttpConnection
from harness.units import SECOND

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Sequence

    from harness.drill.cluster import Cluster
    from harness.drill.events import ClusterActs, Event, Step
    from harness.drill.plan import Drill
    from harness.drill.servers import Server
    from harness.lifecycle.balancer import BalancerProcess
    from harness.server.access import TargetAccess


@dataclass(slots=True)
class Stage:
    """What events act on. As a context manager it undoes at its end what is not undone yet."""

    drill: Drill
    servers: Sequence[Server]
    balancer: BalancerProcess
    access: TargetAccess  # of the balancer
    model: str
    log: Callable[[dict[str, Any]], object] = lambda _row: None
    done: list[dict[str, Any]] = field(default_factory=list)  # rows of events.jsonl
    cluster: Cluster | None = None
    failed: str = ""  # why an event could not be done
    _group: Group = field(default_factory=Group)
    _begun: dict[int, Event] = field(default_factory=dict)  # by their numbers, until undone

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # First, so that no event begins, or is undone by its own greenlet, meanwhile.
        self._group.kill()
        for event in list(self._begun.values()):
            self._try(event, event.undo_early)
        self._begun.clear()

    def begin(self, began_ns: int) -> None:
        """From now on events happen at their instants after `began_ns`."""
        for number, event in enumerate(self.drill.events):
            self._group.spawn(self._happen, number, event, began_ns)

    def _happen(self, number: int, event: Event, began_ns: int) -> None:
        wait_ns = began_ns + event.at_ns - CLOCK.now_ns()
        gevent.sleep(max(wait_ns, 0) / SECOND)
        self._say(event, "begins")
        self._begun[number] = event  # before it acts: Ctrl-C may come in between
        self._try(event, event.do)
        self._try(event, event.meanwhile)
        self._try(event, event.undo)
        del self._begun[number]
        if event.has_end:
            self._say(event, "is over")

    def _try(self, event: Event, step: Step) -> None:
        try:
            step(self)
        except Exception as error:  # noqa: BLE001 - a drill must not pass without its event
            self.failed = self.failed or f"{event.sentence} could not be done: {error}"

    def _say(self, event: Event, what: str) -> None:
        row = {
            "at_ns": CLOCK.now_ns(),
            "name": event.name,
            "what": what,
            "event": event.sentence,
        }
        self.done.append(row)
        self.log(row)

    # What follows is what events act with: `Scene` of drill/events.py.

    def send_signal(self, replica: int, number: signal.Signals) -> None:
        self.servers[replica].send(number)

    def start(self, replica: int) -> None:
        self.servers[replica].start()

    def is_container(self, replica: int) -> bool:
        return bool(self.servers[replica].container)

    def set_fault(
        self, replica: int, *, cut: bool = False, delay_s: float = 0.0, bytes_per_s: float = 0.0
    ) -> None:
        fault = Fault(cut, delay_s, bytes_per_s)
        self.balancer.set_fault(self.servers[replica].url, fault)

    def in_cluster(self, step: Callable[[ClusterActs], object]) -> None:
        if self.cluster is not None:
            step(self.cluster)

    def sleep(self, seconds: float) -> None:
        gevent.sleep(seconds)

    def run_beside(self, event: Event, step: Step) -> None:
        running = gevent.spawn(self._try, event, step)
        try:
            gevent.sleep(event.length_s)
        finally:  # also where the drill ends early, and this greenlet is killed
            running.kill()

    def send_evenly(
        self, bodies: Iterator[dict[str, Any]], pause_s: float, hang_up_s: float
    ) -> None:
        sending = Group()
        try:
            for body in bodies:
                sending.spawn(self._send, body, hang_up_s)
                gevent.sleep(pause_s)
        finally:
            sending.kill()

    def _send(self, body: dict[str, Any], hang_up_s: float) -> None:
        hanging_up = gevent.Timeout(hang_up_s or None)  # None: never
        line = HttpConnection(self.access)
        with suppress(HarnessError, gevent.Timeout), hanging_up, closing(line):
            line.fetch("/v1/completions", body, last=True)
