"""How many streams each client times right, and at what cost: 64 to 10,000, on a quiet machine.

    python bench/streams.py --seconds 570      # again, until it says that all is measured

Each call measures what is not in results/streams.json yet, a client and a level at a time, until
the seconds are over, and writes the page and the picture anew: so a visit of several short calls is
one measurement. It begins with ours and the C client at all levels, then TLS, then the rivals. A
client whose p50 TTFT was further than 5% from what was sent is not run higher. On another commit or
machine it begins anew; `--anew` does so, too. `--draw` makes page and picture of what another
machine measured.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rivals
from accuracy import Latency, Row
from cells import Cell
from matrix import measure
from servers import build
from tables import RESULTS, line, machine, markdown

from harness.charts.definition import Axis, Chart, Color, Panel, Point, Scale, Series
from harness.charts.embed import picture
from harness.core.extras import has_extra

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAMS: Final = (64, 1_024, 4_096, 10_000)
MISSED: Final = 0.05  # of the p50 TTFT that was sent: a client so far off is not run higher
SECONDS: Final = 8.0  # of load in a cell
MOST_S: Final = 60.0  # that a cell takes with its start and its report, about: 20 s for ours
PAGE: Final = RESULTS / "streams.md"
COLORS: Final = (Color.muted, Color.blue, Color.gold, Color.green, Color.red, Color.ink)


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
    ours = ("C client", "vllm-harness")
    others = tuple(name for name in rivals.CLIENTS if name not in ours)
    return [
        *cells("paced", ours, most),
        *cells("tls", ("vllm-harness",), most),
        *cells("paced", others, most),
    ]


def is_off(row: Row) -> bool:
    """Whether it read a p50 TTFT that is further from what was sent than MISSED."""
    if not row.ttft.read or not row.ttft.sent:
        return False
    low, high = row.ttft.sent[0]
    read = row.ttft.read[0]
    return max(low - read, read - high) > MISSED * low


def why_not(kept: Kept, cell: Cell, client: str) -> str:
    """Why it is not run; "" if it is."""
    if reason := rivals.missing(client):
        return reason
    for lower, same in plan(cell.streams - 1):
        row = kept.rows.get(key_of(lower, same))
        if same == client and lower.server == cell.server and row is not None and is_off(row):
            return f"not run: its TTFT was off by more than {MISSED:.0%} at {lower.streams} streams"
    return ""


def measure_next(kept: Kept, cell: Cell, client: str) -> None:
    """One client at one level, or why not."""
    key = key_of(cell, client)
    if reason := why_not(kept, cell, client):
        kept.why[key] = reason
        print(f"{key}: {reason}", flush=True)
        return
    row = measure(cell, client)
    row.notes += figures(cell, row)
    kept.rows[key] = row
    print(f"{cell.name}\n{line(row)}", flush=True)


def figures(cell: Cell, row: Row) -> list[str]:
    """What the issue of many streams asks of ours besides: the master's cores, memory a stream."""
    if row.client != "vllm-harness":
        return []
    cores = row.cpu_us.get("master", 0.0) * row.tokens_per_s / 1e6
    own = [mb for kind, mb in row.memory_mb.items() if kind not in ("server", "bench")]
    each_kb = sum(most - idle for idle, most, _ in own) / cell.streams * 1e3
    return [f"master {cores:.2f} cores", f"{each_kb:.0f} kB a stream"]


def load(here: dict[str, Any], file: Path) -> Kept:
    """What an earlier call of this visit kept."""
    if not file.exists():
        return Kept(here)
    data = json.loads(file.read_text())
    # Once this page is written, git calls the same commit dirty.
    if _clean(data["machine"]) != _clean(here):
        return Kept(here)
    rows = {key: row_of(row) for key, row in data["rows"].items()}
    return Kept(here, rows, data["why"])


def _clean(known: dict[str, Any]) -> dict[str, Any]:
    return known | {"commit": known["commit"].removesuffix("-dirty")}


def row_of(data: dict[str, Any]) -> Row:
    """As `keep` wrote it."""
    latencies = {name: Latency(**data.pop(name)) for name in ("ttft", "itl")}
    return Row(**data, **latencies)


def keep(kept: Kept, most: int, page: Path) -> None:
    """The page, the picture and what the next call reads."""
    rows = {key: asdict(row) for key, row in kept.rows.items()}
    data = {"machine": kept.machine, "rows": rows, "why": kept.why}
    page.with_suffix(".json").write_text(json.dumps(data) + "\n")
    found: dict[str, tuple[Cell, list[Row], list[str]]] = {}
    for cell, client in plan(most):
        _, there, notes = found.setdefault(cell.name, (cell, [], []))
        key = key_of(cell, client)
        if key in kept.rows:
            row = kept.rows[key]
            there.append(row)
            if there[0].client == "C client":
                row.ratio = row.cost_us / there[0].cost_us
        if key in kept.why:
            notes.append(f"{client}: {kept.why[key]}.")
    results = [
        (cell, there, " ".join(notes)) for cell, there, notes in found.values() if there or notes
    ]
    page.write_text(markdown(results, [], kept.machine) + f"\n![Cost and error]({page.stem}.svg)\n")
    if kept.rows and has_extra("charts"):
        page.with_suffix(".svg").write_text(picture(chart(kept)))


def chart(kept: Kept) -> Chart:
    """CPU per token, and how far the p95 TTFT is off, over the streams, by client."""
    cost: dict[str, list[Point]] = {}
    error: dict[str, list[Point]] = {}
    for cell, client in plan(STREAMS[-1]):
        row = kept.rows.get(key_of(cell, client))
        if row is None:
            continue
        name = f"{client}, TLS" if cell.server == "tls" else client
        cost.setdefault(name, []).append(Point(cell.streams, row.cost_us))
        if row.ttft.read and row.ttft.sent:
            low, high = row.ttft.sent[1]
            off = abs(row.ttft.read[1] - (low + high) / 2) / low
            error.setdefault(name, []).append(Point(cell.streams, 100 * off))
    names = list(cost)
    colors = {name: COLORS[i % len(COLORS)] for i, name in enumerate(names)}
    return Chart(
        "streams",
        "Cost and error by streams",
        [
            Panel(_series(cost, colors), Axis(scale=Scale.log), "CPU per token, us"),
            Panel(_series(error, colors), title="p95 TTFT read, off what was sent, %"),
        ],
        Axis("streams", scale=Scale.log),
    )


def _series(points: dict[str, list[Point]], colors: dict[str, Color]) -> list[Series]:
    return [Series(name, colors[name], own, dots=True) for name, own in points.items()]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after that")
    parser.add_argument("--most", type=int, default=STREAMS[-1], help="no more streams")
    parser.add_argument("--anew", action="store_true", help="forget what was measured")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args()
    began_s = time.monotonic()
    file = asked.page.with_suffix(".json")
    if asked.draw:
        keep(load(json.loads(file.read_text())["machine"], file), asked.most, asked.page)
        return
    kept = Kept(machine()) if asked.anew else load(machine(), file)
    for program in ("c_client", "paced_server"):
        build(program)
    left = [
        (cell, client)
        for cell, client in plan(asked.most)
        if key_of(cell, client) not in {**kept.rows, **kept.why}
    ]
    while left and time.monotonic() - began_s < asked.seconds - MOST_S:
        measure_next(kept, *left.pop(0))
        keep(kept, asked.most, asked.page)
    print("All is measured." if not left else f"{len(left)} are left: call it again.")


if __name__ == "__main__":
    main()
