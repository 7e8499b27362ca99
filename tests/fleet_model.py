"""Several engines behind a balancer in simulated time: who waits how long.

A user sends a request, waits for its last token, thinks, and sends again; or requests arrive by
schedule. Each request goes to one replica, chosen as it arrives, and stays there.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from harness.engine.scheduler import Scheduler
from harness.units import SECOND
from lab.closed_loop import CLIENT_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Sequence, StepPlan
    from lab.closed_loop import Traffic


@dataclass(slots=True, eq=False)
class Replica:
    """An engine; `ready_ns`: when it may be given requests."""

    engine: Scheduler
    ready_ns: int = 0
    in_flight: int = 0
    stepping: bool = False


@dataclass(slots=True)
class Seen:
    """What clients saw: (sent, TTFT) of requests, and (end, length) of each token's gap."""

    ttft: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[tuple[int, int, int]] = field(default_factory=list)
    refused: int = 0

    def ttft_ms(self, q: float, begin_ns: int = 0, end_ns: int = 1 << 62) -> float:
        """A quantile of the TTFT of requests that were sent in a window."""
        inside = [ttft for sent, ttft in self.ttft if begin_ns <= sent < end_ns]
        return float(np.quantile(inside, q)) / 1e6

    def itl_ms(self, q: float, begin_ns: int = 0) -> float:
        """A quantile of the gaps between tokens that ended after an instant."""
        ended = [(gap, n) for at, gap, n in self.gaps if at >= begin_ns]
        gaps = np.array(ended, np.int64)
        return float(np.quantile(np.repeat(gaps[:, 0], gaps[:, 1]), q)) / 1e6


def hpa_replicas(current: int, total: float, each: float, tolerance: float = 0.1) -> int:
    """What a HorizontalPodAutoscaler, and so KEDA, asks for with a target of type AverageValue."""
    # Kubernetes changes nothing while total / (target x replicas) is within the tolerance of 1.
    within = abs(total / (each * current) - 1) <= tolerance
    return current if within else max(ceil(total / each), 1)


class Fleet:
    """`advance` moves time forward; users and replicas may be added between two calls."""

    def __init__(
        self,
        config: EngineConfig,
        traffic: Traffic,
        replicas: int,
        *,
        choose: str = "least",
        think_s: float = 0.0,
        seed: int = 1,
        admit: Callable[[Replica], bool] = lambda _: True,
    ) -> None:
        """`choose`: least, round, random. `think_s`: mean of exponential pauses."""
        self.config, self.choose, self.think_s, self.admit = config, choose, think_s, admit
        self.now_ns, self.users, self.seen = 0, 0, Seen()
        self.replicas = [Replica(Scheduler(config)) for _ in range(replicas)]
        self._lengths = traffic.lengths(seed)
        self._rng = np.random.default_rng(seed)
        self._events: list[tuple[int, int, Replica | None, StepPlan | None]] = []
        self._order, self._turn, self._numbers = count(), count(), count()
        self._sent: dict[int, int] = {}
        self._again = True  # a user follows its own request
        self._leaving = 0

    @property
    def in_flight(self) -> int:
        """What vLLM's `running` and `waiting` add up to."""
        return sum(one.in_flight for one in self.replicas)

    def add_replica(self, ready_ns: int) -> None:
        """One more that has its weights loaded at an instant."""
        self.replicas.append(Replica(Scheduler(self.config), ready_ns))

    def set_users(self, users: int, within_ns: int = SECOND) -> None:
        """New ones send their first request within a while; others leave at their request's end."""
        for _ in range(users - self.users):
            self._push(self.now_ns + int(self._rng.random() * within_ns))
        self._leaving += max(self.users - users, 0)
        self.users = users

    def arrive(self, rate_per_s: float, seconds: float) -> None:
        """Requests of an open loop, Poisson, from now on."""
        self._again = False
        for at_s in np.sort(self._rng.random(self._rng.poisson(rate_per_s * seconds)) * seconds):
            self._push(self.now_ns + int(at_s * SECOND))

    def advance(self, until_ns: int) -> None:
        """Run what happens before an instant."""
        while self._events and self._events[0][0] < until_ns:
            self.now_ns, _, replica, plan = heapq.heappop(self._events)
            if replica is None:
                self._send()
            else:
                if plan is not None:
                    self._end_step(replica, plan)
                self._step(replica)
        self.now_ns = until_ns

    def _push(
        self, at_ns: int, replica: Replica | None = None, plan: StepPlan | None = None
    ) -> None:
        heapq.heappush(self._events, (at_ns, next(self._order), replica, plan))

    def _send(self) -> None:
        ready = [one for one in self.replicas if one.ready_ns <= self.now_ns]
        if self.choose == "least":
            replica = min(ready, key=lambda one: one.in_flight)
        elif self.choose == "round":
            replica = ready[next(self._turn) % len(ready)]
        else:
            replica = ready[self._rng.integers(len(ready))]
        if not self.admit(replica):
            self.seen.refused += 1
            self._follow(SECOND)  # a client that tries again after a second
            return
        number = next(self._numbers)
        self._sent[number] = self.now_ns
        replica.engine.add(number, *next(self._lengths), self.now_ns)
        replica.in_flight += 1
        if not replica.stepping:
            self._step(replica)

    def _step(self, replica: Replica) -> None:
        plan = replica.engine.step(self.now_ns)
        replica.stepping = plan is not None
        if plan is not None:
            self._push(self.now_ns + plan.duration_ns, replica, plan)

    def _end_step(self, replica: Replica, plan: StepPlan) -> None:
        if plan.decoded:
            self.seen.gaps.append((self.now_ns, plan.duration_ns, plan.decoded))
        for one in plan.first:
            if len(one.spans) == 1:
                sent = self._sent[one.request_id]
                self.seen.ttft.append((sent, self.now_ns - sent))
        for one in plan.finished:
            self._finish(replica, one)

    def _finish(self, replica: Replica, one: Sequence) -> None:
        replica.in_flight -= 1
        del self._sent[one.request_id]
        self._follow(CLIENT_NS)

    def _follow(self, pause_ns: int) -> None:
        if self._leaving:
            self._leaving -= 1
        elif self._again:
            think = self._rng.exponential(self.think_s) if self.think_s else 0.0
            self._push(self.now_ns + pause_ns + int(think * SECOND))
