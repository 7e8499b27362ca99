"""A drill in simulated time: engines behind a balancer, clients that give up and try again, faults.

Requests are due by a schedule, whether or not others have ended. The balancer chooses the replica
with the fewest connections and passes over one that refuses, as `harness.lifecycle.balancer` does.
A client gives up when a timeout runs out, and for each request that failed it sends `retry_factor`
others on average. The result are the records of a real run, and samples of the server.
"""

from __future__ import annotations

import heapq
from array import array
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Final, Protocol

from harness.engine.config import EngineConfig
from harness.engine.scheduler import Scheduler
from harness.load.arrivals import POISSON, offsets_ns
from harness.load.plan import seeded_random
from harness.records.record_table import RecordTable
from harness.records.request_record import Outcome, RequestRecord
from harness.records.samples import ServerSample
from harness.units import MS, SECOND
from lab.closed_loop import Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.engine.scheduler import Sequence as Request
    from harness.engine.scheduler import StepPlan

REFUSAL_NS: Final = MS  # from a request to the status 503 that refuses it
ENGINE: Final = EngineConfig(max_num_seqs=16)
CHAT: Final = Traffic(prompt_tokens=128, output_tokens=32)
FAILURES: Final = (Outcome.timeout, Outcome.connect, Outcome.status, Outcome.truncated)


class Lengths(Protocol):
    """What decides about the lengths of requests."""

    def lengths(self, seed: int) -> Iterator[tuple[int, int]]:
        """Endless (prompt, output) pairs."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind at a rate; its place in the phase is their `mix_row`."""

    rate_per_s: float
    traffic: Lengths = CHAT
    arrivals: str = POISSON
    recorded: bool = True  # False: sent by others, whose latencies are not looked at
    hang_up_s: float = inf  # from sending


