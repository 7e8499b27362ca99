"""A server with so many batch slots, loaded in a closed loop: what report_folder writes down.

Each engine step takes 10 ms + 0.25 ms per running request + 6 ms per prompt it takes in; every
running request gets one token. Beyond `SLOTS` users requests wait, and TTFT climbs past its SLO.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, field, replace

from harness.records.request_record import Outcome, RequestRecord
from harness.records.samples import ServerSample

SLOTS = 40
T0 = 1_790_000_000_000_000_000
MS, S = 10**6, 10**9


@dataclass
class Request:
    """One request under way."""

    number: int
    user: int
    sent_ns: int
    length: int
    at: list[int] = field(default_factory=list)


@dataclass
class Server:
    """The loop of engine steps; `samples` once a second, `records` as requests end."""

    users: int = 0
    now: int = T0
    rng: random.Random = field(default_factory=lambda: random.Random(1))  # noqa: S311 - a fixture
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    records: list[RequestRecord] = field(default_factory=list)
    samples: list[ServerSample] = field(default_factory=list)
    sent: int = 0
    tokens: int = 0
    queue_s: float = 0.0
    ttft_s: float = 0.0
    prompts: int = 0
    fail_above: int = 10**9  # users from which on some requests fail,
    error: str = "503 Service Unavailable"  # with this

    def hold(self, users: int, seconds: float) -> None:
        """Serve so many users for a while; one that is too many leaves after its request."""
        self.users, end = users, self.now + int(seconds * S)
        while len(self.waiting) + len(self.running) < users:
            self.send(self.sent)
        while self.now < end:
            self.step()

    def send(self, user: int) -> None:
        """A user sends its next request."""
        length = max(2, round(self.rng.gauss(48, 12)))
        self.waiting.append(Request(self.sent, user, self.now + self.rng.randrange(3 * MS), length))
        self.sent += 1

    def step(self) -> None:
        """One engine step."""
        new = self.waiting[: max(0, SLOTS - len(self.running))]
        self.waiting = self.waiting[len(new) :]
        self.running += new
        cost = 10 + 0.25 * len(self.running) + 6 * len(new)
        start, self.now = self.now, self.now + int(cost * self.rng.uniform(0.95, 1.08) * MS)
        for request in new:
            self.queue_s += max(start - request.sent_ns, 0) / S
            self.ttft_s += (self.now - request.sent_ns) / S
            self.prompts += 1
        for request in list(self.running):
            request.at.append(self.now + self.rng.randrange(MS // 2))
            self.tokens += 1
            if len(request.at) == request.length:
                self.end(request)
        if not self.samples or self.now - self.samples[-1].at_ns >= S:
            self.sample()

    def end(self, request: Request) -> None:
        """Record it; its user goes on if there is still need of one."""
        self.running.remove(request)
        bad = self.users >= self.fail_above and self.rng.random() < 0.2
        record = RequestRecord(
            worker=request.number % 2,
            number=request.number // 2,
            user=request.user,
            sent_ns=request.sent_ns,
            done_ns=request.at[-1],
            outcome=Outcome.ok,
            head_ns=request.at[0],
            planned_tokens=request.length,
            prompt_tokens=256,
            output_tokens=request.length,
        )
        if bad:
            record = replace(record, status=503, outcome=Outcome.status, error=self.error)
        else:
            record = answered(record, request.at)
        self.records.append(record)
        if len(self.waiting) + len(self.running) < self.users:
            self.send(request.user)

    def sample(self) -> None:
        """What the server's metrics show now."""
        n_running = float(len(self.running))
        n_prompts = float(self.prompts)
        sample = ServerSample(
            at_ns=self.now,
            running=n_running,
            waiting=float(len(self.waiting)),
            kv_usage=n_running * 300 / 16384,
            preemptions_total=0.0,
            prompt_tokens_total=n_prompts * 256,
            requests_total=float(len(self.records)),
            generation_tokens_total=float(self.tokens),
            ttft_sum_s=self.ttft_s,
            ttft_count=n_prompts,
            queue_sum_s=self.queue_s,
            queue_count=n_prompts,
            prefill_sum_s=n_prompts * 0.016,
            prefill_count=n_prompts,
            took_ns=5.0 * MS,
        )
        self.samples.append(sample)


def answered(record: RequestRecord, at_ns: list[int]) -> RequestRecord:
    """A token at each of these instants; one of 50 stamps is inexact."""
    not_before_ns = [ns - 20_000 if ns % 50 == 0 else ns for ns in at_ns]
    return replace(
        record,
        status=200,
        finish_reason="length",
        answer_index=0,
        at_ns=array("q", at_ns),
        tokens=array("q", [1] * len(at_ns)),
        not_before_ns=array("q", not_before_ns),
    )
