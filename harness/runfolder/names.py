"""What a run folder's files are called, in one place.

run.json                  written first: configuration, versions, server, hardware, clock, seeds
records.<worker>.msgpack  append-only, one frame per ended request
steps.jsonl server.jsonl client.jsonl gpu.jsonl traces.jsonl   append-only, a JSON object per line
ended.json                how the run ended and what the client says of itself
requests.parquet result.json steps.csv report.html report.md   written at the end
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

RUN: Final = "run.json"
STEPS: Final = "steps.jsonl"
SERVER: Final = "server.jsonl"
CLIENT: Final = "client.jsonl"
GPU: Final = "gpu.jsonl"
TRACES: Final = "traces.jsonl"
ENDED: Final = "ended.json"
RESULT: Final = "result.json"
PARQUET: Final = "requests.parquet"
STEPS_CSV: Final = "steps.csv"
REPORT_HTML: Final = "report.html"
REPORT_MD: Final = "report.md"

_RECORDS = re.compile(r"records\.(\d+)\.msgpack")


def records(worker: int) -> str:
    """File of one worker's records."""
    return f"records.{worker}.msgpack"


def record_files(folder: Path) -> list[Path]:
    """The record files that exist, by worker number."""
    found = ((_RECORDS.fullmatch(path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]
