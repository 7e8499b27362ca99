"""A session in a process of its own (Locust patches what it runs in): prints what happened as JSON.

    python session_run.py URL PROCESSES LEVELS [OPTIONS-JSON]

LEVELS is a JSON list of users, one per tick; the run is done after the last one. With the option
`patient` each level is kept until it is seen, so nothing depends on how fast this machine is. With
`late` the workers' heartbeats seem to be late when the session begins. The first line printed is
`ready` and the pids of the load processes.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from locust.runners import STATE_MISSING, MasterRunner

from harness.core.run_kinds import LevelRun
from harness.load.arrivals import LoadTarget
from harness.load.workloads import WORKLOADS
from harness.metrics.ledger import Ledger
from harness.records.record_table import OPEN
from harness.records.request_record import Outcome, RequestRecord
from harness.run.run_page import RunPage
from harness.senders.children import ChildProcesses, child_processes
from harness.senders.drive_options import DriveOptions
from harness.senders.prepare import prepare
from harness.senders.session import Session

if TYPE_CHECKING:
    from harness.records.request_record import RecordSink
    from harness.records.samples import ServerSample


class Script:
    """A controller that reads its levels from a list."""

    def __init__(self, levels: list[int]) -> None:
        self.levels = levels
        self.running: list[int] = []
        self.samples: list[ServerSample | None] = []
        self.ledger = Ledger()
        self.known: list[tuple[int, list[int]]] = []  # at each tick: until when, what was seen

    def seen(self, known_ns: int) -> list[int]:
        """Requests sent by then, those that had ended, events that had come."""
        look = self.ledger.look(0, known_ns)
        events = sum(len(chunk.at_ns) for chunk in look.chunks())
        return [len(look.table), int((look.table.outcome != OPEN).sum()), events]

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        """The next level."""
        assert now_ns > known_ns
        self.known.append((known_ns, self.seen(known_ns)))
        self.running.append(running_users)
        self.samples.append(server)
        tick = len(self.running) - 1
        done = tick >= len(self.levels)
        users = self.levels[min(tick, len(self.levels) - 1)]
        return LoadTarget(users, float(max(users, 1)), done)


class Patient(Script):
    """Each level is kept until as many users run here and as many requests at the server."""

    MOST = 60  # ticks; then what was not reached is missing in `reached`

    def __init__(self, levels: list[int]) -> None:
        super().__init__(levels)
        self.reached: list[int] = []

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        """The same level until it is seen."""
        super().tick(now_ns, running_users, server, known_ns)
        left = self.levels[len(self.reached) :]
        if left and server is not None and running_users == server.running == left[0]:
            self.reached.append(left.pop(0))
        users = (left or self.levels[-1:])[0]
        return LoadTarget(users, float(max(users, 1)), not left or len(self.running) > self.MOST)


class Late(Script):
    """The workers' heartbeats are late, and at the first tick another message of theirs comes."""

    def __init__(self, levels: list[int], runner: MasterRunner) -> None:
        super().__init__(levels)
        self.runner = runner
        self.miss_workers()

    def miss_workers(self) -> None:
        """As Locust does; it hears of them again when their next heartbeat comes."""
        for client in self.runner.clients.all:
            client.state = STATE_MISSING

    def tick(
        self, now_ns: int, running_users: int, server: ServerSample | None, known_ns: int
    ) -> LoadTarget:
        """The next level."""
        if not self.running:
            self.miss_workers()
            self.runner.check_stopped()  # as after each message: without workers, it has stopped
        return super().tick(now_ns, running_users, server, known_ns)


class Keep:
    """A sink that keeps whole records, and says once that each load process has sent some."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []
        self.parts = 0
        self.workers: set[int] = set()  # heard of
        self.closed = 0
        self.session: Session | None = None

    def put(self, records: list[RequestRecord]) -> None:
        """Take them."""
        assert self.session is not None
        load = self.session.load
        assert isinstance(load, ChildProcesses)
        pids = [child.pid for child in load.children]
        unheard = len(self.workers) < len(pids)
        self.workers |= {record.worker for record in records}
        if unheard and len(self.workers) == len(pids):
            sys.stdout.write(f"ready {json.dumps(pids)}\n")
            sys.stdout.flush()
        self.parts += sum(record.outcome is Outcome.open for record in records)
        self.records += [record for record in records if record.outcome is not Outcome.open]

    def close(self) -> None:
        """Count."""
        self.closed += 1


def summary(session: Session, script: Script, keep: Keep) -> dict[str, Any]:
    """Run, then say what there is."""
    ended = session.run()
    stats = session.load.environment.stats.total
    records = sorted(keep.records, key=lambda record: record.sent_ns)
    known = [(known_ns, then, script.seen(known_ns)) for known_ns, then in script.known]
    return {
        "interrupted": ended.interrupted,
        "invalid": ended.invalid,
        "missing": ended.missing,
        "figures": ended.figures,
        "running": script.running,
        "reached": script.reached if isinstance(script, Patient) else [],
        "known": known,
        "samples": sum(sample is not None for sample in script.samples),
        "outcomes": Counter(record.outcome.value for record in records),
        "keys": sorted(record.key for record in records),
        "tokens": sum(sum(record.tokens) for record in records),
        "most_in_flight": most_in_flight(records),
        "closed": keep.closed,
        "locust_requests": stats.num_requests,
        "locust_failures": stats.num_failures,
        "first_sent_ns": [record.sent_ns for record in records[:8]],
    }


def most_in_flight(records: list[RequestRecord]) -> int:
    """At any instant."""
    begins = [(record.sent_ns, 1) for record in records]
    ends = [(record.done_ns, -1) for record in records]
    changes = [change for _, change in sorted(begins + ends)]
    return max(accumulate(changes), default=0)


def main() -> None:
    """Read the arguments, run, print."""
    url, processes, levels = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    more = json.loads(sys.argv[4]) if len(sys.argv) > 4 else {}
    drain_ns = more.pop("drain_ns", 20_000_000_000)
    ui_port, patient = more.pop("ui_port", None), more.pop("patient", False)
    late = more.pop("late", False)
    work = WORKLOADS["chat"].sized(32, more.pop("output_tokens", 30))
    options = prepare(DriveOptions(url, "", work, processes=processes))
    keep = Keep()
    options = replace(options, **more)
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(child_processes(options))
        script: Script
        if late:
            script = Late(levels, load.runner)
        elif patient:
            script = Patient(levels)
        else:
            script = Script(levels)
        sinks: list[RecordSink] = [keep, script.ledger]
        if ui_port is not None:
            view = stack.enter_context(RunPage(LevelRun))
            view.serve(load, ui_port)
            sinks.append(view.live.counts)
        session = keep.session = Session(load, options, script, sinks, drain_ns=drain_ns)
        told = summary(session, script, keep)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
