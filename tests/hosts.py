"""Nothing lost, on several hosts: a master, two workers and a server of their own, and faults.

    python tests/hosts.py --out FILE [FAULT=RUNS ...] [--at-once 4]

Each host is a network namespace, which takes root and iproute2; workers are linked to the master
and to the server apart, so that one can be cut from the master alone. FILE gets a JSON line for
each run; the table of all its lines is printed. For tests in CI `played(..., apart=False)` puts
them all on loopback.

In each run: requests sent = records in the run folder, once merged, + those counted as lost. The
server's own list of what arrived is the witness: no more than the workers' journals say, and no
less than the records that were answered.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from study_process import descendants

from harness.records import names
from harness.records.folder_reader import read_run, read_sends
from harness.records.folder_writer import merge_kept
from harness.records.json_files import read_json
from harness.records.record_table import OUTCOME_CODE
from harness.records.request_record import Outcome

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from namespaces import SERVER, WORKERS, Hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.records.folder_reader import Run as FolderContents
    from harness.records.record_table import RecordTable

HERE: Final = Path(__file__).parent
USERS, TOKENS = 8, 30  # 24 requests a second
APART_S: Final = 30.0  # a pause, and a cut
# the load's seconds; the fault comes when it is under way
FAULTS: Final = {
    "worker killed": 12,
    "worker paused 30 s": 45,
    "cut from the master 30 s": 45,
    "master killed": 30,
    "disk full": 15,
    "clock off by 200 ms": 12,
}
AHEAD_MS: Final = 200


@dataclass(frozen=True)
class Row:
    """One run. `sent`: by the journals, probes left out; each request has a record or is lost."""

    fault: str
    seed: int
    arrived: int  # at the server
    sent: int
    records: int
    lost: int
    before: int  # records in the master's folder before anything was merged
    ended: str  # its status, and the master's exit code
    moved_ms: float | None = None  # w0's instants against w1's, by the server's; None: some lack
    bound_ms: float | None = None  # what the harness itself says of its clocks
    wrong: list[str] = field(default_factory=list)


def played(fault: str, seed: int, folder: Path, *, apart: bool = True) -> Row:
    """One run in this folder. Raises AssertionError when it does not begin or end."""
    with contextlib.ExitStack() as at_end:
        hosts = at_end.enter_context(Hosts(apart=apart))
        return Run(fault, seed, folder, hosts, at_end).row()


class Run:
    """One run: the hosts' processes, and what goes wrong with them."""

    def __init__(
        self, fault: str, seed: int, folder: Path, hosts: Hosts, at_end: contextlib.ExitStack
    ) -> None:
        self.fault, self.seed, self.hosts = fault, seed, hosts
        self.disk = folder / "disk"  # of the master, and in every other run of w0 as well
        self.disk.mkdir(parents=True)
        if fault == "disk full":
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.disk], check=True)
            at_end.callback(lambda: subprocess.run(["umount", "-l", self.disk], check=True))
        self.homes = {host: folder / host for host in WORKERS}
        if seed % 2:
            self.homes["w0"] = self.disk / "w0"
        self.run_folder, self.arrivals = self.disk / "run", folder / "arrivals"
        self.log = at_end.enter_context((folder / "log").open("w"))
        self.processes: list[subprocess.Popen[str]] = []
        at_end.callback(self._kill)
        self._start()

    def _start(self) -> None:
        hosts = self.hosts
        script = (HERE / "scripted_vllm.py", 40, 10, hosts.server, self.arrivals)
        server = hosts.start(SERVER, *script, stdout=subprocess.PIPE)
        self.processes.append(server)
        assert server.stdout is not None
        url = f"http://{hosts.server}:{server.stdout.readline().strip()}"
        seconds = FAULTS[self.fault]
        self.master = hosts.locust_master(
            "--expect-workers",
            2,
            "-u",
            USERS,
            "-r",
            USERS,
            "-t",
            f"{seconds}s",
            "--host",
            url,
            "--workload",
            "fixed",
            "--output-tokens",
            TOKENS,
            "--run-folder",
            self.run_folder,
            "--seed",
            self.seed,
            stdout=self.log,
        )
        self.processes.append(self.master)
        ahead = AHEAD_MS * (1 if self.seed % 2 else -1) * (self.fault == "clock off by 200 ms")
        self.workers = []
        for host, home in self.homes.items():
            worker = hosts.locust_worker(host, ahead if host == "w0" else 0, home, stdout=self.log)
            self.workers.append(worker)
            self.processes.append(worker)

    def _kill(self) -> None:
        """What is left of it, decoders too."""
        for process in self.processes:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def arrived(self) -> list[tuple[str, int]]:
        """(from whom, when) of each request; the probe asks for another number of tokens."""
        lines = self.arrivals.read_text().splitlines() if self.arrivals.exists() else []
        some = (line.split() for line in lines)
        return [(peer, int(at_ns)) for peer, at_ns, tokens in some if tokens == str(TOKENS)]

    def _act(self) -> None:
        """What goes wrong, once load is sent by all."""
        until = time.monotonic() + 120
        while len(self.arrived()) < 3 * USERS:
            assert time.monotonic() < until, "no load"
            assert self.master.poll() is None, "the master has ended"
            time.sleep(0.05)
        time.sleep(random.Random(self.seed).uniform(0, 3))  # noqa: S311 - no secret
        if self.fault.startswith("worker "):
            self._signal_worker()
        elif self.fault == "cut from the master 30 s":
            self.hosts.cut("w0")
            time.sleep(APART_S)
            self.hosts.cut("w0", "up")
        elif self.fault == "master killed":
            self.master.kill()
        elif self.fault == "disk full":
            with contextlib.suppress(OSError), (self.disk / "filler").open("wb", 0) as filler:
                while True:
                    filler.write(bytes(512))

    def _signal_worker(self) -> None:
        family = [self.workers[0].pid, *descendants(self.workers[0].pid)]
        if self.fault == "worker killed":
            for pid in family if self.seed % 2 else family[:1]:  # its host, or this process alone
                os.kill(pid, signal.SIGKILL)
            return
        for kind, seconds in ((signal.SIGSTOP, APART_S), (signal.SIGCONT, 0.0)):
            for pid in family:
                os.kill(pid, kind)
            time.sleep(seconds)

    def row(self) -> Row:
        """Let it happen, wait for the end, count."""
        self._act()
        seconds = FAULTS[self.fault] + 90
        decoders = [pid for worker in self.workers for pid in descendants(worker.pid)]
        for process in (self.master, *self.workers):
            process.wait(seconds)
        until = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in decoders):
            assert time.monotonic() < until, "a decoder goes on"
            time.sleep(0.1)
        (self.disk / "filler").unlink(missing_ok=True)
        return self._counted()

    def _counted(self) -> Row:
        before = len(read_run(self.run_folder).table)
        merge_kept(self.run_folder, [self._kept(host) for host in WORKERS])
        run, sent = read_run(self.run_folder), read_sends(self.run_folder)
        arrived = self.arrived()
        wrong = []
        if not _answered(run.table).sum() <= len(arrived) <= sum(sent.values()):
            wrong.append("the server saw others")
        for host in WORKERS:
            wrong += self._wrong_of(host, run, sent)
        ended = read_json(self.run_folder / names.RESULT) or {}
        status = ended.get("status", "-")
        client = ended.get("client") or {}
        return Row(
            self.fault,
            self.seed,
            len(arrived),
            sum(sent.values()),
            len(run.table),
            sum(run.damage.missing.values()),
            before,
            f"{status}, {self.master.returncode}",
            self._moved_apart_ms(run.table),
            client.get("clock_apart_ms"),
            wrong,
        )

    def _kept(self, host: str) -> Path:
        """What this worker wrote on its own disk."""
        return self.homes[host] / names.WORKER_FOLDER

    def _worker_of(self, host: str) -> int:
        """Its number in the records."""
        return names.send_files(self._kept(host))[0][0]

    def _wrong_of(self, host: str, found: FolderContents, sent: dict[int, int]) -> list[str]:
        """Where records, losses and what the server saw of a worker do not add up to its sends."""
        worker = self._worker_of(host)
        ours = found.table.worker == worker
        n_records = int(ours.sum())
        n_lost = found.damage.missing.get(worker, 0)
        last = int(found.table.number[ours].max(initial=-1))
        wrong = []
        if sent[worker] != n_records + n_lost or last >= sent[worker]:
            wrong.append(f"{host}: {sent[worker]} sent, {n_records} records, {n_lost} lost")
        n_seen = sum(peer == self.hosts.peer(host) for peer, _ in self.arrived())
        n_answered = int((ours & _answered(found.table)).sum())
        if self.hosts.apart and not n_answered <= n_seen <= sent[worker]:
            wrong.append(f"{host}: the server saw {n_seen} of {sent[worker]}")
        return wrong

    def _moved_apart_ms(self, table: RecordTable) -> float | None:
        """w1's instants against w0's, by the server's; None where a worker's lack some."""
        moved_ms = []
        for host in WORKERS:
            sent_ns = np.sort(table.sent_ns[table.worker == self._worker_of(host)])
            own_peer = self.hosts.peer(host)
            arrived_ns = sorted(at_ns for peer, at_ns in self.arrived() if peer == own_peer)
            if len(arrived_ns) != len(sent_ns):
                return None
            # the fastest is the nearest to the truth
            moved_ms.append(float((np.array(arrived_ns) - sent_ns).min()) / 1e6)
        first_ms, second_ms = moved_ms
        return round(second_ms - first_ms, 3)


