"""What load processes on two hosts read, their clocks apart, against what the server sent.

    python bench/two_hosts.py [--streams 128] [--workers 4] [--tokens 128] [--seconds 20]

The server, Locust's master and two hosts of workers are network namespaces (`namespaces.py`): it
takes root and iproute2. Workers' clocks are ahead of the server's and the master's, or behind, by
up to 200 ms, kernel stamps included. Everything is on one machine, so the server's own clock tells
how far each worker's still is off once the harness has corrected it; `--loopback` does without
namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from accuracy import ITL_MS, SHARE, SLACK_NS, TTFT_MS, Row, by_id, events_of, row_of
from clients import PROMPT_TOKENS, SENDER_HEADER, Load, Read
from namespaces import SERVER, Hosts
from servers import Pace, paced
from tables import HEADINGS, LEGEND, RESULTS, columns, line, machine, machine_line
from watch import Watch, family

from harness.metrics.metrics import itl, ttft
from harness.records import names
from harness.records.folder_reader import read_run, read_sends
from harness.records.json_files import read_json
from harness.records.record_table import OK, concat_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from sent import Sent

    from harness.records.record_table import RecordTable

    Ints = NDArray[np.int64]

AHEAD_MS: Final = (-200.0, -100.0, 100.0, 200.0)  # of one worker after the other, then again
END_S: Final = 120.0  # after the load, for the last answers and the report
RAMP_S: Final = 4  # over which users begin
PAGE: Final = RESULTS / "hosts.md"


@dataclass(frozen=True, slots=True)
class Asked:
    """One run."""

    streams: int
    workers: int = 4
    tokens: int = 128
    seconds: float = 20.0
    apart: bool = True  # in network namespaces

    @property
    def server_processes(self) -> int:
        """One sends as many streams as a core of its own carries."""
        return Load(self.streams, rounds=1).processes

    @property
    def ahead_ms(self) -> list[float]:
        """Of each worker's clock."""
        return list(islice(cycle(AHEAD_MS), self.workers))


@dataclass(frozen=True, slots=True)
class WorkerClock:
    """One worker's. What is left: ahead of the server's by so much, once corrected."""

    worker: int
    host: str
    planted_ms: float
    left_low_ms: float  # no request arrived before it was sent
    left_high_ms: float  # no event arrived before it was sent

    @property
    def wrong_ms(self) -> float:
        """How far it is off for certain."""
        return max(self.left_low_ms, -self.left_high_ms, 0.0)


@dataclass(slots=True)
class Found:
    """What came of it."""

    row: Row
    arrived: int  # at the server, and answered in full
    sent: int  # by the workers' journals
    records: int  # at the master
    clocks: list[WorkerClock]
    bound_ms: float | None  # by which the harness says that clocks may be off; None: it has no idea
    early: int  # events that came before they were sent, even if clocks are off by that bound
    late: int  # the same of those that cannot have come as early as they were sent
    stalled: int  # sends that a full socket delayed
    ended: str  # the result's status, and the master's exit code

    @property
    def master_cores(self) -> float:
        """That the master kept busy."""
        return self.row.cpu_us.get("master", 0.0) * self.row.tokens_per_s / 1e6

    @property
    def clocks_wrong_ms(self) -> float:
        """The worst of them, for certain."""
        return max(clock.wrong_ms for clock in self.clocks)


@dataclass(slots=True)
class Worker:
    """A load process and where it keeps what it records."""

    host: str
    ahead_ms: float
    home: Path
    process: subprocess.Popen[str]

    @property
    def folder(self) -> Path:
        """What it wrote on its own disk."""
        return self.home / names.WORKER_FOLDER

    @property
    def number(self) -> int:
        """In the records."""
        return names.send_files(self.folder)[0][0]


def measured(asked: Asked, folder: Path) -> Found:
    """One run in this folder. Raises AssertionError, with its log, when it does not end well."""
    with Hosts(apart=asked.apart) as hosts:
        serving = paced(
            Pace(),
            processes=asked.server_processes,
            address=hosts.server,
            inside=hosts.inside(SERVER),
        )
        with serving as server, (folder / "log").open("w") as log, contextlib.ExitStack() as at_end:
            master = hosts.locust_master(
                *load_options(asked, server.url, folder / "run"), stdout=log
            )
            at_end.callback(kill, master)
            workers = []
            for i, ahead_ms in enumerate(asked.ahead_ms):
                host = hosts.workers[i % len(hosts.workers)]
                home = folder / f"worker-{i}"
                process = hosts.locust_worker(host, ahead_ms, home, stdout=log)
                at_end.callback(kill, process)
                workers.append(Worker(host, ahead_ms, home, process))
            watch = Watch(
                {master.pid: "master", server.pid: "server"}
                | {worker.process.pid: "worker" for worker in workers}
            )
            watch.start()
            try:
                for process in (master, *(worker.process for worker in workers)):
                    process.wait(asked.seconds + END_S)
            finally:
                watch.close()
            sent = server.sent(asked.tokens)
    run = folder / "run"
    assert (run / names.RESULT).exists(), (folder / "log").read_text()  # noqa: S101 - says why
    return found(run, sent, watch, workers, master.returncode)


