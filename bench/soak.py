"""A long run at the knee of the embedded engine: what grows in our processes, and how fast.

    PYTHONPATH=. python bench/soak.py [--minutes 30] [--streams 4096 [--gap-ms 20]] [--page PAGE]

`vllm-harness run --embedded` holds the users of the true knee (computed in simulated time), or,
with --streams, so many on the paced server; its page for Prometheus is read. Every few seconds each
of its processes is looked at: resident memory, descriptors, threads, and the loop lag that it
reports itself. After the warm-up the rest is cut into ten blocks; the slope is that of a line
through the blocks' medians, its 95% interval is Student's with 8 degrees of freedom. A figure is
flat when the whole interval is below what LIMITS allows in an hour, rising when none of it is,
else inconclusive. With --streams the limit is that of all processes' memory together. Then the
folder is read again: as many records as requests were sent, and a report within REPORT_S and
REPORT_MB. Exits with 0 only when all of that holds. Writes bench/results/soak.md, and the same as
JSON beside it, which git ignores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import psutil
from clients import STREAMS_PER_CORE
from folder import report
from servers import Pace, paced

from harness.engine.config import EngineConfig
from harness.errors import MeasurementInvalid
from harness.metrics.slo import Slo
from harness.records import names
from harness.records.folder_reader import read_run, read_sends
from harness.records.runinfo import hardware
from harness.server.address import free_port
from harness.units import SECOND
from lab.closed_loop import Traffic
from lab.reference_knee import true_knee

if TYPE_CHECKING:
    from collections.abc import Iterator

RESULTS: Final = Path(__file__).parent / "results"
# as `make knee`
SLOTS, PROMPT, OUTPUT = 16, 128, 32
TOKENS, GAP_MS = 128, 20.0  # of an answer of the paced server, and from token to token
SLOS: Final = "ttft_p95=500ms", "itl_p95=50ms"
KINDS: Final = {
    "harness.senders.worker": "worker",
    "harness.reader.decoder_process": "decoder",
    "harness.engine.process": "engine",
}
# Growth in an hour. Resident memory comes in the allocator's steps, so that none is exactly 0.
LIMITS: Final = {"memory, MB": 10.0, "descriptors": 1.0, "threads": 1.0, "loop lag, ms": 30.0}
ALL: Final = "all", "memory, MB"  # of every process together
ALL_LIMIT: Final = 60.0  # MB an hour: one a minute
WARM_UP: Final = 0.5  # of 30 minutes: the main process keeps the last 15 minutes' scrapes
STREAMS_WARM_UP_S: Final = 300.0  # with --streams, or half of the time if that is shorter
BLOCKS: Final = 10
STUDENT: Final = 2.306  # 97.5% with BLOCKS - 2 degrees of freedom
HOUR_S: Final = 3600.0
REPORT_S, REPORT_MB = 60.0, 1000.0  # at most, of a report on the folder
Points = list[tuple[float, float]]  # seconds since the start, value


@dataclass(frozen=True)
class Slope:
    """One figure of one process; growth in an hour with its interval."""

    process: str
    figure: str
    first: float  # median of the first block
    last: float  # median of the last block
    most: float
    per_hour: float
    low: float
    high: float
    limit: float  # of the growth in an hour

    @property
    def verdict(self) -> str:
        """Of the whole interval."""
        if self.high <= self.limit:
            return "flat"
        return "rising" if self.low > self.limit else "inconclusive"


def limit_of(process: str, figure: str) -> float:
    """In an hour."""
    return ALL_LIMIT if (process, figure) == ALL else LIMITS[figure]


def warm_up_s(minutes: float, streams: int) -> float:
    """For how long growth does not count."""
    half_s = WARM_UP * minutes * 60
    return min(STREAMS_WARM_UP_S, half_s) if streams else half_s


def slope(process: str, figure: str, points: Points, limit: float, after_s: float) -> Slope:
    """Of the points after the warm-up."""
    at, value = np.array(points).T
    begin = min(after_s, (at[0] + at[-1]) / 2)  # a run that ended early has a shorter one
    blocks = np.array_split(np.flatnonzero(at >= begin), BLOCKS)
    x = np.array([at[block].mean() for block in blocks]) / HOUR_S
    y = np.array([np.median(value[block]) for block in blocks])
    spread = ((x - x.mean()) ** 2).sum()
    rise = ((x - x.mean()) * y).sum() / spread
    left = y - y.mean() - rise * (x - x.mean())
    half = STUDENT * np.sqrt((left**2).sum() / (BLOCKS - 2) / spread)
    figures = map(float, (y[0], y[-1], value.max(), rise, rise - half, rise + half))
    return Slope(process, figure, *figures, limit)


def kind_of(process: psutil.Process) -> str:
    """By its command line."""
    line = " ".join(process.cmdline())
    return next((kind for part, kind in KINDS.items() if part in line), "main")


def descriptors(process: psutil.Process) -> int:
    """All that are open, but for one file without a name.

    Main writes a long level's requests to such a file once there are 65,536 of them, and keeps it
    open to the level's end (decision 39). A second one would be a leak.
    """
    folder = Path(f"/proc/{process.pid}/fd")
    targets = []
    for descriptor in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets.append(descriptor.readlink())
    nameless = sum(target.name.endswith("(deleted)") for target in targets)
    return len(targets) - min(nameless, 1)


def look(root: psutil.Process, kinds: dict[int, str]) -> dict[str, dict[str, float]]:
    """The sums of each kind of process now; one that is ending is left out."""
    found: dict[str, dict[str, float]] = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error, OSError):
            kind = kinds.setdefault(process.pid, kind_of(process))
            now = {
                "memory, MB": process.memory_info().rss / 1e6,
                "descriptors": descriptors(process),
                "threads": process.num_threads(),
            }
            before = found.get(kind, {})
            found[kind] = {figure: before.get(figure, 0) + now[figure] for figure in now}
    return found


@dataclass(frozen=True)
class Target:
    """What is loaded, by how many users; `logs`: URLs whose log of sends is forgotten meanwhile."""

    arguments: tuple[str, ...]
    users: int
    words: str
    logs: tuple[str, ...] = ()  # (): the embedded engine's


@contextlib.contextmanager
def target_of(streams: int, gap_ms: float) -> Iterator[Target]:
    """The paced server with so many streams; 0: the embedded engine at its true knee."""
    if streams:
        with paced(Pace(gap_ms), processes=-(-streams // STREAMS_PER_CORE)) as server:
            arguments = (server.url, "--workload", "fixed", "--output-tokens", str(TOKENS))
            words = (
                f"the paced server with {streams:,} streams, {TOKENS} tokens each, "
                f"one in {gap_ms:g} ms"
            )
            yield Target(arguments, streams, words, server.oracles or (server.url,))
        return
    slos = tuple(Slo.parse(slo) for slo in SLOS)
    users = true_knee(EngineConfig(max_num_seqs=SLOTS), Traffic(PROMPT, OUTPUT, 0.4), slos).users
    arguments = ("--embedded", "--max-num-seqs", str(SLOTS), "--output-tokens", str(OUTPUT))
    words = (
        f"the embedded engine ({SLOTS} slots) with {users} users, its true knee for "
        f"{' and '.join(SLOS)}, {PROMPT} prompt tokens and {OUTPUT} output tokens"
    )
    yield Target(arguments, users, words)


def forget(target: Target, out: Path) -> None:
    """The server's log for tests, which would grow."""
    logs = target.logs or (json.loads((out / names.RUN).read_text())["server"]["url"],)
    for url in logs:
        urllib.request.urlopen(f"{url}/oracle/reset", data=b"{}", timeout=5).read()


