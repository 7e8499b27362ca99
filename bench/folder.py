"""What `vllm-harness report` takes on a run folder of as many tokens as you like.

    python bench/folder.py MILLIONS [--levels 12 | --users 4096] [--tokens 256] [--keep DIR]

Levels of closed-loop users, or one long one, one token each 20 ms and user; times are drawn,
nothing is waited for.
The folder is written by the product's own codec, in a process of its own: a child's peak of memory
begins with what its parent had. Results and reports of it are then made in another process, whose
peak of memory, CPU time and time are printed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from harness.core.load import Users
from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, MeasurementInvalid
from harness.metrics.evidence import Window
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.folder_writer import RecordWriter, RunFolder
from harness.records.request_record import Outcome, RequestRecord
from harness.records.runinfo import run_info
from harness.records.samples import ServerSample
from harness.search.next_level import SearchPlan
from harness.units import MS, SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

GAP_NS: Final = 20 * MS
FIRST_NS: Final = 100 * MS
LONG: Final = 0.01  # of the gaps: three times as long
INEXACT: Final = 0.01  # of the events: two shared a read
REPORTED: Final = (EXIT_OK, EXIT_INCONCLUSIVE, EXIT_SLO_MISSED, MeasurementInvalid.exit_code)
BATCH: Final = 200  # records a write, about as in a run


class Maker:
    """Levels one after another on one clock."""

    def __init__(self, folder: RunFolder, tokens: int) -> None:
        """Requests of `tokens` tokens into the folder's first file."""
        self.folder = folder
        self.tokens = tokens
        self.draw = np.random.default_rng(1)
        self.now_ns = 1_790_000_000 * SECOND
        self.number = 0
        self.writer = RecordWriter(folder, 0)
        self.samples = folder.lines(names.SERVER)
        self.steps = folder.lines(names.LEVELS)

    def level(self, index: int, users: int, rounds: int, decision: str) -> None:
        """Hold `users` for so many requests of each; the first one warms up."""
        life_ns = FIRST_NS + self.tokens * GAP_NS
        began = self.now_ns
        settled, end = began + life_ns, began + rounds * life_ns
        made: list[RequestRecord] = []
        for user in range(users):
            at = began + user * life_ns // (4 * users)
            for _ in range(rounds):
                made.append(self.request(user, at))
                at = made[-1].done_ns + MS
        # As in a run: numbered as they are sent, written as they end.
        made.sort(key=attrgetter("sent_ns"))
        ready = [replace(record, number=self.number + i) for i, record in enumerate(made)]
        self.number += len(ready)
        ready.sort(key=attrgetter("done_ns"))
        for part in range(0, len(ready), BATCH):
            self.writer.put(ready[part : part + BATCH])
        self.now_ns = ready[-1].done_ns + SECOND
        for at in range(began, self.now_ns, SECOND):
            self.samples.append(ServerSample(at, running=users, waiting=0.0, kv_usage=0.5))
        window = Window(index, Users(users), "up", began, began, settled, end, end)
        self.steps.append(window.to_json() | {"decision": decision, "reason": "", "invalid": ""})

    def request(self, user: int, sent: int) -> RequestRecord:
        """One answer; its number comes later."""
        n = self.tokens
        gaps = self.draw.normal(GAP_NS, 0.2 * MS, n) * np.where(self.draw.random(n) < LONG, 3, 1)
        gaps[0] = FIRST_NS * self.draw.lognormal(0, 0.3)
        at = sent + np.cumsum(gaps).astype(np.int64)
        low = at - np.where(self.draw.random(n) < INEXACT, 300_000, 0)
        ones = np.ones(n, np.int64)
        made = RequestRecord(
            0,
            0,
            user,
            sent,
            int(at[-1]) + MS,
            Outcome.ok,
            status=200,
            planned_tokens=n,
            output_tokens=n,
            answer_index=0,
            events_before=1,
            silent_events=1,
        )
        for name, column in (("at_ns", at), ("not_before_ns", low), ("tokens", ones)):
            getattr(made, name).frombytes(column.tobytes())
        return made

    def close(self) -> None:
        """Everything on the disk."""
        for file in (self.writer, self.samples, self.steps):
            file.close()


def climb(levels: int) -> Iterator[tuple[int, str]]:
    """Users and what was decided: up to a bad level."""
    for index in range(levels):
        yield 4 + 12 * index, "bad" if index == levels - 1 else "good"


def make(path: Path, tokens: int, held: list[tuple[int, str]], each: int) -> int:
    """Write the folder of levels of (users, decision); the tokens that it really has."""
    slos = (Slo.parse("ttft_p95=500ms"), Slo.parse("itl_p95=50ms"))
    plan = SearchPlan(slos)
    folder = RunFolder.create(path)
    said = [str(slo) for slo in slos]
    config = {"kind": "knee", "plan": plan.to_json(), "slos": said}
    folder.write_json(names.RUN, run_info(config, seeds={}, server={}, command=["knee"]))
    folder.write_json(names.ENDED, {"interrupted": False, "status": "found"})
    maker = Maker(folder, each)
    users = sum(level for level, _ in held)
    rounds = max(3, round(tokens / (users * each)))
    for index, (level, decision) in enumerate(held):
        maker.level(index, level, rounds, decision)
    maker.close()
    return maker.number * each


class Cost(NamedTuple):
    """What a process took."""

    exit_code: int
    cpu_s: float
    took_s: float
    most_mb: float

    @property
    def is_whole(self) -> bool:
        """Whether the report came to its end, whatever it says."""
        return self.exit_code in REPORTED


def report(path: Path) -> Cost:
    """Of `vllm-harness report` on a folder."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "harness", "report", str(path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - began_s
    return Cost(process.returncode, used.ru_utime + used.ru_stime, took_s, used.ru_maxrss / 1e3)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("millions", type=float)
    parser.add_argument("--levels", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=256, help="of an answer")
    parser.add_argument("--users", type=int, default=0, help="one level of so many; 0: --levels")
    parser.add_argument("--keep", type=Path, help="write the folder here and keep it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = asked.keep or Path(temporary) / "run"
        held = [(asked.users, "good")] if asked.users else list(climb(asked.levels))
        with ProcessPoolExecutor(1, get_context("spawn")) as apart:
            made = apart.submit(make, path, round(asked.millions * 1e6), held, asked.tokens)
            count = made.result()
        cost = report(path)
        if not cost.is_whole:
            sys.exit(f"The report ended with exit code {cost.exit_code}.")
        print(
            f"{count:,} tokens: report takes {cost.cpu_s:.1f} s of CPU in {cost.took_s:.1f} s, "
            f"{cost.most_mb:.0f} MB at most"
        )


if __name__ == "__main__":
    main()