@dataclass(frozen=True, slots=True)
class Phase:
    """What is due for so long."""

    name: str
    seconds: float
    streams: tuple[Stream, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a replica, and is undone after `seconds` (inf: never).

    kill: its requests are lost and new ones refused; then it is there again, its caches empty.
    pause: nothing moves, connections are taken. slow: steps take `factor` times as long.
    cut: what is on its way to the replica or back arrives when the cut is over.
    """

    what: str
    at_s: float
    seconds: float
    replica: int = 0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Client:
    """What people do who wait: `timeout_s` to the first token, `request_timeout_s` to the end."""

    timeout_s: float = 120.0
    request_timeout_s: float = 600.0
    retry_factor: float = 0.0  # requests sent, on average, for one that failed
    max_retries: int = 3  # one after another
    backoff_s: float = 1.0  # before each, on average; between half and one and a half of it
    retry_on: tuple[Outcome, ...] = FAILURES
    max_in_flight: int = 2_000  # what is due beyond it is dropped


@dataclass(frozen=True, slots=True)
class SimulatedDrill:
    """Phases one after another, and what happens meanwhile."""

    phases: tuple[Phase, ...]
    faults: tuple[Fault, ...] = ()
    client: Client = Client()
    engine: EngineConfig = ENGINE
    replicas: int = 2
    max_queued: int = 0  # --max-num-queued-reqs of each replica; 0: no limit
    drain_s: float = 60.0


@dataclass(frozen=True)
class Simulated:
    """What a run of the drill would have recorded."""

    records: Sequence[RequestRecord]
    samples: Sequence[ServerSample]  # one a second
    phases: dict[str, tuple[int, int]]  # name -> its instants

    @cached_property
    def table(self) -> RecordTable:
        return RecordTable.from_records(self.records)


@dataclass(slots=True, eq=False)
class Attempt:
    """One request of a client's."""

    number: int
    user: int
    stream: Stream
    mix_row: int
    lengths: tuple[int, int]
    sent_ns: int
    turn: int = 0  # 1: sent because one failed, 2: because that one failed, too
    replica: Replica | None = None
    sequence: Request | None = None
    started: bool = False
    ended: bool = False


@dataclass(slots=True, eq=False)
class Replica:
    """An engine's process."""

    engine: Scheduler
    alive: bool = True
    cuts: list[list[int]] = field(default_factory=list)  # [begin, end); end -1: it lasts
    paused_ns: int = -1
    slow: float = 1.0
    stepping: bool = False
    connections: set[Attempt] = field(default_factory=set)
    ends: array[int] = field(default_factory=lambda: array("q"))  # of each step
    requests: dict[int, Attempt] = field(default_factory=dict)  # by their number in the engine
    # what waits for a paused process: requests, aborts, the end of its step
    pending: list[tuple[int, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)
    # what waits for the end of a cut, in both directions
    held: list[tuple[Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        return bool(self.cuts) and self.cuts[-1][1] < 0


def simulate(drill: SimulatedDrill, seed: int) -> Simulated:
    """The records of one run."""
    return Fleet(drill, seed).run()


class Fleet:
    """One drill in progress; each method is what happens at `now_ns`."""

    def __init__(self, drill: SimulatedDrill, seed: int) -> None:
        self.drill, self.seed, self.now_ns = drill, seed, 0
        self.replicas = [self._start() for _ in range(drill.replicas)]
        self.records: list[RequestRecord] = []
        self.samples: list[ServerSample] = []
        self.refused = 0
        self._open: set[Attempt] = set()
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order, self._turn, self._numbers, self._users = count(), count(), count(), count()
        self._rng = seeded_random(seed, "clients")

    def _start(self) -> Replica:
        return Replica(Scheduler(self.drill.engine))

    def run(self) -> Simulated:
        phases, begin = {}, 0
        seconds = sum(phase.seconds for phase in self.drill.phases) + self.drill.drain_s
        self._last_ns = round(seconds * SECOND)
        for index, phase in enumerate(self.drill.phases):
            end = begin + round(phase.seconds * SECOND)
            phases[phase.name] = begin, end
            for row, stream in enumerate(phase.streams):
                self._plan(stream, f"{index}.{row}", row, begin, end)
            begin = end
        for fault in self.drill.faults:
            at = round(fault.at_s * SECOND)
            self._push(at, self._fault, fault)
            if isfinite(fault.seconds):
                self._push(at + round(fault.seconds * SECOND), self._undo, fault)
        for at in range(0, begin, SECOND):
            self._push(at, self._sample)
        while (
            self._heap and self._heap[0][0] <= self._last_ns and (self.now_ns < begin or self._open)
        ):
            self.now_ns, _, happen, args = heapq.heappop(self._heap)
            happen(*args)
        for attempt in sorted(self._open, key=lambda one: one.number):
            self._end(attempt, Outcome.cancelled, "the run ended")
        return Simulated(self.records, self.samples, phases)

    def _push(self, at_ns: int, happen: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._heap, (at_ns, next(self._order), happen, args))

    # clients

    def _plan(self, stream: Stream, key: str, row: int, begin: int, end: int) -> None:
        rng = seeded_random(self.seed, "arrivals", key)
        lengths = stream.traffic.lengths(rng.getrandbits(30))
        for offset in offsets_ns(stream.arrivals, stream.rate_per_s, rng):
            if begin + offset >= end:
                return
            user = next(self._users)
            self._push(begin + offset, self._send, user, stream, row, next(lengths))

    def _send(
        self, user: int, stream: Stream, row: int, lengths: tuple[int, int], turn: int = 0
    ) -> None:
        drill, client = self.drill, self.drill.client
        attempt = Attempt(next(self._numbers), user, stream, row, lengths, self.now_ns, turn)
        self._open.add(attempt)
        if len(self._open) > client.max_in_flight:
            self._end(attempt, Outcome.dropped, "too many in flight")
            return
        turn = next(self._turn) % drill.replicas
        inside = [one for one in self.replicas[turn:] + self.replicas[:turn] if one.alive]
        if not inside:  # the balancer has no server left and closes the connection
            self._end(attempt, Outcome.truncated, "the connection closed before the response")
            return
        attempt.replica = min(inside, key=lambda one: len(one.connections))
        attempt.replica.connections.add(attempt)
        self._across(attempt.replica, self._at_server, attempt.replica, self._take, attempt)
        for seconds, what in (
            (client.timeout_s, "first token"),
            (min(client.request_timeout_s, stream.hang_up_s), "end"),
        ):
            if (at_ns := self.now_ns + round(seconds * SECOND)) <= self._last_ns:
                self._push(at_ns, self._give_up, attempt, what)

    def _give_up(self, attempt: Attempt, what: str) -> None:
        if not attempt.ended and not (attempt.started and what == "first token"):
            self._end(attempt, Outcome.timeout, f"no {what} in time")

    def _started(self, attempt: Attempt) -> None:
        attempt.started = True

    def _finish(self, attempt: Attempt) -> None:
        if not attempt.ended:
            self._end(attempt, Outcome.ok, "", 200)

    def _end(self, attempt: Attempt, outcome: Outcome, why: str = "", status: int = 0) -> None:
        attempt.ended = True
        self._open.discard(attempt)
        if attempt.stream.recorded:
            self.records.append(_record(attempt, self.now_ns, outcome, why, status))
        if (replica := attempt.replica) is not None:
            replica.connections.discard(attempt)
            if outcome is not Outcome.ok and replica.alive:
                self._at_server(replica, self._abort, attempt)
        client = self.drill.client
        retries = client.max_retries if attempt.stream.recorded else 0
        if outcome in client.retry_on and attempt.turn < retries:
            whole, part = divmod(client.retry_factor, 1)
            for _ in range(int(whole) + (self._rng.random() < part)):
                pause = client.backoff_s * (0.5 + self._rng.random())
                again = (attempt.stream, attempt.mix_row, attempt.lengths, attempt.turn + 1)
                self._push(self.now_ns + round(pause * SECOND), self._send, attempt.user, *again)

    # servers

    def _across(self, replica: Replica, happen: Callable[..., None], *args: object) -> None:
        """Something passes between the balancer and a replica: now, or when the cut is over."""
        if replica.is_cut:
            replica.held.append((happen, args))
        else:
            happen(*args)

    def _at_server(
        self, replica: Replica, happen: Callable[..., None], *args: object, left_ns: int = 0
    ) -> None:
        """Something reaches a process: now, or once it is no longer paused."""
        if replica.paused_ns >= 0:
            replica.pending.append((left_ns, happen, (replica, *args)))
        else:
            happen(replica, *args)

    def _take(self, replica: Replica, attempt: Attempt) -> None:
        if attempt.ended:
            return
        engine = replica.engine
        if self.drill.max_queued and len(engine.waiting) >= self.drill.max_queued:
            self.refused += 1
            self._push(self.now_ns + REFUSAL_NS, self._across, replica, self._refuse, attempt)
            return
        attempt.sequence = engine.add(attempt.number, *attempt.lengths, self.now_ns)
        replica.requests[attempt.number] = attempt
        if not replica.stepping:
            self._step(replica)

    def _refuse(self, attempt: Attempt) -> None:
        if not attempt.ended:
            self._end(attempt, Outcome.status, "the queue is full", 503)

    def _abort(self, replica: Replica, attempt: Attempt) -> None:
        if attempt.sequence is not None and replica.requests.pop(attempt.number, None):
            replica.engine.abort(attempt.sequence)

    def _step(self, replica: Replica) -> None:
        plan = replica.engine.step(self.now_ns)
        replica.stepping = plan is not None
        if plan is not None:
            replica.ends.append(self.now_ns + round(plan.duration_ns * replica.slow))
            self._push(replica.ends[-1], self._end_step, replica, plan)

    def _end_step(self, replica: Replica, plan: StepPlan) -> None:
        if not replica.alive:
            return
        if replica.paused_ns >= 0:
            left = self.now_ns - replica.paused_ns
            self._at_server(replica, self._end_step, plan, left_ns=left)
            return
        replica.ends[plan.number] = self.now_ns  # later than planned if it was paused meanwhile
        for sequence in plan.first:
            attempt = replica.requests.get(sequence.request_id)
            if attempt is not None and not attempt.started:
                self._across(replica, self._started, attempt)
        for sequence in plan.finished:
            attempt = replica.requests.pop(sequence.request_id, None)
            if attempt is not None:
                self._across(replica, self._finish, attempt)
        self._step(replica)

    # faults

    def _fault(self, fault: Fault) -> None:
        replica = self.replicas[fault.replica]
        if fault.what == "pause":
            replica.paused_ns = self.now_ns
        elif fault.what == "slow":
            replica.slow = fault.factor
        elif fault.what == "cut":
            replica.cuts.append([self.now_ns, -1])
        elif fault.what == "kill":
            replica.alive = False
            for attempt in sorted(replica.connections, key=lambda one: one.number):
                self._end(attempt, Outcome.truncated, "the stream ended without [DONE]", 200)
        else:
            raise ValueError(fault.what)

    def _undo(self, fault: Fault) -> None:
        replica = self.replicas[fault.replica]
        replica.slow = 1.0
        if fault.what == "kill":
            self.replicas[fault.replica] = self._start()
        if replica.is_cut:
            replica.cuts[-1][1] = self.now_ns
            held, replica.held = replica.held, []
            for happen, args in held:
                happen(*args)
        if fault.what == "pause":
            replica.paused_ns, pending, replica.pending = -1, replica.pending, []
            for left_ns, happen, args in pending:
                self._push(self.now_ns + left_ns, happen, *args)

    def _sample(self) -> None:
        engines = [one.engine for one in self.replicas if one.alive]
        self.samples.append(
            ServerSample(
                at_ns=self.now_ns,
                running=sum(len(one.running) for one in engines),
                waiting=sum(len(one.waiting) for one in engines),
                generation_tokens_total=sum(one.generation_tokens_total for one in engines),
                admission_rejections_total=self.refused,
            )
        )


def _record(
    attempt: Attempt, done_ns: int, outcome: Outcome, why: str, status: int
) -> RequestRecord:
    """What the client would have recorded."""
    at_ns: array[int] = array("q")
    if attempt.sequence is not None and attempt.replica is not None:
        ends = attempt.replica.ends
        for first, end in attempt.sequence.spans:
            at_ns += ends[first:end]
        for begin, over in attempt.replica.cuts:
            late = done_ns + 1 if over < 0 else over
            at_ns = array("q", (late if begin <= one < late else one for one in at_ns))
        while at_ns and at_ns[-1] > done_ns:  # a step that was still under way
            at_ns.pop()
    if outcome is not Outcome.status and (attempt.replica is None or not at_ns):
        status = 0
    prompt_tokens, planned_tokens = attempt.lengths
    first_ns = at_ns[0] if at_ns else -1
    return RequestRecord(
        worker=0,
        number=attempt.number,
        user=attempt.user,
        scheduled_ns=attempt.sent_ns,
        sent_ns=attempt.sent_ns,
        done_ns=done_ns,
        outcome=outcome,
        head_ns=first_ns,
        first_event_ns=first_ns,
        status=status,
        error=why,
        planned_tokens=planned_tokens,
        prompt_tokens=prompt_tokens,
        answer_index=0 if at_ns else -1,
        events_before=0,
        silent_events=0,
        mix_row=attempt.mix_row,
        at_ns=at_ns,
        not_before_ns=at_ns[:],
        tokens=array("q", [1]) * len(at_ns),
    )
