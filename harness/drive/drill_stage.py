"""The events of a drill, when they are due.

Events run in greenlets of their own, since a server takes its time to start. What an event did to a
server or to the way there is undone when its time is over, and whatever happens when the drill is.
"""

from __future__ import annotations

import random
import signal
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import gevent
from gevent.pool import Group

from harness.engine.balancer import WELL, BalancerProcess, Fault
from harness.errors import HarnessError
from harness.reader.clock import CLOCK
from harness.server.http_exchange import HttpConnection
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.drill.plan import Drill, Event
    from harness.server.access import TargetAccess
    from harness.server.drill_servers import Server

SLICE_S: Final = 0.05  # of a slowed server: it runs a part of each
TEXT: Final = "the a of and to in is it on at by we he or an as be do go if me my no so up us "


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
    failed: str = ""  # why an event could not be done
    _group: Group = field(default_factory=Group)
    _undo: dict[int, Callable[[], object]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.kill()
        for undo in list(self._undo.values()):
            undo()
        self._undo.clear()

    def begin(self, began_ns: int) -> None:
        """From now on events happen at their instants after `began_ns`."""
        for number, event in enumerate(self.drill.events):
            self._group.spawn(self._happen, number, event, began_ns)

    def _happen(self, number: int, event: Event, began_ns: int) -> None:
        gevent.sleep(max(began_ns + event.at_ns - CLOCK.now_ns(), 0) / SECOND)
        self._say(event, "begins")
        length_s = (event.end_ns - event.at_ns) / SECOND
        try:
            undo = getattr(self, f"_{event.do}")(event)
            if undo is not None:
                self._undo[number] = undo
                gevent.sleep(length_s)
                self._undo.pop(number)()
        except (HarnessError, OSError) as error:
            self.failed = self.failed or f"{event.sentence} could not be done: {error}"
        if length_s or event.do == "restart":
            self._say(event, "is over")

    def _say(self, event: Event, what: str) -> None:
        row = {"at_ns": CLOCK.now_ns(), "name": event.name, "what": what, "event": event.sentence}
        self.done.append(row)
        self.log(row)

    # Each returns what undoes it; None: nothing is to be undone.

    def _kill(self, event: Event) -> None:
        self.servers[event.replica].send(signal.SIGKILL)

    def _restart(self, event: Event) -> None:
        self._kill(event)
        gevent.sleep((event.end_ns - event.at_ns) / SECOND)
        self.servers[event.replica].start()

    def _pause(self, event: Event) -> Callable[[], object]:
        server = self.servers[event.replica]
        server.send(signal.SIGSTOP)
        return partial(server.send, signal.SIGCONT)

    def _slow(self, event: Event) -> Callable[[], object]:
        """It runs one part in `factor` of the time, whatever it is that it computes."""
        server = self.servers[event.replica]

        def stutter() -> None:
            while True:
                server.send(signal.SIGSTOP)
                gevent.sleep(SLICE_S * (1 - 1 / event.factor))
                server.send(signal.SIGCONT)
                gevent.sleep(SLICE_S / event.factor)

        slowing = self._group.spawn(stutter)

        def undo() -> None:
            slowing.kill()
            server.send(signal.SIGCONT)

        return undo

    def _fault(self, event: Event, fault: Fault) -> Callable[[], object]:
        url = self.servers[event.replica].url
        self.balancer.set_fault(url, fault)
        return partial(self.balancer.set_fault, url, WELL)

    def _cut(self, event: Event) -> Callable[[], object]:
        return self._fault(event, Fault(cut=True))

    def _delay(self, event: Event) -> Callable[[], object]:
        return self._fault(event, Fault(delay_s=event.by_ns / SECOND))

    def _throttle(self, event: Event) -> Callable[[], object]:
        return self._fault(event, Fault(bytes_per_s=event.bytes_per_s))

    def _burst(self, event: Event) -> None:
        """The plan's load has it."""
        gevent.sleep((event.end_ns - event.at_ns) / SECOND)

    def _prompts(self, event: Event) -> None:
        """Other clients' long prompts, each of its own words, evenly over the event's time."""
        words = TEXT.split()
        rng = random.Random(event.at_ns)  # noqa: S311 - no secret
        bodies = [
            {"prompt": " ".join(rng.choices(words, k=event.tokens)), "max_tokens": 1}
            for _ in range(event.count)
        ]
        self._send_apart(event, bodies, hang_up_s=0.0)

    def _disconnect(self, event: Event) -> None:
        body = {"prompt": "Tell me everything.", "max_tokens": 1024, "stream": True}
        self._send_apart(event, [body] * event.count, hang_up_s=event.by_ns / SECOND)

    def _send_apart(
        self, event: Event, bodies: Sequence[dict[str, Any]], *, hang_up_s: float
    ) -> None:
        """Requests that no record has: theirs are not the users whose latencies are judged."""
        sending, gap_s = Group(), (event.end_ns - event.at_ns) / SECOND / len(bodies)
        try:
            for body in bodies:
                sending.spawn(self._send, {"model": self.model, **body}, hang_up_s)
                gevent.sleep(gap_s)
        finally:
            sending.kill()

    def _send(self, body: dict[str, Any], hang_up_s: float) -> None:
        with closing(HttpConnection(self.access)) as line, suppress(HarnessError):
            if hang_up_s:
                with suppress(gevent.Timeout), gevent.Timeout(hang_up_s):
                    line.fetch("/v1/completions", body, last=True)
            else:
                line.fetch("/v1/completions", body, last=True)