@dataclass(frozen=True)
class Answer:
    """One thing that was asked for, and whether it is so."""

    words: str
    is_right: bool | None  # None: nothing was asked

    @property
    def line(self) -> str:
        """Bold, of a list."""
        verdicts = {True: ": as asked", False: ": MISSED", None: ""}
        return f"- **{self.words}{verdicts[self.is_right]}.**"


def read_again(out: Path) -> list[Answer]:
    """What the folder holds and what a report of it takes."""
    # First the report: a child's peak of memory begins with what its parent had.
    cost = report(out)
    sent = sum(read_sends(out).values())
    records = len(read_run(out).table)
    takes = (
        f"A report takes {cost.took_s:.0f} s ({cost.cpu_s:.0f} s of CPU) and {cost.most_mb:.0f} MB"
    )
    if not cost.is_whole:
        takes = f"A report ended with exit code {cost.exit_code}"
    is_cheap = cost.took_s <= REPORT_S and cost.most_mb <= REPORT_MB
    return [
        Answer(f"{sent:,} requests were sent and {records:,} have a record", sent == records),
        Answer(takes, is_cheap and cost.is_whole),
    ]


def growth(found: list[Slope], after_s: float) -> Answer:
    """Of the memory of all processes."""
    memory = next(one for one in found if (one.process, one.figure) == ALL)
    rise, low, high = (per_hour / 60 for per_hour in (memory.per_hour, memory.low, memory.high))
    words = (
        f"Memory of all processes grew by {rise:.2f} MB a minute ({low:.2f} to {high:.2f}) after "
        f"{after_s / 60:g} minutes"
    )
    return Answer(words, memory.verdict == "flat")


