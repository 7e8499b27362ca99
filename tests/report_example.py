"""A run folder like a real one: a server with so many batch slots, loaded in a closed loop.

Each engine step takes 10 ms + 0.25 ms per running request + 6 ms per prompt it takes in; every
running request gets one token. Beyond `SLOTS` users requests wait, and TTFT climbs past its SLO.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from harness.measure.evidence import Window, gather
from harness.measure.records import Outcome, RequestRecord
from harness.measure.samples import ServerSample
from harness.measure.search import Done, SearchPlan
from harness.measure.slo import Slo
from harness.measure.summary import window_summary
from harness.measure.table import RecordTable
from harness.runfolder import names
from harness.runfolder.parquet import write_parquet
from harness.runfolder.recordwriter import RecordWriter
from harness.runfolder.runinfo import run_info
from harness.runfolder.writer import RunFolder
from harness.study.controller import Step
from harness.study.outcome import knee_json

if TYPE_CHECKING:
    from pathlib import Path

SLOTS = 40
T0 = 1_790_000_000_000_000_000
MS, S = 10**6, 10**9
SLOS = (Slo("ttft", 0.95, 500 * MS), Slo("itl", 0.95, 50 * MS))
LEVELS = (1, 2, 4, 8, 16, 32, 64, 48, 56, 52, 50, 51, 50, 51)
PLAN = SearchPlan(SLOS)
CLIENT = {"stamp_source": "kernel", "exact_share": 0.98, "loop_lag_p99_ms": 1.42, "cpu_s": 12.4}
PURPOSES = ("up",) * 7 + ("bisect",) * 5 + ("repeat",) * 2


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
    fail_above: int = 10**9  # users from which on some requests fail

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
        at = [] if bad else request.at
        self.records.append(
            RequestRecord(
                worker=request.number % 2, number=request.number // 2, user=request.user,
                sent_ns=request.sent_ns, done_ns=request.at[-1], status=503 if bad else 200,
                outcome=Outcome.status if bad else Outcome.ok, head_ns=request.at[0],
                error="503 Service Unavailable" if bad else "", planned_tokens=request.length,
                finish_reason="" if bad else "length", prompt_tokens=256,
                output_tokens=request.length, answer_index=0 if at else -1,
                at_ns=array("q", at), tokens=array("q", [1] * len(at)),
                not_before_ns=array("q", [a - (20_000 if a % 50 == 0 else 0) for a in at]),
            )
        )  # fmt: skip
        if len(self.waiting) + len(self.running) < self.users:
            self.send(request.user)

    def sample(self) -> None:
        """What the server's metrics show now."""
        self.samples.append(
            ServerSample(
                at_ns=self.now, running=float(len(self.running)), waiting=float(len(self.waiting)),
                kv_usage=len(self.running) * 300 / 16384, preemptions_total=0.0,
                prompt_tokens_total=self.prompts * 256.0, requests_total=float(len(self.records)),
                generation_tokens_total=float(self.tokens), ttft_sum_s=self.ttft_s,
                ttft_count=float(self.prompts), queue_sum_s=self.queue_s,
                queue_count=float(self.prompts), prefill_sum_s=self.prompts * 0.016,
                prefill_count=float(self.prompts),
            )
        )  # fmt: skip


def steps_of(windows: list[Window], table: RecordTable) -> list[Step]:
    """Each window judged on its own, as what was known at its end."""
    evidences = [gather(table.until(window.end_ns), window, SLOS) for window in windows]
    return [Step(e.window, e, PLAN.judge(e)) for e in evidences]


def make(
    path: Path, *, seconds: float = 8.0, fail_above: int = 10**9, finished: bool = True
) -> dict[str, Any]:
    """Write a folder of a found knee, or one that ends with the load; its knee.json."""
    server, windows = Server(fail_above=fail_above), []
    for index, (users, purpose) in enumerate(zip(LEVELS, PURPOSES, strict=True)):
        began = server.now
        server.hold(users, seconds / 2)
        settled = server.now
        server.hold(users, seconds)
        end = server.now
        windows.append(Window(index, users, purpose, began, began + S, settled, end, end))
    server.users = 0
    while server.running or server.waiting:
        server.step()
    table = RecordTable.from_records(server.records)
    folder = RunFolder.create(path)
    config = {"kind": "knee", "slos": [str(slo) for slo in SLOS], "plan_users": 2000,
              "drive": {"workload": {"name": "chat", "prompt": {"mean": 256, "shape": "fixed"},
                                     "output": {"mean": 48, "shape": "normal"}}}}  # fmt: skip
    command = ["vllm-harness", "knee", "http://127.0.0.1:8000", "--slo", "ttft_p95=500ms", "--slo",
               "itl_p95=50ms", "--plan-users", "2000"]  # fmt: skip
    target = {"url": "http://127.0.0.1:8000", "model": "example-1.5b", "version": "0.26.0",
              "flags": {"max_num_seqs": SLOTS, "max_num_batched_tokens": 8192}}  # fmt: skip
    folder.write_json(
        names.RUN, run_info(config, seeds={"load": 1}, server=target, command=command)
    )
    for worker in (0, 1):
        writer = RecordWriter(folder, worker)
        writer.put([record for record in server.records if record.worker == worker])
        writer.close()
    samples, steps = folder.lines(names.SERVER), folder.lines(names.STEPS)
    for sample in server.samples:
        samples.append(sample)
    made = steps_of(windows, table)
    for step in made:
        row = asdict(step.window) | {"decision": step.judgement.decision, "invalid": step.invalid}
        steps.append(row)
    for lines in (samples, steps):
        lines.close()
    done = Done("found", (50, 51))
    knee = {**knee_json(PLAN, made, done, table, server.samples), "client": CLIENT}
    if finished:
        folder.write_json(names.KNEE, knee)
        start, end = windows[0].settled_ns, windows[-1].end_ns
        folder.write_json(names.SUMMARY, window_summary(table, start, end, SLOS))
        write_parquet(folder, names.PARQUET, table)
    return knee
