"""The duel as a table: how often a search is right, what it costs, and whether the aim is met."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Summary = dict[str, Any]

WORDS: Final = Path(__file__).with_name("duel_words.md")
CLOSE: Final = 0.05  # of the true knee, or one user
RIGHT: Final = 0.95  # of the engines: ours
WIDTH: Final = 0.05  # of the true knee: the median interval of ours
OTHERS_RIGHT: Final = 0.90  # of the engines: another search whose cost counts
OF_OTHERS: Final = 0.5  # of the load of the cheapest such
OF_BEFORE: Final = 0.6  # of the load that ours took at the baseline


@dataclass(frozen=True, slots=True)
class Row:
    """One search on one engine."""

    users: int | None
    lo: int | None
    hi: int | None
    conclusive: bool
    seconds: float
    requests: int
    levels: int


def summary(rows: Mapping[int, Row], truths: Mapping[int, int]) -> Summary:
    """One line of the table; shares of the engines, widths of the true knee."""
    n = len(rows)
    right = covers = 0
    widths = []
    for seed, row in rows.items():
        true = truths[seed]
        right += row.users is not None and abs(row.users - true) <= max(1, CLOSE * true)
        if row.lo is not None and row.hi is not None:
            covers += row.lo <= true <= row.hi
            widths.append(max(row.hi - row.lo, 0) / true)
    seconds, requests = (
        np.quantile([getattr(row, name) for row in rows.values()], [0.5, 0.9]).round(1).tolist()
        for name in ("seconds", "requests")
    )
    return {
        "engines": n,
        "right": round(right / n, 4),
        "covers": round(covers / n, 4) if widths else None,
        "width": round(median(widths), 4) if widths else None,
        "seconds": seconds,
        "requests": requests,
        "inconclusive": round(sum(not row.conclusive for row in rows.values()) / n, 4),
    }


def aim(
    table: Mapping[str, Summary], ours: str, before_s: Sequence[float]
) -> list[tuple[str, bool]]:
    """Each part of the aim, with what was found, and whether it is met."""
    mine = table[ours]
    load_s, past_s = mine["seconds"][0], median(before_s)
    right = {
        name: line["seconds"][0]
        for name, line in table.items()
        if name != ours and line["right"] >= OTHERS_RIGHT
    }
    cheapest = min(right, key=right.__getitem__, default="")
    among = f"{cheapest}: {right[cheapest]:.0f} s" if cheapest else "none is right so often"
    half = f"at most half the load of the cheapest other that is right in {OTHERS_RIGHT:.0%}"
    before = f"{OF_BEFORE:.0%} of the load that it took at the baseline"
    return [
        (f"within 5% or one user in {RIGHT:.0%}: {mine['right']:.1%}", mine["right"] >= RIGHT),
        (f"the interval covers in {RIGHT:.0%}: {mine['covers']:.1%}", mine["covers"] >= RIGHT),
        (f"its median width is {WIDTH:.0%}: {mine['width']:.1%}", mine["width"] <= WIDTH),
        (
            f"{half}: {load_s:.0f} s ({among})",
            not cheapest or load_s <= OF_OTHERS * right[cheapest],
        ),
        (
            f"{before}: {load_s:.0f} s of {past_s:.0f} s, {load_s / past_s:.0%}",
            load_s <= OF_BEFORE * past_s,
        ),
    ]


def page(table: Mapping[str, Summary], aims: Sequence[tuple[str, bool]]) -> str:
    """results/duel.md: the table, the aim, and the words that go with them."""
    engines = max(line["engines"] for line in table.values())
    lines = [
        "# Searches for the knee, compared",
        "",
        (
            f"`make statistics docs`, {engines} simulated engines. Seconds and requests: median, "
            "90th percentile."
        ),
        "",
        (
            "| Search | Within 5% or one user | Interval covers | Its width, median | "
            "Seconds of load | Requests | Inconclusive |"
        ),
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, line in table.items():
        covers, width = (
            "" if line[key] is None else f"{line[key]:.1%}" for key in ("covers", "width")
        )
        seconds, requests = (
            ", ".join(f"{value:,.0f}" for value in line[key]) for key in ("seconds", "requests")
        )
        lines.append(
            f"| {name} | {line['right']:.1%} | {covers} | {width} | {seconds} | {requests} | "
            f"{line['inconclusive']:.1%} |"
        )
    lines += ["", "## The aim", ""]
    lines += [f"- {'met' if met else '**not met**'}: {what}" for what, met in aims]
    return "\n".join([*lines, "", WORDS.read_text()])
