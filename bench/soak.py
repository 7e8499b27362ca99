"""A long run at the knee of the embedded engine: what grows in our processes, and how fast.

    PYTHONPATH=. python bench/soak.py [--minutes 30] [--every 5] [--streams N]

`vllm-harness run --embedded` holds the users of the true knee (computed in simulated time), or,
with --streams, so many on the paced server; its page for Prometheus is read. Every few seconds each
of its processes is looked at: resident memory, descriptors, threads, and the loop lag that it
reports itself. After the warm-up, which is the first half, the rest is cut into ten blocks; the
slope is that of a line through the blocks' medians, its 95% interval is Student's with 8 degrees of
freedom. A figure is flat when the whole interval is below what `limit_of` allows in an hour, rising
when none of it is, else inconclusive. Then the folder is read again: as many records as requests
were sent, and a report within REPORT_S and REPORT_MB. Exits with 0 only when all of that holds.
Writes bench/results/soak.md, and the same as JSON beside it, which git ignores.
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
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import psutil
from clients import STREAMS_PER_CORE
from servers import Pace, paced

from harness.engine.config import EngineConfig
from harness.metrics.record_source import REQUEST_BYTES
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
TOKENS: Final = 128  # of an answer of the paced server
SLOS: Final = "ttft_p95=500ms", "itl_p95=50ms"
KINDS: Final = {
    "harness.senders.worker": "worker",
    "harness.reader.decoder_process": "decoder",
    "harness.engine.process": "engine",
}
# Growth in an hour. Resident memory comes in the allocator's steps, so that none is exactly 0.
LIMITS: Final = {"memory, MB": 10.0, "descriptors": 1.0, "threads": 1.0, "loop lag, ms": 30.0}
WARM_UP: Final = 0.5  # of 30 minutes: the main process keeps the last 15 minutes' scrapes
BLOCKS: Final = 10
STUDENT: Final = 2.306  # 97.5% with BLOCKS - 2 degrees of freedom
HOUR_S: Final = 3600.0
REPORT_S, REPORT_MB = 60.0, 1000.0  # at most, of `vllm-harness report` on the folder
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


def limit_of(process: str, figure: str, requests_per_hour: float) -> float:
    """As LIMITS says; main also keeps each request of a level until it ends, for its statistics."""
    keeps = (process, figure) == ("main", "memory, MB")
    return LIMITS[figure] + keeps * requests_per_hour * REQUEST_BYTES / 1e6


def slope(process: str, figure: str, points: Points, limit: float) -> Slope:
    """Of the points after the warm-up."""
    at, value = np.array(points).T
    begin = at[0] + WARM_UP * (at[-1] - at[0])
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


def look(root: psutil.Process, kinds: dict[int, str]) -> dict[str, dict[str, float]]:
    """Every process now; one that is ending is left out."""
    found = {}
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            kind = kinds.setdefault(process.pid, kind_of(process))
            found[kind] = {
                "memory, MB": process.memory_info().rss / 1e6,
                "descriptors": process.num_fds(),
                "threads": process.num_threads(),
            }
    return found


@dataclass(frozen=True)
class Target:
    """What is loaded, by how many users; `logs`: URLs whose log of sends is forgotten meanwhile."""

    arguments: tuple[str, ...]
    users: int
    words: str
    logs: tuple[str, ...] = ()  # (): the embedded engine's


@contextlib.contextmanager
def target_of(streams: int) -> Iterator[Target]:
    """The paced server with so many streams; 0: the embedded engine at its true knee."""
    if streams:
        with paced(Pace(), processes=-(-streams // STREAMS_PER_CORE)) as server:
            arguments = (server.url, "--workload", "fixed", "--output-tokens", str(TOKENS))
            words = f"the paced server with {streams:,} streams, {TOKENS} tokens each, one in 20 ms"
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


def read_again(out: Path) -> list[str]:
    """What the folder holds and what a report of it takes: lines, "MISSED" where one is wrong."""
    sent = sum(read_sends(out).values())
    records = sum(len(table) for table in read_run(out).chunks())
    began_s = time.monotonic()
    command = [sys.executable, "-m", "harness", "report", str(out)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - began_s
    # Of all children: the run's own processes are their parent's.
    most_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    lines = {
        f"{sent:,} requests were sent, {records:,} have a record": sent == records,
        f"a report takes {took_s:.0f} s, the run and it {most_mb:.0f} MB in one process at most": (
            took_s <= REPORT_S and most_mb <= REPORT_MB
        ),
    }
    return [line if is_right else f"MISSED: {line}" for line, is_right in lines.items()]


def soak(
    minutes: float, every_s: float, target: Target, out: Path
) -> dict[tuple[str, str], Points]:
    """Run, look, and take the loop lags from the run folder."""
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
            for kind, figures in look(root, kinds).items():
                for figure, value in figures.items():
                    points.setdefault((kind, figure), []).append((time.time() - began, value))
        if process.returncode:
            sys.exit(f"the run ended with exit code {process.returncode}: see above.")
    for line in client.read_text().splitlines():
        sample = json.loads(line)
        at_s = sample["at_ns"] / SECOND - began
        # a decoder waits for its pipe and has no loop
        if not sample["process"].startswith("decoder") and 0 <= at_s <= minutes * 60:
            kind = sample["process"].split(" ")[0]
            points.setdefault((kind, "loop lag, ms"), []).append((at_s, sample["loop_lag_ms"]))
    return points


def page(
    minutes: float, words: str, found: list[Slope], result: dict[str, Any], again: list[str]
) -> str:
    """Markdown."""
    machine = hardware()
    level = result["levels"][0]
    rows = [
        f"""# Soak

