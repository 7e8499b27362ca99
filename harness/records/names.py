"""The names of a run folder's files.

run.json                  written first: configuration, versions, server, hardware, clock, seeds
records.<worker>.msgpack  append-only, one frame per ended request
sends.<worker>.txt        how many requests the worker had begun: a journal of one line
records.<worker>.<run>.msgpack sends.<worker>.<run>.txt   what a worker on another host kept of them
scenario.toml             the options that repeat the run, for --scenario
drill.toml events.jsonl   of a drill: its file, and what happened when
replicas.jsonl            the same for what some replicas answered while others did not
levels.jsonl server.jsonl gpu.jsonl   append-only, a JSON object per line
client.jsonl host.jsonl   the same of the load processes and of their machine
ended.json                how the run ended, and the client's own health
proof.json                of `knee --prove`: what turning knobs did to the knee
requests.parquet result.json levels.parquet levels.csv report.html report.md   written at the end
vllm-bench-*.json benchmark_report_v0.2,_*.yaml   of `report --format`, one for each level
concurrency_sweep.csv batching.json batching_benchmark.md   of a sweep, of its batches
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

RUN: Final = "run.json"
LEVELS: Final = "levels.jsonl"
SERVER: Final = "server.jsonl"
REPLICAS: Final = "replicas.jsonl"
CLIENT: Final = "client.jsonl"
HOST: Final = "host.jsonl"
GPU: Final = "gpu.jsonl"
ENDED: Final = "ended.json"
RESULT: Final = "result.json"
SCENARIO: Final = "scenario.toml"
DRILL: Final = "drill.toml"
EVENTS: Final = "events.jsonl"
PARQUET: Final = "requests.parquet"
LEVELS_CSV: Final = "levels.csv"
LEVELS_PARQUET: Final = "levels.parquet"
PROOF: Final = "proof.json"
SWEEP_CSV: Final = "concurrency_sweep.csv"
BATCHING: Final = "batching.json"
BATCHING_MD: Final = "batching_benchmark.md"
REPORT_HTML: Final = "report.html"
REPORT_MD: Final = "report.md"
WORKER_FOLDER: Final = "reports/workers"  # where a worker on another host keeps what it records

# What levels.jsonl was called up to version 0.1: folders of that time are still read.
_OLD_LEVELS: Final = "steps.jsonl"
_OF_WORKERS = re.compile(r"(records|sends)\.(\d+)(\.\w+)?\.(msgpack|txt)")


def records(worker: int, run: str = "") -> str:
    """Return the name of a worker's record file; with `run`, of what it keeps on its own host."""
    return f"records.{worker}{run and '.'}{run}.msgpack"


def sends(worker: int, run: str = "") -> str:
    """The same of the journal of its sends."""
    return f"sends.{worker}{run and '.'}{run}.txt"


def levels_file(folder: Path) -> str:
    """The name of the file of levels, under which an older version may have written it."""
    old = (folder / _OLD_LEVELS).exists() and not (folder / LEVELS).exists()
    return _OLD_LEVELS if old else LEVELS


def record_files(folder: Path) -> list[Path]:
    """Return the existing record files, ordered by worker."""
    return [path for *_, path in _of_workers(folder, "records")]


def send_files(folder: Path) -> list[tuple[int, Path]]:
    """Return the existing journals and whose they are."""
    return [(worker, path) for worker, _, path in _of_workers(folder, "sends")]


def _of_workers(folder: Path, kind: str) -> list[tuple[int, bool, Path]]:
    """(worker, whether the master wrote it, path) of each file of a kind, in order.

    What a worker kept itself comes first: it may have the end of a request that the master had to
    write as cancelled.
    """
    files = []
    for path in folder.iterdir():
        name = _OF_WORKERS.fullmatch(path.name)
        if name and name[1] == kind:
            worker = int(name[2])
            run = name[3]  # in the name of what a worker kept
            files.append((worker, not run, path))
    return sorted(files)
