"""Closed-loop users against the scheduler, in simulated time: the whole experiment in a second.

A user sends, waits for its last token, and sends again. New users start staggered over about one
lifetime; users that are removed retire at the end of their request, as the real ones do.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

import numpy as np

from harness.engine.scheduler import Scheduler, Sequence
from harness.measure.samples import ServerSample
from harness.measure.table import OK, OPEN, RecordTable
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.traffic import Traffic

CLIENT_NS: Final = 200_000  # from the last token to the same user's next request
KEEP_NS: Final = 60 * SECOND  # requests that ended so long before the last look are forgotten


class ClosedLoop:
    """`advance` plays time forward; `table` shows what clients have seen, `sample` the server."""

    def __init__(self, config: EngineConfig, traffic: Traffic, seed: int) -> None:
        """No users yet, time 0."""
        self.engine = Scheduler(config)
        self.now_ns = 0
        self.users = 0
        self._retiring = 0
        self._lengths = traffic.lengths(seed)
        self._stagger = np.random.default_rng([seed, 1])
        self._front_ns = config.front_end_ns
        self._due: list[tuple[int, int]] = []  # (sent, request number)
        self._life_ns = float(SECOND)
        self._requests: list[tuple[int, Sequence]] = []  # (sent, sequence), by sending
        self._count = 0
        self._finished = 0
        self._ends = np.zeros(0, np.int64)

    @property
    def running_users(self) -> int:
        """Users with a request under way or due, retiring ones included."""
        return self.users + self._retiring

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
        engine, due = self.engine, self._due
        while self.now_ns < until_ns:
            while due and due[0][0] + self._front_ns <= self.now_ns:
                sent, number = heapq.heappop(due)
                prompt, output = next(self._lengths)
                sequence = engine.add(number, prompt, output, sent + self._front_ns)
                self._requests.append((sent, sequence))
            plan = engine.step(self.now_ns)
            if plan is None:
                if not due:
                    self.now_ns = until_ns
                    return
                self.now_ns = min(until_ns, due[0][0] + self._front_ns)
                continue
            self.now_ns += plan.duration_ns
            for sequence in plan.finished:
                self._over(sequence)

    def _send(self, at_ns: int) -> None:
        heapq.heappush(self._due, (at_ns, self._count))
        self._count += 1

    def _over(self, sequence: Sequence) -> None:
        self._finished += 1
        self._life_ns += 0.05 * (self.now_ns - sequence.arrived_ns - self._life_ns)
        if self._retiring:
            self._retiring -= 1
        else:
            self._send(self.now_ns + CLIENT_NS)

    def table(self, from_ns: int, horizon_ns: int) -> RecordTable:
        """Requests that ended after `from_ns` or are open, as known at `horizon_ns`."""
        old = 0
        for sent, sequence in self._requests:
            if not 0 <= sequence.finished_ns < from_ns - KEEP_NS:
                break
            old += sent >= 0
        del self._requests[:old]
        rows = [
            (sent, s)
            for sent, s in self._requests
            if sent <= horizon_ns and not 0 <= s.finished_ns < from_ns
        ]
        ends = self._step_ends()
        return _columns(rows, ends, int(np.searchsorted(ends, horizon_ns, "right")), horizon_ns)

    def _step_ends(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        known = len(self._ends)
        if known < len(self.engine.step_ends):
            fresh = np.array(self.engine.step_ends[known:], np.int64)
            self._ends = np.concatenate([self._ends, fresh])
        return self._ends

    def sample(self) -> ServerSample:
        """What /metrics would show now (histogram sums are left out)."""
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


def _columns(
    rows: list[tuple[int, Sequence]],
    ends: np.ndarray[tuple[int], np.dtype[np.int64]],
    steps: int,
    horizon_ns: int,
) -> RecordTable:
    """Token times are slices of the step ends; only steps before `steps` are known."""
    spans = [(i, *span) for i, (_, s) in enumerate(rows) for span in s.spans]
    flat = np.array(spans, np.int64).reshape(-1, 3)
    row, first, last = flat[:, 0], flat[:, 1], np.minimum(flat[:, 2], steps)
    sizes = (last - first).clip(min=0)
    starts = np.cumsum(sizes) - sizes
    index = np.arange(int(sizes.sum())) - np.repeat(starts - first, sizes)
    counts = np.bincount(row, weights=sizes, minlength=len(rows)).astype(np.int64)
    at = ends[index]
    done = np.array([s.finished_ns for _, s in rows], np.int64)
    ended = (done >= 0) & (done <= horizon_ns)
    sent = np.array([sent for sent, _ in rows], np.int64)
    zero = np.zeros(len(rows), np.int64)
    return RecordTable(
        worker=zero,
        number=np.array([s.request_id for _, s in rows], np.int64),
        user=zero,
        scheduled_ns=zero - 1,
        connect_ns=zero,
        sent_ns=sent,
        head_ns=zero - 1,
        first_event_ns=zero - 1,
        done_ns=np.where(ended, done, horizon_ns),
        outcome=np.where(ended, OK, OPEN),
        status=zero + 200,
        planned_tokens=np.array([s.output_tokens for _, s in rows], np.int64),
        prompt_tokens=np.array([s.prompt_tokens for _, s in rows], np.int64),
        output_tokens=zero - 1,
        cached_tokens=zero - 1,
        answer_index=zero,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        at_ns=at,
        not_before_ns=at,
        tokens=np.ones(len(at), np.int64),
    )