def each_is_flat(found: list[Slope]) -> Answer:
    """Every figure of each process."""
    grown = [one for one in found if one.verdict != "flat"]
    names_of = [f"{one.process}'s {one.figure} ({one.verdict})" for one in grown]
    words = f"Not flat: {', '.join(names_of)}" if grown else "Every figure of each process is flat"
    return Answer(words, not grown)


def soak(
    minutes: float, every_s: float, target: Target, out: Path
) -> tuple[dict[tuple[str, str], Points], int]:
    """Run, look, and take the loop lags from the run folder; also the run's exit code."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "harness",
        "run",
        *target.arguments,
        "--prompt-tokens",
        str(PROMPT),
        "--users",
        str(target.users),
        "--duration",
        f"{round(minutes * 60)}s",
        "--metrics-port",
        str(port),
        "--quiet",
        "--out",
        str(out),
    ]
    points: dict[tuple[str, str], Points] = {}
    kinds: dict[int, str] = {}
    client = out / names.CLIENT
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        root, until, began = psutil.Process(process.pid), 0.0, 0.0
        while process.poll() is None:
            time.sleep(every_s)
            if not began and client.exists() and client.stat().st_size:  # the load is there
                began = time.time()
                until = began + minutes * 60
            if not began or time.time() > until:
                continue
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()
                forget(target, out)
            at_s = time.time() - began
            looked = look(root, kinds)
            all_mb = sum(figures["memory, MB"] for figures in looked.values())
            points.setdefault(ALL, []).append((at_s, all_mb))
            for kind, figures in looked.items():
                for figure, value in figures.items():
                    points.setdefault((kind, figure), []).append((at_s, value))
    lines = client.read_text().splitlines() if client.exists() else []
    for line in lines:
        sample = json.loads(line)
        at_s = sample["at_ns"] / SECOND - began
        # a decoder waits for its pipe and has no loop
        if not sample["process"].startswith("decoder") and 0 <= at_s <= minutes * 60:
            kind = sample["process"].split(" ")[0]
            points.setdefault((kind, "loop lag, ms"), []).append((at_s, sample["loop_lag_ms"]))
    return points, process.returncode


def page(
    asked: argparse.Namespace,
    words: str,
    after_s: float,
    found: list[Slope],
    n_requests: int,
    answers: list[Answer],
) -> str:
    """Markdown."""
    machine = hardware()
    many = f" STREAMS={asked.streams}" if asked.streams else ""
    if asked.streams and asked.gap_ms != GAP_MS:
        many += f" GAP_MS={asked.gap_ms:g}"
    title = f": {asked.minutes:g} minutes at {asked.streams:,} streams" if asked.streams else ""
    rows = [
        f"# Soak{title}",
        "",
        *(answer.line for answer in answers),
        f"""
