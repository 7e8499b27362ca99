"""The results as a table: lines while it runs, Markdown and JSON to keep."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from accuracy import BUSY, ITL_MS, TTFT_MS
from servers import HERE

from harness.records.runinfo import hardware, versions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from accuracy import Latency, Range, Row
    from cells import Cell

RESULTS: Final = HERE / "results"
HEADINGS: Final = (
    "client", "tokens/s", "TTFT p50, p95, p99 read/sent, ms", "ITL p50, p95, p99 read/sent, ms",
    "accuracy", "exact", "off", "CPU us/token", "by process", "x C client", "others",
)  # fmt: skip
LEGEND: Final = f"""\
Quantiles: as the client read them / as the server sent them (its clock before and after each send
where they differ by {ITL_MS} ms or more). `!`: further off than 1 % or {TTFT_MS} ms (TTFT), 1 % or
{ITL_MS} ms (ITL); `?`: that too, but within the bounds that the client itself gives beside the
figure. exact: share of events with an exact arrival time; off: events whose interval misses the
clock around the send. CPU: of all processes of the client, while the load lasts (start-up and the
final report are not in it). others: processors kept busy meanwhile by what does not belong to the
benchmark; above {BUSY} the cell was disturbed (`~`).
"""


def pairs(latency: Latency) -> str:
    """`100.15/100.12` for each quantile, with its mark."""
    if not latency.read:
        return " ".join(f"-/{say(want)}" for want in latency.sent)
    columns = zip(latency.read, latency.sent, latency.marks, strict=True)
    return " ".join(f"{got:.2f}/{say(want)}{mark}" for got, want, mark in columns)


def say(sent: Range) -> str:
    """One figure, or two where the server itself does not know better."""
    low, high = sent
    return f"{(low + high) / 2:.2f}" if high - low < ITL_MS else f"{low:.2f}..{high:.2f}"


def columns(row: Row) -> list[str]:
    """One row under HEADINGS."""
    marks = {*row.ttft.marks, *row.itl.marks}
    judged = "MISS" if "!" in marks else "unsure" if "?" in marks else "ok" if marks else "-"
    if row.misses:
        judged += f" ({', '.join(row.misses)})"
    parts = " + ".join(f"{kind} {us:.1f}" for kind, us in row.cpu_us.items())
    return [
        row.client,
        f"{row.tokens_per_s:,.0f}",
        pairs(row.ttft),
        pairs(row.itl),
        "; ".join([judged, *row.notes]),
        "-" if row.exact is None else f"{row.exact:.2%}",
        "-" if row.off is None else f"{row.off}/{row.events}",
        f"{row.cost_us:.1f}",
        parts if len(row.cpu_us) > 1 else "",
        f"{row.ratio:.1f}" if row.ratio else "-",
        f"{row.others:.2f}{'~' if row.others > BUSY else ''}",
    ]


def line(row: Row) -> str:
    """For the terminal."""
    shown = dict(zip(HEADINGS, columns(row), strict=True))
    return (
        f"  {row.client:<16} {shown['tokens/s']:>8}/s  TTFT {shown[HEADINGS[2]]}  "
        f"ITL {shown[HEADINGS[3]]}  {shown['accuracy']}; exact {shown['exact']}, off "
        f"{shown['off']}; CPU {shown['CPU us/token']} us/token [{shown['by process']}] "
        f"x{shown['x C client']}, others {shown['others']}"
    )


def markdown(
    results: list[tuple[Cell, list[Row], str]],
    memory: list[str],
    measured_on: dict[str, Any] | None = None,
) -> str:
    """The whole page; `measured_on`: this machine unless given."""
    out = ["# Accuracy and cost", "", machine_line(measured_on), "", LEGEND]
    out += cell_tables(results)
    if memory:
        out += ["", "## Memory", "", *memory]
    return "\n".join(out) + "\n"


def cell_tables(results: list[tuple[Cell, list[Row], str]], heading: str = "##") -> list[str]:
    """The lines of a table for each cell."""
    out: list[str] = []
    for cell, rows, note in results:
        out += ["", f"{heading} {cell.name}", ""]
        if note:
            out += [note, ""]
        if rows:
            out += table(HEADINGS, [columns(row) for row in rows])
    return out


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def machine() -> dict[str, Any]:
    """What it was measured on: no names of hosts, no paths."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],  # noqa: S607 - the system's
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        **hardware(),
        "python": platform.python_version(),
        "versions": versions(),
        "commit": git.stdout.strip(),
    }


def machine_line(measured_on: dict[str, Any] | None = None) -> str:
    """The same for people; of this machine unless given."""
    m = measured_on or machine()
    memory_gb = int(m["memory"].split()[0]) / 1e6  # of kB, as /proc/meminfo has it
    usable = m["usable_cores"]
    cores = f"{usable} cores" if usable == m["cores"] else f"{usable} of {m['cores']} cores"
    return (
        f"{m['cpu']}, {cores}, {memory_gb:.0f} GB, {m['system']}, Python "
        f"{m['python']}, Locust {m['versions'].get('locust')}, commit {m['commit']}. Client and "
        "server share these cores."
    )


def keep(page: Path, results: list[tuple[Cell, list[Row], str]], memory: list[str]) -> None:
    """Write the page, and the same as JSON beside it."""
    page.parent.mkdir(exist_ok=True)
    body = {
        "machine": machine(),
        "cells": [
            {
                "cell": asdict(cell),
                "name": cell.name,
                "note": note,
                "rows": [
                    asdict(row) | {"cost_us": row.cost_us, "misses": row.misses} for row in rows
                ],
            }
            for cell, rows, note in results
        ],
        "memory": memory,
    }
    page.with_suffix(".json").write_text(json.dumps(body, indent=1) + "\n")
    page.write_text(markdown(results, memory))
