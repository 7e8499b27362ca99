"""How many streams each client times right, and at what cost: 64 to 10,000, on a quiet machine.

    python bench/streams.py --seconds 570      # again, until it says that all is measured

Each call measures what is not in results/streams.json yet, a client and a level at a time, until
the seconds are over, and writes the page and the picture anew: so a visit of several short calls is
one measurement. It begins with ours and the C client at all levels, then TLS, then the rivals. A
client whose p50 TTFT was further than 5% from what was sent is not run higher. On another commit or
machine it begins anew; `--anew` does so, too. `--draw` makes page and picture of what other
machines measured: of streams.json, and of streams-2.json and so on beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import rivals
import streams_page
from matrix import measure
from servers import build
from tables import RESULTS, line, machine
from visits import OURS, STREAMS, Kept, files_of, key_of, plan, read, write

from harness.charts.embed import picture
from harness.core.extras import has_extra

if TYPE_CHECKING:
    from accuracy import Row
    from cells import Cell

MISSED: Final = 0.05  # of the p50 TTFT that was sent: a client so far off is not run higher
MOST_S: Final = 90.0  # that a cell takes with its start and its report, about: 20 s for ours
PAGE: Final = RESULTS / "streams.md"


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
    try:
        row = measure(cell, client)
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        kept.why[key] = f"its programs cannot be built here ({error})"
        print(f"{key}: {kept.why[key]}", flush=True)
        return
    row.notes += figures(cell, row)
    kept.rows[key] = row
    print(f"{cell.name}\n{line(row)}", flush=True)


def figures(cell: Cell, row: Row) -> list[str]:
    """What the issue of many streams asks of ours besides: the master's cores, memory a stream."""
    if row.client != OURS:
        return []
    cores = row.cpu_us.get("master", 0.0) * row.tokens_per_s / 1e6
    each_kb = streams_page.memory_kb(row, cell.streams) or 0.0
    return [f"master {cores:.2f} cores", f"{each_kb:.0f} kB a stream"]


def load(here: dict[str, Any], file: Path) -> Kept:
    """What an earlier call of this visit kept."""
    if not file.exists():
        return Kept(here)
    kept = read(file)
    # Once this page is written, git calls the same commit dirty.
    if _clean(kept.machine) != _clean(here):
        return Kept(here)
    return Kept(here, kept.rows, kept.why)


def _clean(known: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(known)) | {"commit": known["commit"].removesuffix("-dirty")}


def draw(page: Path, most: int) -> None:
    """The page and the picture, of all visits whose files lie beside it."""
    visits = [read(file) for file in files_of(page)]
    image = page.with_suffix(".svg")
    page.write_text(streams_page.page(visits, most, image.name))
    if any(kept.rows for kept in visits) and has_extra("charts"):
        image.write_text(picture(streams_page.chart(visits)))


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
        draw(asked.page, asked.most)
        return
    here = machine() | {"clients": rivals.versions()}
    kept = Kept(here) if asked.anew else load(here, file)
    for program in ("c_client", "paced_server"):
        build(program)
    left = [
        (cell, client)
        for cell, client in plan(asked.most)
        if key_of(cell, client) not in {**kept.rows, **kept.why}
    ]
    while left and time.monotonic() - began_s < asked.seconds - MOST_S:
        measure_next(kept, *left.pop(0))
        write(kept, file)
        draw(asked.page, asked.most)
    print("All is measured." if not left else f"{len(left)} are left: call it again.")


if __name__ == "__main__":
    main()