`make soak MINUTES={minutes:g}`: {words}.
{level["ttft_ms"]["n"]:,} requests, {level["ttft_ms"]["n_failed"]} of them failed.
{machine["usable_cores"]} usable cores ({machine["cpu"]}), which other work shared: of the loop lag
only the growth counts here, not its height.

Growth in an hour is the slope of a line through the medians of ten blocks, after half of the time
as warm-up; in brackets its 95% interval. Flat: the whole interval is below the limit. Two things
grow in main. It keeps each request of a level until that ends, because statistics are made of them,
in about {REQUEST_BYTES} bytes (`REQUEST_BYTES`): that is part of its limit. And it keeps the last
900 scrapes, 2 kB each, which ends after 15 minutes: with less than `MINUTES=30` it is not over.
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
    rows += ["", *(f"- {line}" for line in again)]
    return "\n".join(rows) + "\n"


def main() -> int:
    """The command line; 0 when all is flat."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two looks")
    parser.add_argument("--streams", type=int, default=0, help="on the paced server; 0: see above")
    parser.add_argument("--page", type=Path, default=RESULTS / "soak.md")
    asked = parser.parse_args()
    with target_of(asked.streams) as target, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        points = soak(asked.minutes, asked.every, target, out)
        result = json.loads((out / names.RESULT).read_text())
        again = read_again(out)
    hourly = result["levels"][0]["ttft_ms"]["n"] / asked.minutes * 60
    found = [slope(*key, points[key], limit_of(*key, hourly)) for key in sorted(points)]
    text = page(asked.minutes, target.words, found, result, again)
    asked.page.write_text(text)
    rounded = {
        f"{kind}: {figure}": [[round(at, 1), round(value, 2)] for at, value in points[kind, figure]]
        for kind, figure in sorted(points)
    }
    kept = {
        "minutes": asked.minutes,
        "users": target.users,
        "requests_per_hour": round(hourly),
        "slopes": [asdict(one) | {"verdict": one.verdict} for one in found],
        "points": rounded,
    }
    asked.page.with_suffix(".json").write_text(json.dumps(kept) + "\n")
    print(text)
    is_missed = any(line.startswith("MISSED") for line in again)
    return int(is_missed or any(one.verdict != "flat" for one in found))


if __name__ == "__main__":
    sys.exit(main())
