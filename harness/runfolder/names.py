"""The names of a run folder's files.

run.json                  written first: configuration, versions, server, hardware, clock, seeds
records.<worker>.msgpack  append-only, one frame per ended request
scenario.toml             the options that repeat the run, for --scenario
levels.jsonl server.jsonl client.jsonl gpu.jsonl traces.jsonl   append-only, a JSON object per line
ended.json                how the run ended, and the client's own health
proof.json                of `knee --prove`: what turning knobs did to the knee
requests.parquet result.json levels.csv report.html report.md   written at the end
concurrency_sweep.csv batching.json batching_benchmark.md   of a sweep, of its batches
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RUN: Final = "run.json"
LEVELS: Final = "levels.jsonl"
SERVER: Final = "server.jsonl"
CLIENT: Final = "client.jsonl"
GPU: Final = "gpu.jsonl"
TRACES: Final = "traces.jsonl"
ENDED: Final = "ended.json"
RESULT: Final = "result.json"
SCENARIO: Final = "scenario.toml"
PARQUET: Final = "requests.parquet"
LEVELS_CSV: Final = "levels.csv"
PROOF: Final = "proof.json"
SWEEP_CSV: Final = "concurrency_sweep.csv"
BATCHING: Final = "batching.json"
BATCHING_MD: Final = "batching_benchmark.md"
REPORT_HTML: Final = "report.html"
REPORT_MD: Final = "report.md"

# What levels.jsonl was called up to version 0.1: folders of that time are still read.
_OLD_LEVELS: Final = "steps.jsonl"
_RECORDS = re.compile(r"records\.(\d+)\.msgpack")


def records(worker: int) -> str:
    """Return the name of a worker's record file."""
    return f"records.{worker}.msgpack"


def levels_file(folder: Path) -> str:
    """The name of the file of levels, under which an older version may have written it."""
    old = (folder / _OLD_LEVELS).exists() and not (folder / LEVELS).exists()
    return _OLD_LEVELS if old else LEVELS


def record_files(folder: Path) -> list[Path]:
    """Return the existing record files, ordered by worker."""
    found = ((_RECORDS.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]