def _answered(table: RecordTable) -> np.ndarray:
    return np.asarray(table.outcome == OUTCOME_CODE[Outcome.ok])


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """In Markdown."""
    heads = "Fault", "Seed", "Arrived", "Sent", "Records", "Lost", "At the master", "Ended"
    yield f"| {' | '.join(heads)} | Moved, ms | At most, ms |"
    yield "|---|--:|--:|--:|--:|--:|--:|---|--:|--:|"
    for row in sorted(rows, key=lambda row: (list(FAULTS).index(row["fault"]), row["seed"])):
        cells = [str(row.get(name)) for name in Row.__dataclass_fields__ if name != "wrong"]
        yield f"| {' | '.join(cells).replace('None', '')} | {'; '.join(row['wrong'])}".rstrip()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("faults", nargs="*", metavar="FAULT=FIRST:LAST")
    asked = parser.parse_args()
    wanted = []
    for text in asked.faults:
        fault, _, seeds = text.partition("=")
        first, last = map(int, seeds.split(":"))
        wanted += [(fault, seed) for seed in range(first, last + 1)]

    def one(what: tuple[str, int]) -> None:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
            try:
                line = json.dumps(asdict(played(*what, Path(made))))
            except (AssertionError, OSError, subprocess.SubprocessError) as error:
                log = Path(made) / "log"
                tail = log.read_text()[-1500:] if log.exists() else ""
                sys.stderr.write(f"{what}: {error!r}\n{tail}\n")
                return
            with asked.out.open("a") as out:
                out.write(line + "\n")

    with ThreadPoolExecutor(asked.at_once) as pool:
        list(pool.map(one, wanted))
    rows = [json.loads(line) for line in asked.out.read_text().splitlines()]
    sys.stdout.write("\n".join(table(rows)) + "\n")


if __name__ == "__main__":
    main()
