"""Closed-loop users against the scheduler in simulated time: a whole experiment in a second.

A user sends a request, waits for its last token, and sends again. New users start staggered over
about the duration of a request; removed users stop at the end of their request, as real ones do.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.scheduler import Scheduler, Sequence
from harness.records.samples import GpuSample, ServerSample
from harness.units import MS, SECOND
from lab.api_servers import FrontEnd
from lab.scrapes import SimulatedObserver
from lab.simulated_records import SimulatedRecords, merge_same_instant

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.records.record_table import RecordTable

CLIENT_NS: Final = 200_000  # from the last token to the same user's next request
KEEP_ENDED_NS: Final = 60 * SECOND  # ended requests are kept this long before the last table
DRAWS_AT_ONCE: Final = 1024


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of requests: lognormal around these means, with this coefficient of variation."""

    prompt_tokens: int = 256
    output_tokens: int = 128
    variation: float = 0.5
    most: int = 8192  # prompt and output together never exceed this
    recorded: tuple[tuple[int, ...], ...] = ()  # lengths of a run, in random order, instead

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endless (prompt, output) pairs."""
        rng = np.random.default_rng([seed, 2])
        while self.recorded:
            yield from ((p, o) for p, o in rng.permutation(self.recorded).tolist())
        sigma = float(np.sqrt(np.log(1 + self.variation**2)))
        while True:
            draws = np.exp(sigma * rng.standard_normal((DRAWS_AT_ONCE, 2)) - sigma**2 / 2)
            means = np.array([self.prompt_tokens, self.output_tokens])
            pairs = np.maximum(np.rint(draws * means), [1, 2]).astype(np.int64)
            pairs = np.minimum(pairs, self.most // 2)
            yield from zip(pairs[:, 0].tolist(), pairs[:, 1].tolist(), strict=True)


class ClosedLoop:
    """`advance` moves time forward; `table` returns what clients saw, `sample` a scrape."""

    def __init__(
        self, config: EngineConfig, traffic: Traffic, seed: int, *, observe: bool = False
    ) -> None:
        """Start at time 0 without users. `observe`: make complete samples, of the GPU too."""
        self.engine = Scheduler(config)
        self.front = FrontEnd(config)
        self._observed = SimulatedObserver(config, self.engine, self.front) if observe else None
        self.now_ns = 0
        self.users = 0
        self._retiring = 0
        self._lengths = traffic.lengths(seed)
        self._stagger = np.random.default_rng([seed, 1])
        self._front_ns = config.front_end_ns
        self._has_front_end = self.front.costs  # the API servers have their own timeline
        self._due: list[tuple[int, int]] = []  # (sent, request number)
        self._life_ns = float(SECOND)
        self._records = SimulatedRecords()
        self._count = 0
        self._finished = 0
        self._over_ns: list[int] = []  # when requests ended, sorted

    @property
    def running_users(self) -> int:
        """Users with a request in flight or due, retiring ones included."""
        return self.users + self._retiring

    @property
    def sequences(self) -> list[Sequence]:
        """The engine's sequences, in the row order of a table of all requests."""
        return self._records.sequences

    def set_users(self, users: int) -> None:
        """Start or retire users; retiring users are kept before new ones start."""
        more = users - self.users
        back = min(max(more, 0), self._retiring)
        self._retiring += -back if more > 0 else -more
        window = min(max(self._life_ns, 300 * MS), 10 * SECOND)
        for _ in range(more - back):
            self._send(self.now_ns + int(self._stagger.random() * window))
        self.users = users

    def add_users(self, more: int) -> None:
        """Start more users at once."""
        for _ in range(more):
            self._send(self.now_ns)
        self.users += more

    @property
    def lifetime_ns(self) -> float:
        """What a request takes, smoothed over those that ended last."""
        return self._life_ns

    def advance(self, until_ns: int) -> None:
        """Run whole engine steps until the next one would start at `until_ns` or later."""
        engine = self.engine
        while self.now_ns < until_ns:
            self._arrive(self.now_ns)
            plan = engine.step(self.now_ns)
            if plan is None:
                following = self._next_ns()
                if following < 0:
                    self.now_ns = until_ns
                    return
                self.now_ns = min(until_ns, following)
                continue
            self.now_ns += plan.duration_ns
            if self._has_front_end:
                self._hand_in(self.now_ns)
                self.front.step(plan, self.now_ns)
            else:
                for sequence in plan.finished:
                    self._end(sequence, self.now_ns)
            if self._observed is not None:
                self._observed.step(plan, self.now_ns)

    def _arrive(self, now_ns: int) -> None:
        """Pass requests that the front end has processed to the engine."""
        due = self._due
        if not self._has_front_end:
            while due and due[0][0] + self._front_ns <= now_ns:
                sent, number = heapq.heappop(due)
                self._add(sent + self._front_ns, sent, number)
            return
        self._hand_in(now_ns)
        for at_ns, batch in self.front.work(now_ns):
            for sequence in batch.finished:
                self._end(sequence, at_ns)
            if self._observed is not None:
                self._observed.sent(batch, at_ns)
        ready = self.front.ready
        while ready and ready[0][0] <= now_ns:
            self._add(*heapq.heappop(ready))

    def _hand_in(self, now_ns: int) -> None:
        """Queue requests that were sent by now at the front end."""
        while self._due and self._due[0][0] <= now_ns:
            self.front.request(*heapq.heappop(self._due))

    def _add(self, at_ns: int, sent_ns: int, number: int) -> None:
        prompt, output = next(self._lengths)
        self._records.add(sent_ns, self.engine.add(number, prompt, output, at_ns))

    def _next_ns(self) -> int:
        """Return when something happens while the engine is idle; -1: nothing will."""
        due = (
            [self._due[0][0] + (0 if self._has_front_end else self._front_ns)] if self._due else []
        )
        if self._has_front_end:
            due += [self.front.ready[0][0]] if self.front.ready else []
            due += [at for at in (self.front.next_ns(),) if at >= 0]
        return max(min(due), self.now_ns) if due else -1

    def _send(self, at_ns: int) -> None:
        heapq.heappush(self._due, (at_ns, self._count))
        self._count += 1

    def _end(self, sequence: Sequence, at_ns: int) -> None:
        self._finished += 1
        self._records.end(sequence.request_id, at_ns)
        insort(self._over_ns, at_ns)
        self._life_ns += 0.05 * (at_ns - sequence.arrived_ns - self._life_ns)
        self._follow(at_ns)

    def _follow(self, at_ns: int) -> None:
        """What the end of a request leads to."""
        if self._retiring:
            self._retiring -= 1
        else:
            self._send(at_ns + CLIENT_NS)

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """Return requests that ended after `from_ns` or are open, as known at `horizon_ns`."""
        self._records.forget(from_ns - KEEP_ENDED_NS)
        if not self._has_front_end:
            ends = [np.array(self.engine.step_ends, np.int64)]
            return self._records.table(ends, from_ns, horizon_ns)
        ends = [np.array(process.ends, np.int64) for process in self.front.processes]
        return merge_same_instant(self._records.table(ends, from_ns, horizon_ns))

    def ended(self, from_ns: int, horizon_ns: int) -> tuple[int, int]:
        """Return (requests that ended in this time, failures: always 0)."""
        return bisect_right(self._over_ns, horizon_ns) - bisect_left(self._over_ns, from_ns), 0

    def sample(self) -> ServerSample:
        """Return what /metrics would show now; only gauges and counters without `observe`."""
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
        """Return what NVML would show now; requires `observe`."""
        assert self._observed is not None  # noqa: S101 - asked for with `observe`
        return self._observed.gpu(self.now_ns)
