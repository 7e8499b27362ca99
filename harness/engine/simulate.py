"""Closed-loop users against the scheduler, in simulated time: the whole experiment in a second.

A user sends, waits for its last token, and sends again. New users start staggered over about one
lifetime; users that are removed retire at the end of their request, as the real ones do.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.frontend import FrontEnd
from harness.engine.observed import Observed
from harness.engine.played import Played, merged
from harness.engine.scheduler import Scheduler
from harness.measure.samples import ServerSample
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Sequence
    from harness.engine.traffic import Traffic
    from harness.measure.samples import GpuSample
    from harness.measure.table import RecordTable

CLIENT_NS: Final = 200_000  # from the last token to the same user's next request
KEEP_NS: Final = 60 * SECOND  # requests that ended so long before the last look are forgotten


class ClosedLoop:
    """`advance` plays time forward; `table` shows what clients have seen, `sample` the server."""

    def __init__(
        self, config: EngineConfig, traffic: Traffic, seed: int, *, observe: bool = False
    ) -> None:
        """No users yet, time 0. `observe`: samples have all that a server and a GPU would say."""
        self.engine = Scheduler(config)
        self.front = FrontEnd(config)
        self._observed = Observed(config, self.engine, self.front) if observe else None
        self.now_ns = 0
        self.users = 0
        self._retiring = 0
        self._lengths = traffic.lengths(seed)
        self._stagger = np.random.default_rng([seed, 1])
        self._front_ns = config.front_end_ns
        self._apart = self.front.costs  # the API servers' processes have their own time
        self._due: list[tuple[int, int]] = []  # (sent, request number)
        self._life_ns = float(SECOND)
        self._played = Played()
        self._count = 0
        self._finished = 0
        self._over_ns: list[int] = []  # when requests ended, sorted

    @property
    def running_users(self) -> int:
        """Users with a request under way or due, retiring ones included."""
        return self.users + self._retiring

    @property
    def sequences(self) -> list[Sequence]:
        """What the engine knows of each request, in the order of a table of all of them."""
        return self._played.sequences

    def set_users(self, users: int) -> None:
        """Start or retire users; those retiring are called back first."""
        more = users - self.users
        back = min(max(more, 0), self._retiring)
        self._retiring += -back if more > 0 else -more
        window = min(max(self._life_ns, 300 * MS), 10 * SECOND)
        for _ in range(more - back):
            self._send(self.now_ns + int(self._stagger.random() * window))
        self.users = users

    def advance(self, until_ns: int) -> None:
        """Play whole engine steps until the next one would start at `until_ns` or later."""
        engine = self.engine
        while self.now_ns < until_ns:
            self._come(self.now_ns)
            plan = engine.step(self.now_ns)
            if plan is None:
                following = self._next_ns()
                if following < 0:
                    self.now_ns = until_ns
                    return
                self.now_ns = min(until_ns, following)
                continue
            self.now_ns += plan.duration_ns
            if self._apart:
                self._hand_in(self.now_ns)
                self.front.step(plan, self.now_ns)
            else:
                for sequence in plan.finished:
                    self._over(sequence, self.now_ns)
            if self._observed is not None:
                self._observed.step(plan, self.now_ns)

    def _come(self, now_ns: int) -> None:
        """Requests that are through the front end reach the engine."""
        due = self._due
        if not self._apart:
            while due and due[0][0] + self._front_ns <= now_ns:
                sent, number = heapq.heappop(due)
                self._add(sent + self._front_ns, sent, number)
            return
        self._hand_in(now_ns)
        for at_ns, batch in self.front.work(now_ns):
            for sequence in batch.finished:
                self._over(sequence, at_ns)
            if self._observed is not None:
                self._observed.sent(batch, at_ns)
        ready = self.front.ready
        while ready and ready[0][0] <= now_ns:
            self._add(*heapq.heappop(ready))

    def _hand_in(self, now_ns: int) -> None:
        """Requests that were sent by now are in the front end's queue."""
        while self._due and self._due[0][0] <= now_ns:
            self.front.request(*heapq.heappop(self._due))

    def _add(self, at_ns: int, sent_ns: int, number: int) -> None:
        prompt, output = next(self._lengths)
        self._played.add(sent_ns, self.engine.add(number, prompt, output, at_ns))

    def _next_ns(self) -> int:
        """When something happens while the engine has nothing to do; -1: nothing will."""
        due = [self._due[0][0] + (0 if self._apart else self._front_ns)] if self._due else []
        if self._apart:
            due += [self.front.ready[0][0]] if self.front.ready else []
            due += [at for at in (self.front.next_ns(),) if at >= 0]
        return max(min(due), self.now_ns) if due else -1

    def _send(self, at_ns: int) -> None:
        heapq.heappush(self._due, (at_ns, self._count))
        self._count += 1

    def _over(self, sequence: Sequence, at_ns: int) -> None:
        self._finished += 1
        self._played.end(sequence.request_id, at_ns)
        insort(self._over_ns, at_ns)
        self._life_ns += 0.05 * (at_ns - sequence.arrived_ns - self._life_ns)
        if self._retiring:
            self._retiring -= 1
        else:
            self._send(at_ns + CLIENT_NS)

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """Requests that ended after `from_ns` or are open, as known at `horizon_ns`."""
        self._played.forget(from_ns - KEEP_NS)
        if not self._apart:
            ends = [np.array(self.engine.step_ends, np.int64)]
            return self._played.table(ends, from_ns, horizon_ns)
        ends = [np.array(process.ends, np.int64) for process in self.front.processes]
        return merged(self._played.table(ends, from_ns, horizon_ns))

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """(requests that ended in this time, 0: none fails)."""
        return bisect_right(self._over_ns, horizon_ns) - bisect_left(self._over_ns, from_ns), 0

    def sample(self) -> ServerSample:
        """What /metrics would show now; gauges and counters only, unless it is observed."""
        if self._observed is not None:
            return self._observed.sample(self.now_ns, self._finished)
        engine = self.engine
        return ServerSample(
            at_ns=self.now_ns,
            running=len(engine.running),
            waiting=len(engine.waiting),
            kv_usage=engine.kv_usage,
            preemptions_total=engine.preemptions_total,
            prompt_tokens_total=engine.prompt_tokens_total,
            generation_tokens_total=engine.generation_tokens_total,
            requests_total=self._finished,
            prefix_queries_total=engine.prefix_queries_total,
            prefix_hits_total=engine.prefix_hits_total,
        )

    def gpu_sample(self) -> GpuSample:
        """What NVML would show now, where it is observed."""
        assert self._observed is not None  # noqa: S101 - asked for with `observe`
        return self._observed.gpu(self.now_ns)
