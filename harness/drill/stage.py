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

from harness.drill.balancer import WELL, BalancerProcess, Fault
from harness.errors import HarnessError
from harness.reader.clock import CLOCK
from harness.server.http_exchange import HttpConnection
from harness.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.drill.plan import Drill, Event
    from harness.drill.servers import Server
    from harness.server.access import TargetAccess

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
        for number, undo in list(self._undo.items()):
            event = self.drill.events[number]
            if event.do != "restart" or self.servers[event.replica].container:  # ours end anyway
                self._tried(event, undo)
        self._undo.clear()

    def begin(self, began_ns: int) -> None:
        """From now on events happen at their instants after `began_ns`."""
        for number, event in enumerate(self.drill.events):
            self._group.spawn(self._happen, number, event, began_ns)

    def _happen(self, number: int, event: Event, began_ns: int) -> None:
        gevent.sleep(max(began_ns + event.at_ns - CLOCK.now_ns(), 0) / SECOND)
        self._say(event, "begins")
        length_s = (event.end_ns - event.at_ns) / SECOND
        act, undo = self._steps(event)
        if undo is not None:
            self._undo[number] = undo  # before it acts: Ctrl-C may come in between
        self._tried(event, act)
        if undo is not None:
            gevent.sleep(length_s)
            self._tried(event, undo)
            del self._undo[number]
        if length_s or event.do == "restart":
            self._say(event, "is over")

    def _tried(self, event: Event, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a drill must not pass without its event
            self.failed = self.failed or f"{event.sentence} could not be done: {error}"

    def _say(self, event: Event, what: str) -> None:
        row = {"at_ns": CLOCK.now_ns(), "name": event.name, "what": what, "event": event.sentence}
        self.done.append(row)
        self.log(row)

    def _steps(self, event: Event) -> tuple[Callable[[], object], Callable[[], object] | None]:
        """What it does, and what undoes that; None: nothing does, or what it did is over."""
        server = self.servers[event.replica]
        if event.do in ("kill", "restart"):
            undo = server.start if event.do == "restart" else None
            return partial(server.send, signal.SIGKILL), undo
        if event.do == "pause":
            return partial(server.send, signal.SIGSTOP), partial(server.send, signal.SIGCONT)
        if event.do == "slow":
            return self._slow(event, server)
        if event.do in ("cut", "delay", "throttle"):
            fault = Fault(event.do == "cut", event.by_ns / SECOND, event.bytes_per_s)
            set_fault = partial(self.balancer.set_fault, server.url)
            return partial(set_fault, fault), partial(set_fault, WELL)
        if event.do == "burst":  # the plan's load has it
            return partial(gevent.sleep, (event.end_ns - event.at_ns) / SECOND), None
        return partial(self._others, event), None

    def _slow(
        self, event: Event, server: Server
    ) -> tuple[Callable[[], object], Callable[[], object]]:
        slowing = Group()
        stutter = partial(_stutter, server, event.factor)

        def go_on() -> None:
            slowing.kill()
            server.send(signal.SIGCONT)

        return partial(slowing.spawn, self._tried, event, stutter), go_on

    def _others(self, event: Event) -> None:
        """Other clients' requests, evenly over its time, of which there is no record."""
        sending = Group()
        rng = random.Random(event.at_ns)  # noqa: S311 - no secret
        options: dict[str, Any] = {"max_tokens": 1024, "stream": True}
        if event.tokens:  # only its prompt matters
            options = {"max_tokens": 1}
        length_s = (event.end_ns - event.at_ns) / SECOND
        try:
            for _ in range(event.count):  # each of its own words, which no prefix cache knows
                prompt = " ".join(rng.choices(TEXT.split(), k=event.tokens or 8))
                body = {"model": self.model, "prompt": prompt, **options}
                sending.spawn(self._send, body, event.by_ns / SECOND)
                gevent.sleep(length_s / event.count)
        finally:
            sending.kill()

    def _send(self, body: dict[str, Any], hang_up_s: float) -> None:
        hanging_up = gevent.Timeout(hang_up_s or None)  # None: never
        line = HttpConnection(self.access)
        with suppress(HarnessError, gevent.Timeout), hanging_up, closing(line):
            line.fetch("/v1/completions", body, last=True)


def _stutter(server: Server, factor: float) -> None:
    """It runs one part in `factor` of the time, whatever it is that it computes."""
    while True:
        server.send(signal.SIGSTOP)
        gevent.sleep(SLICE_S * (1 - 1 / factor))
        server.send(signal.SIGCONT)
        gevent.sleep(SLICE_S / factor)
