"""The API servers' CPU in simulated time: each is a single-server queue, first come, first served.

A request costs CPU before the engine sees it, an event before the client does. A process that falls
behind finds the tokens of several steps waiting and sends one event per stream for all of them, as
vLLM does: waiting events are merged, so a queue holds at most one batch of events.

Before that a request passes its process's tokenizer, a thread that works beside. It takes all
waiting prompts at once, up to a number: they leave it together, and reach the engine as a burst.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.engine.config import EngineConfig
    from harness.engine.scheduler import Sequence, StepPlan


# of a request at an API server: when it came, number, sent, turns left
Turn = tuple[int, int, int, int]


@dataclass(slots=True, eq=False)
class EventBatch:
    """The tokens of one or several engine steps, to be sent as `events` events."""

    came_ns: int
    events: int
    tokens: int = 0
    steps: int = 1
    first: list[Sequence] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class ApiServer:
    free_ns: int = 0
    streams: set[int] = field(default_factory=set)  # requests that decode
    queue: deque[Turn | EventBatch] = field(default_factory=deque)
    waiting: EventBatch | None = None  # the batch in the queue
    ends: array[int] = field(default_factory=lambda: array("q"))  # send time of each step's tokens
    tokenizer_free_ns: int = 0
    untokenized: deque[tuple[int, int]] = field(default_factory=deque)  # (sent, number)
    tokenized: deque[tuple[int, int, int]] = field(default_factory=deque)  # (when, sent, number)


class FrontEnd:
    """`request` and `step` queue work, `work` does it; requests go to the processes in turn."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.processes = [ApiServer() for _ in range(config.api_server_count)]
        self.cpu_ns = 0
        # a heap of (ready, sent, number): requests that the engine may take
        self.ready: list[tuple[int, int, int]] = []
        self.taken: dict[int, int] = {}  # number -> when its process began with it: vLLM's arrival

    @property
    def costs(self) -> bool:
        """Whether anything costs CPU here at all."""
        config = self.config
        return bool(config.front_request_ns or config.front_event_ns or config.front_tokenizer_ns)

    def process_of(self, number: int) -> ApiServer:
        return self.processes[number % len(self.processes)]

    def request(self, sent_ns: int, number: int) -> None:
        process = self.process_of(number)
        if self.config.front_tokenizer_ns:
            self.taken.setdefault(number, sent_ns)
            process.untokenized.append((sent_ns, number))
        else:
            process.queue.append((sent_ns, number, sent_ns, self.config.front_turns))

    def _tokenize(self, process: ApiServer, now_ns: int) -> None:
        """Queue the requests whose prompts are tokenized by now."""
        each_ns = self.config.front_tokenizer_ns
        waiting = process.untokenized
        while waiting:
            start_ns = max(process.tokenizer_free_ns, waiting[0][0])
            if start_ns > now_ns:
                break
            are_there = [one for one in waiting if one[0] <= start_ns]
            batch = are_there[: self.config.front_tokenizer_batch]
            end_ns = start_ns + len(batch) * each_ns
            for sent_ns, number in batch:
                waiting.popleft()
                process.tokenized.append((end_ns, sent_ns, number))
            self.cpu_ns += end_ns - start_ns
            process.tokenizer_free_ns = end_ns
        while process.tokenized and process.tokenized[0][0] <= now_ns:
            end_ns, sent_ns, number = process.tokenized.popleft()
            _put_turn(process.queue, (end_ns, number, sent_ns, self.config.front_turns))

    def step(self, plan: StepPlan, end_ns: int) -> None:
        """Queue the tokens of a step: each process gets those of its own requests."""
        for process in self.processes:
            self._tokenize(process, end_ns)
        for sequence in plan.preempted:
            self.process_of(sequence.request_id).streams.discard(sequence.request_id)
        count = len(self.processes)
        batches = [EventBatch(end_ns, len(process.streams)) for process in self.processes]
        for sequence in plan.first:
            batch = batches[sequence.request_id % count]
            batch.events += 1
            batch.first.append(sequence)
            self.process_of(sequence.request_id).streams.add(sequence.request_id)
        for sequence in plan.finished:
            batches[sequence.request_id % count].finished.append(sequence)
            self.process_of(sequence.request_id).streams.discard(sequence.request_id)
        for process, batch in zip(self.processes, batches, strict=True):
            _put(process, batch)

    def work(self, now_ns: int) -> list[tuple[int, EventBatch]]:
        """Do the work that begins by now; return (time sent, batch) of the events."""
        done: list[tuple[int, EventBatch]] = []
        for process in self.processes:
            self._tokenize(process, now_ns)
            queue = process.queue
            while queue:
                item = queue[0]
                start = max(process.free_ns, _came_ns(item))
                if start > now_ns:
                    break
                queue.popleft()
                if isinstance(item, tuple):
                    _, number, sent, turns = item
                    spent = self.config.front_request_ns // self.config.front_turns
                    process.free_ns = start + spent
                    self.cpu_ns += spent
                    self.taken.setdefault(number, start)
                    if turns > 1:
                        _put_turn(queue, (process.free_ns, number, sent, turns - 1))
                    else:
                        ready = process.free_ns + self.config.front_end_ns
                        heapq.heappush(self.ready, (ready, sent, number))
                    continue
                process.waiting = None
                spent = item.events * self.config.front_event_ns
                spent += item.tokens * self.config.front_token_ns
                process.free_ns = start + spent
                self.cpu_ns += spent
                process.ends.extend([process.free_ns] * item.steps)
                done.append((process.free_ns, item))
        return done

    def next_ns(self) -> int:
        """Return when the next item of work begins; -1: there is none."""
        starts = []
        for process in self.processes:
            if process.queue:
                starts.append(max(process.free_ns, _came_ns(process.queue[0])))
            if process.tokenized:
                starts.append(process.tokenized[0][0])
            if process.untokenized:
                starts.append(max(process.tokenizer_free_ns, process.untokenized[0][0]))
        return min(starts, default=-1)


def _came_ns(item: Turn | EventBatch) -> int:
    return item[0] if isinstance(item, tuple) else item.came_ns


def _put_turn(queue: deque[Turn | EventBatch], turn: Turn) -> None:
    """Queue a request's turn before what comes later, as the events of a step that still runs."""
    place = len(queue)
    while place and _came_ns(queue[place - 1]) > turn[0]:
        place -= 1
    queue.insert(place, turn)


def _put(process: ApiServer, batch: EventBatch) -> None:
    """Queue a batch, or merge it into the waiting one: one event for each stream."""
    batch.tokens, waiting = batch.events, process.waiting
    if waiting is None:
        process.queue.append(batch)
        process.waiting = batch
        return
    waiting.steps += 1
    waiting.tokens += batch.tokens
    waiting.events = max(waiting.events, batch.events)
    waiting.first += batch.first
    waiting.finished += batch.finished