`make soak MINUTES={asked.minutes:g}{many}`: {words}, {n_requests:,} requests.
{machine["usable_cores"]} usable cores ({machine["cpu"]}), which other work may have shared: of the
loop lag only the growth counts, not its height.

Growth in an hour is the slope of a line through the medians of ten blocks, after {after_s / 60:g}
minutes as warm-up; in brackets its 95% interval. Flat: the whole interval is below the limit. Main
keeps the last 900 scrapes, 2 kB each, which ends after 15 minutes.
""",
        "| process | figure | first block | last block | most | growth in an hour | limit | |",
        "|---|---|--:|--:|--:|--:|--:|---|",
    ]
    rows += [
        f"| {one.process} | {one.figure} | {one.first:,.1f} | {one.last:,.1f} | {one.most:,.1f} | "
        f"{one.per_hour:+,.2f} ({one.low:+,.2f} to {one.high:+,.2f}) | {one.limit:,.1f} | "
        f"{one.verdict} |"
        for one in found
    ]
    return "\n".join(rows) + "\n"


def ending(code: int) -> list[Answer]:
    """How the run ended, where that has to be said."""
    if code == 0:
        return []
    if code == MeasurementInvalid.exit_code:
        return [Answer("The run refused its latencies, as the machine was too busy", is_right=None)]
    return [Answer(f"The run ended with exit code {code}", is_right=False)]


def allow_many_files() -> None:
    """A socket for each stream, in the run and in the servers that this starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    """The command line; 0 when all is as asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--streams", type=int, default=0, help="on the paced server; 0: see above")
    parser.add_argument("--gap-ms", type=float, default=GAP_MS, help="of the paced server's tokens")
    parser.add_argument("--page", type=Path, default=RESULTS / "soak.md")
    asked = parser.parse_args()
    allow_many_files()
    with target_of(asked.streams, asked.gap_ms) as target, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        points, code = soak(asked.minutes, asked.every, target, out)
        if len(points.get(ALL, ())) < 2 * BLOCKS:
            sys.exit(f"the run ended with exit code {code} before enough was measured: see above.")
        again = read_again(out)
        n_requests = sum(read_sends(out).values())
    after_s = warm_up_s(asked.minutes, asked.streams)
    found = [
        slope(*key, points[key], limit_of(*key), after_s)
        for key in sorted(points)
        if len(points[key]) >= 2 * BLOCKS  # not of a process that was only seen to end
    ]
    answers = [growth(found, after_s), *again, *ending(code)]
    if not asked.streams:
        answers.insert(1, each_is_flat(found))
    text = page(asked, target.words, after_s, found, n_requests, answers)
    asked.page.write_text(text)
    rounded = {
        f"{kind}: {figure}": [[round(at, 1), round(value, 2)] for at, value in points[kind, figure]]
        for kind, figure in sorted(points)
    }
    kept = {
        "minutes": asked.minutes,
        "users": target.users,
        "exit_code": code,
        "requests_per_hour": round(n_requests / asked.minutes * 60),
        "answers": [asdict(one) for one in answers],
        "slopes": [asdict(one) | {"verdict": one.verdict} for one in found],
        "points": rounded,
    }
    asked.page.with_suffix(".json").write_text(json.dumps(kept) + "\n")
    print(text)
    return int(any(answer.is_right is False for answer in answers))


if __name__ == "__main__":
    sys.exit(main())