def load_options(asked: Asked, url: str, run: Path) -> list[object]:
    """A fixed load."""
    return [
        "--host",
        url,
        "--expect-workers",
        asked.workers,
        "-u",
        asked.streams,
        "-r",
        max(asked.streams // RAMP_S, 1),
        "-t",
        f"{asked.seconds:g}s",
        "--workload",
        "fixed",
        "--prompt-tokens",
        PROMPT_TOKENS,
        "--output-tokens",
        asked.tokens,
        "--header",
        SENDER_HEADER,
        "--run-folder",
        run,
    ]


def kill(process: subprocess.Popen[str]) -> None:
    """What is left of it, decoders too."""
    with contextlib.suppress(OSError):
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def found(run: Path, sent: Sent, watch: Watch, workers: list[Worker], code: int) -> Found:
    """Compare what was read with what was sent."""
    kept = read_run(run)
    table = concat_tables(list(kept.chunks()))
    table = table.select(table.outcome == OK)
    pairs = by_id(table, sent)
    clocks = [clock_of(worker, table, sent, pairs) for worker in workers]
    first, gap = ttft(table), itl(table)
    read = Read(
        watch,
        ttft_ns=first.ns,
        ttft_bounds=(first.lo_ns, first.hi_ns),
        itl_ns=gap.ns,
        itl_bounds=(gap.lo_ns, gap.hi_ns),
        table=corrected(table, clocks),
    )
    result = read_json(run / names.RESULT) or {}
    bound_ms = (result.get("client") or {}).get("clock_apart_ms")
    early, late = misses(table, sent, pairs, round((bound_ms or 0.0) * 1e6))
    return Found(
        row_of("vllm-harness", read, sent),
        arrived=len(sent.arrived_ns),
        sent=sum(sum(read_sends(worker.folder).values()) for worker in workers),
        records=len(kept.table),
        clocks=clocks,
        bound_ms=bound_ms,
        early=early,
        late=late,
        stalled=sent.stalled,
        ended=f"{result.get('status')}, exit code {code}",
    )


def clock_of(
    worker: Worker, table: RecordTable, sent: Sent, pairs: tuple[Ints, Ints]
) -> WorkerClock:
    """What is left of its error."""
    low_ns, high_ns = ahead_ns(worker.number, table, sent, pairs)
    return WorkerClock(worker.number, worker.host, worker.ahead_ms, low_ns / 1e6, high_ns / 1e6)


def ahead_ns(
    worker: int, table: RecordTable, sent: Sent, pairs: tuple[Ints, Ints]
) -> tuple[int, int]:
    """How far a worker's clock is ahead: at least by its requests, at most by their answers."""
    read_rows, sent_rows = pairs
    its_own = table.worker[read_rows] == worker
    if not its_own.any():
        sys.exit(f"Worker {worker} got no answer before the load was over: try more --seconds.")
    read_rows, sent_rows = read_rows[its_own], sent_rows[its_own]
    counts = sent.counts[sent_rows]
    at_ns = table.at_ns[events_of(table.offsets[read_rows], counts)]
    before_ns = sent.before_ns[events_of(sent.firsts[sent_rows], counts)]
    low_ns = (table.sent_ns[read_rows] - sent.arrived_ns[sent_rows]).max()
    high_ns = (at_ns - before_ns).min()
    return int(low_ns), int(high_ns)


def corrected(table: RecordTable, clocks: list[WorkerClock]) -> RecordTable:
    """The records by the server's clock.

    By the requests' way alone: so that the events, which come the other way, are judged by it.
    """
    by_worker = np.zeros(int(table.worker.max(initial=0)) + 1, np.int64)
    for clock in clocks:
        by_worker[clock.worker] = round(clock.left_low_ms * 1e6)
    of_request = by_worker[table.worker]
    of_event = np.repeat(of_request, table.counts)
    return replace(
        table,
        sent_ns=table.sent_ns - of_request,
        at_ns=table.at_ns - of_event,
        not_before_ns=table.not_before_ns - of_event,
    )


def misses(
    table: RecordTable, sent: Sent, pairs: tuple[Ints, Ints], bound_ns: int
) -> tuple[int, int]:
    """Events whose interval is before the send, and after it, by more than clocks may be off."""
    read_rows, sent_rows = pairs
    counts = sent.counts[sent_rows]
    read_events = events_of(table.offsets[read_rows], counts)
    sent_events = events_of(sent.firsts[sent_rows], counts)
    room_ns = bound_ns + SLACK_NS
    early = table.at_ns[read_events] < sent.before_ns[sent_events] - room_ns
    late = table.not_before_ns[read_events] > sent.after_ns[sent_events] + room_ns
    return int(early.sum()), int(late.sum())


def answer(asked: Asked, got: Found) -> str:
    """In a sentence."""
    row = got.row
    where = "in two network namespaces" if asked.apart else "on the loopback"
    load = (
        f"At {asked.streams:,} streams from {asked.workers} load processes {where}, with clocks "
        f"off by up to {max(map(abs, asked.ahead_ms)):g} ms,"
    )
    near = f"{SHARE:.0%} or {TTFT_MS} ms (TTFT), {SHARE:.0%} or {ITL_MS} ms (ITL)"
    if row.misses:
        what = f"these quantiles were further than {near} from what was sent: "
        what += ", ".join(row.misses)
    else:
        what = f"every quantile was within {near} of what was sent"
    same = got.sent == got.arrived == got.records
    counted = f"{got.sent:,} requests were sent, {got.arrived:,} arrived, {got.records:,} recorded"
    if same:
        counted = f"all {got.sent:,} requests that were sent arrived and were recorded"
    return f"{load} {what}; {counted}."


def facts(got: Found) -> Iterator[tuple[str, str]]:
    """(what, figure)."""
    shown = dict(zip(HEADINGS, columns(got.row), strict=True))
    for name in ("tokens/s", *HEADINGS[2:9], "others"):
        yield name, shown[name]
    events = got.row.events
    yield "master, cores", f"{got.master_cores:.2f}"
    yield "requests sent, arrived, recorded", f"{got.sent:,}, {got.arrived:,}, {got.records:,}"
    yield "sends that a full socket delayed", f"{got.stalled:,}"
    yield (
        "events too early, too late beyond the clocks' bound",
        (f"{got.early:,}, {got.late:,} of {events:,}"),
    )
    bound = "unknown" if got.bound_ms is None else f"{got.bound_ms:g}"
    yield "clocks apart at most, as the harness says, ms", bound
    yield "clocks off for certain, at most, ms", f"{got.clocks_wrong_ms:.3f}"
    yield "ended", got.ended


def markdown(asked: Asked, got: Found) -> str:
    """The page."""
    out = ["# Several hosts", "", answer(asked, got), "", machine_line(), "", LEGEND]
    out += [
        "Clocks are set right by the server's stamps before events are compared, except where the",
        "bound that the harness gives is judged.",
        "",
        "| What | Figure |",
        "|---|---|",
        *(f"| {name} | {figure} |" for name, figure in facts(got)),
        "",
        "What was left of each clock's error once the harness had corrected it: no request arrived",
        "before it was sent, and no event.",
        "",
        "| Worker | Host | Clock ahead, ms | Left, ms |",
        "|--:|---|--:|---|",
    ]
    for clock in sorted(got.clocks, key=lambda clock: clock.worker):
        left = f"{clock.left_low_ms:.3f} to {clock.left_high_ms:.3f}"
        out.append(f"| {clock.worker} | {clock.host} | {clock.planted_ms:g} | {left} |")
    return "\n".join(out) + "\n"


def keep(asked: Asked, got: Found, page: Path) -> None:
    """The page, and the same as JSON beside it."""
    page.parent.mkdir(exist_ok=True)
    body = {"machine": machine(), "asked": asdict(asked), "found": asdict(got)}
    page.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n")
    page.write_text(markdown(asked, got))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--loopback", action="store_true", help="without network namespaces")
    given = parser.parse_args()
    asked = Asked(given.streams, given.workers, given.tokens, given.seconds, not given.loopback)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        got = measured(asked, Path(folder))
    print(f"{answer(asked, got)}\n{line(got.row)}")
    for name, figure in facts(got):
        print(f"  {name}: {figure}")
    keep(asked, got, given.page)


if __name__ == "__main__":
    main()
