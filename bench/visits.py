"""What is measured of many streams, in which order, and what was kept of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import rivals
from accuracy import Latency, Row
from cells import Cell

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STREAMS: Final = (64, 1_024, 4_096, 10_000)
SECONDS: Final = 8.0  # of load in a cell
OURS: Final = "vllm-harness"
FLOOR: Final = "C client"
IN_TLS: Final = (FLOOR, OURS, "vllm-rs bench")


@dataclass
class Kept:
    """What was measured, by cell and client; `why` for what was not."""

    machine: dict[str, Any]
    rows: dict[str, Row] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)


def key_of(cell: Cell, client: str) -> str:
    """In the file."""
    return f"{cell.name}: {client}"


def cells(server: str, clients: tuple[str, ...], most: int) -> Iterator[tuple[Cell, str]]:
    """Client by client, from few streams to many."""
    for client in clients:
        for streams in STREAMS:
            if streams <= most:
                yield Cell(streams, server=server, clients=clients, seconds=SECONDS), client


def plan(most: int) -> list[tuple[Cell, str]]:
    """All that is measured, in order."""
    ours = (FLOOR, OURS)
    others = tuple(name for name in rivals.CLIENTS if name not in ours)
    return [
        *cells("paced", ours, most),
        *cells("tls", IN_TLS, most),
        *cells("paced", others, most),
    ]


def read(file: Path) -> Kept:
    """What a visit kept, as `write` wrote it; earlier ones lack some fields."""
    data = json.loads(file.read_text())
    rows = {key: row_of(row) for key, row in data["rows"].items()}
    return Kept(data["machine"], rows, data["why"])


def row_of(data: dict[str, Any]) -> Row:
    """One row of the file."""
    latencies = ("ttft", "itl", "later_ttft")
    found = {name: Latency(**data[name]) for name in latencies if name in data}
    return Row(**data | found)


def write(kept: Kept, file: Path) -> None:
    """For the next call, and for the page, which a visit beside this one may draw meanwhile."""
    rows = {key: asdict(row) for key, row in kept.rows.items()}
    data = {"machine": kept.machine, "rows": rows, "why": kept.why}
    whole = file.with_suffix(".writing")
    whole.write_text(json.dumps(data) + "\n")
    whole.replace(file)


def files_of(page: Path) -> list[Path]:
    """Of a page: `streams.json`, and `streams-2.json` and so on of other visits."""
    others = page.parent.glob(f"{page.stem}-[0-9]*.json")
    files = [page.with_suffix(".json"), *sorted(others)]
    return [file for file in files if file.exists()]
