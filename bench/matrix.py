"""Accuracy and cost of the harness beside others, in one run: `make bench`, `make bench-quick`.

    python bench/matrix.py [--quick | --memory | --cell '{"streams": 4}'] [--only TEXT] [--out FILE]

For each cell a server that knows what it sent, then each client as its users run it; the C client
first, because what it cannot keep up with measures nothing. Results go to bench/results/, as a page
and as JSON, which git ignores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import rivals
from accuracy import BUSY, Row, row_of
from cells import CELLS, MEMORY, QUICK, Cell
from servers import build, engine, paced
from tables import RESULTS, keep, line, machine_line
from watch import busy_s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from servers import Server

CALM_S, CALM_TRIES = 0.5, 10
KEPT_UP = 0.9  # of the tokens that were asked for: below, the cell is beyond a client


@contextlib.contextmanager
def serving(cell: Cell) -> Iterator[Server]:
    """The cell's server. Raises CalledProcessError when it cannot be built here."""
    if cell.server == "engine":
        with engine(cell.pace) as server:
            yield server
    elif cell.server == "tls":
        with tempfile.TemporaryDirectory() as folder:
            certificate = Path(folder) / "certificate.pem"
            command = [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",  # an RSA signature takes so long that a server of many streams is late
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-keyout",
                certificate,
                "-out",
                Path(folder) / "public.pem",
                "-days",
                "2",
                "-subj",
                "/CN=127.0.0.1",
            ]
            subprocess.run(command, check=True, capture_output=True)
            with certificate.open("a") as file:
                file.write((Path(folder) / "public.pem").read_text())
            with paced(cell.pace, certificate, cell.load.processes) as server:
                yield server
    else:
        with paced(cell.pace, processes=cell.load.processes) as server:
            yield server


def measure(cell: Cell, client: str) -> Row:
    """One client in one cell, on a server of its own."""
    wait_for_calm()
    with serving(cell) as server, tempfile.TemporaryDirectory() as folder:
        read = rivals.CLIENTS[client](server, cell.load, Path(folder))
        return row_of(client, read, server.sent(cell.tokens), cell.streams)


def wait_for_calm() -> None:
    """Let others finish, for some seconds at most: what remains is shown in the table."""
    for _ in range(CALM_TRIES):
        before = busy_s()
        time.sleep(CALM_S)
        if busy_s() - before < BUSY * CALM_S:
            return


def run_cell(cell: Cell) -> tuple[list[Row], str]:
    """Its rows, and what there is to say about it."""
    rows: list[Row] = []
    notes: list[str] = []
    for client in cell.clients:
        if why := rivals.missing(client):
            notes.append(f"{client}: {why}.")
            continue
        try:
            row = measure(cell, client)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            notes.append(f"{client}: its server cannot be built here ({error}).")
            continue
        if rows and rows[0].client == "C client":
            row.ratio = row.cost_us / rows[0].cost_us
        rows.append(row)
        print(line(row), flush=True)
        if client == "C client" and row.tokens_per_s < KEPT_UP * cell.asked_per_s:
            notes.append(
                f"Beyond the C client's own ceiling on this machine: {row.tokens_per_s:,.0f} of "
                f"{cell.asked_per_s:,.0f} tokens/s."
            )
            break
    note = " ".join(notes)
    if note:
        print(f"  {note}", flush=True)
    return rows, note


def memory() -> list[str]:
    """What recorded tokens cost, a line for each load: `python bench/matrix.py --memory`."""
    out = []
    for cell in MEMORY:
        row = measure(cell, "vllm-harness")
        own = {kind: mb for kind, mb in row.memory_mb.items() if kind not in ("server", "bench")}
        during = sum(most - idle for idle, most, _ in own.values())
        whole = sum(most - idle for idle, _, most in own.values())
        each = "; ".join(f"{kind} {' '.join(f'{x:.0f}' for x in mb)}" for kind, mb in own.items())
        out.append(
            f"- {row.tokens:,} tokens on {cell.streams} streams: {during:.0f} MB over idle while "
            f"recording, {whole:.0f} MB with results and report. Idle, recording, all: {each}. "
            + " ".join(row.notes)
        )
        print(out[-1], flush=True)
    return out


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="about three minutes")
    parser.add_argument("--memory", action="store_true", help="only that, about six minutes")
    parser.add_argument("--cell", type=json.loads, help="one cell, its fields as JSON")
    parser.add_argument("--only", default="", help="cells whose names hold this text")
    parser.add_argument("--out", type=Path, help="a page for the results; whole runs have theirs")
    asked = parser.parse_args()
    if asked.cell is not None:
        chosen = (
            Cell(**{**asked.cell, "clients": tuple(asked.cell.get("clients", rivals.CLIENTS))}),
        )
    else:
        chosen = QUICK if asked.quick else CELLS
    print(machine_line(), flush=True)
    for program in ("c_client", "paced_server"):
        build(program)
    if asked.memory:
        memory()
        return
    whole = not (asked.quick or asked.cell or asked.only)
    page = asked.out
    if page is None and (whole or asked.quick):
        page = RESULTS / ("matrix.md" if whole else "quick.md")
    results = []
    for cell in (cell for cell in chosen if asked.only in cell.name):
        print(f"\n{cell.name}", flush=True)
        results.append((cell, *run_cell(cell)))
        if page is not None:  # after each: an interrupted run keeps what it has
            keep(page, results, [])
    if whole:
        keep(page, results, memory())
    if page is not None:
        print(f"\nKept: {page.name} and {page.with_suffix('.json').name}")


if __name__ == "__main__":
    main()
