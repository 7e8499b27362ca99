"""The duel as tables: how often a search is right, what it costs, and whether the aim is met."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

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


@dataclass(frozen=True, slots=True)
class ContinuousRow(Row):
    """A search in one load, which can say something before its end."""

    first_promise: int | None  # users, as it would have said if it had been stopped then
    first_promise_s: float | None


def is_right(row: Row, true: int) -> bool:
    """Within 5% or one user of the true knee; no answer is a miss."""
    return row.users is not None and abs(row.users - true) <= max(1, CLOSE * true)


def promise(row: Row) -> int | None:
    """The users that a search says do hold; None where it says that nothing is conclusive."""
    if not row.conclusive:
        return None
    return row.users if row.lo is None else row.lo


def summary(rows: Mapping[int, Row], truths: Mapping[int, int]) -> Summary:
    """One line of the table; shares of the engines, widths of the true knee."""
    n = len(rows)
    right = covers = 0
    widths = []
    for seed, row in rows.items():
        true = truths[seed]
        right += is_right(row, true)
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


def cheapest_right(table: Mapping[str, Summary], ours: str) -> str:
    """The other search with the least load of those that are right so often; "": none is."""
    load_s = {
        name: line["seconds"][0]
        for name, line in table.items()
        if name != ours and line["right"] >= OTHERS_RIGHT
    }
    return min(load_s, key=load_s.__getitem__, default="")


def aim(
    table: Mapping[str, Summary], ours: str, before_s: Sequence[float]
) -> list[tuple[str, bool]]:
    """Each part of the aim, with what was found, and whether it is met."""
    mine = table[ours]
    load_s, past_s = mine["seconds"][0], median(before_s)
    cheapest = cheapest_right(table, ours)
    other_s = table[cheapest]["seconds"][0] if cheapest else inf
    among = f"{cheapest}: {other_s:.0f} s" if cheapest else "none is right so often"
    half = f"at most half the load of the cheapest other that is right in {OTHERS_RIGHT:.0%}"
    before = f"{OF_BEFORE:.0%} of the load that it took at the baseline"
    return [
        (f"within 5% or one user in {RIGHT:.0%}: {mine['right']:.1%}", mine["right"] >= RIGHT),
        (f"the interval covers in {RIGHT:.0%}: {mine['covers']:.1%}", mine["covers"] >= RIGHT),
        (f"its median width is {WIDTH:.0%}: {mine['width']:.1%}", mine["width"] <= WIDTH),
        (
            f"{half}: {load_s:.0f} s ({among})",
            load_s <= OF_OTHERS * other_s,
        ),
        (
            f"{before}: {load_s:.0f} s of {past_s:.0f} s, {load_s / past_s:.0%}",
            load_s <= OF_BEFORE * past_s,
        ),
    ]


def page(
    table: Mapping[str, Summary], aims: Sequence[tuple[str, bool]], sets: Sequence[Engines]
) -> str:
    """results/duel.md: the table, the aim, the searches in one load, and the words beside them."""
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
    for engines in sets:
        lines += ["", f"## In one load: {engines.name}", "", *in_one_load(engines)]
    return "\n".join([*lines, "", WORDS.read_text()])


class Engines(NamedTuple):
    """A set of engines, and what the searches that are one load found on them."""

    name: str
    rows: Mapping[str, Mapping[int, ContinuousRow]]  # by search and seed
    truths: Mapping[int, int]
    metrics: Mapping[int, str]  # of each engine's SLO


class Promises(NamedTuple):
    """What searches promised, and how often that is true: one line of the table."""

    engines: int
    right: int
    promised: int  # by answers that their search calls conclusive
    kept: int  # the promised users do meet the SLO
    share: float | None  # of the true knee: the median promise
    first: int  # searches that had something to promise, at their end or before it
    first_kept: int
    first_share: float | None
    first_s: list[float]  # until then: median, 90th percentile
    seconds: list[float]  # until the end, the same


def promises(rows: Mapping[int, ContinuousRow], truths: Mapping[int, int]) -> Promises:
    promised = {s: users for s, row in rows.items() if (users := promise(row)) is not None}
    first = {s: row.first_promise for s, row in rows.items() if row.first_promise is not None}
    first_s = [row.first_promise_s for row in rows.values() if row.first_promise_s is not None]
    return Promises(
        engines=len(rows),
        right=sum(is_right(row, truths[seed]) for seed, row in rows.items()),
        promised=len(promised),
        kept=sum(users <= truths[seed] for seed, users in promised.items()),
        share=_median_share(promised, truths),
        first=len(first),
        first_kept=sum(users <= truths[seed] for seed, users in first.items()),
        first_share=_median_share(first, truths),
        first_s=_middle_and_most(first_s),
        seconds=_middle_and_most([row.seconds for row in rows.values()]),
    )


def _median_share(promised: Mapping[int, int], truths: Mapping[int, int]) -> float | None:
    """Of the true knee; None: nothing was promised."""
    if not promised:
        return None
    return median(users / truths[seed] for seed, users in promised.items())


def _middle_and_most(values: Sequence[float]) -> list[float]:
    """The median and the 90th percentile."""
    return [float(value) for value in np.quantile(values, [0.5, 0.9]).round(1)] if values else []


def in_one_load(engines: Engines) -> list[str]:
    """The table: each search on all engines, and on those of each kind of SLO."""
    lines = [
        (
            "| Search | SLO on | Engines | Within 5% or one user | Promise holds | "
            "Of the true knee | First promise holds | Of the true knee | "
            "After, seconds of load | End, seconds of load |"
        ),
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, rows in engines.rows.items():
        for metric in ("", *sorted(set(engines.metrics.values()))):
            chosen = {seed: row for seed, row in rows.items() if metric in engines.metrics[seed]}
            lines.append(_promises_line(name, metric, promises(chosen, engines.truths)))
    return lines


def _promises_line(name: str, metric: str, found: Promises) -> str:
    cells = [
        name,
        metric.upper() or "any",
        str(found.engines),
        f"{found.right / found.engines:.1%}",
        f"{found.kept} of {found.promised}",
        _percent(found.share),
        f"{found.first_kept} of {found.first}",
        _percent(found.first_share),
        _whole(found.first_s),
        _whole(found.seconds),
    ]
    return f"| {' | '.join(cells)} |"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _whole(values: Sequence[float]) -> str:
    return ", ".join(f"{value:,.0f}" for value in values)


def headline(table: Mapping[str, Summary], engines: Engines, ours: str, nearest: str) -> str:
    """The paragraph of docs/how-good.md: figures only, so that it is right whatever they are."""
    mine, other = (promises(engines.rows[name], engines.truths) for name in (ours, nearest))
    cheapest = cheapest_right(table, ours)
    if cheapest:
        line = table[cheapest]
        among = (
            f"the cheapest other that is right in {OTHERS_RIGHT:.0%}, {cheapest}, takes "
            f"{line['seconds'][0]:,.0f} s"
        )
        if line["covers"] is not None:
            among += f", and its bracket covers the truth in {line['covers']:.0%}"
    else:
        among = f"no other is right in {OTHERS_RIGHT:.0%}"
    return (
        '`make statistics NAMES="duel duel_continuous"` runs the searches of aiperf, guidellm and '
        "MLPerf's LoadGen on the same engines: how often each is right, and at what cost "
        f"([lab/results/duel.md](../lab/results/duel.md)). Ours takes {mine.seconds[0]:,.0f} s of "
        f"load (median); {among}. Its nearest rival is aiperf's `adaptive_scale`, which is one "
        f"continuous load, too. With its defaults it {_told(other)}. Ours {_told(mine)} "
        "(medians)."
    )


def _told(found: Promises) -> str:
    """Of one search."""
    told = (
        f"is within 5% or one user in {found.right / found.engines:.1%} of {found.engines} engines "
        f"and ends after {found.seconds[0]:,.0f} s"
    )
    if found.share is not None:
        told += (
            f"; {found.kept} of its {found.promised} promises hold, and they are "
            f"{found.share:.0%} of the true knee"
        )
    if found.first_share is not None:
        told += (
            f"; its first promise comes after {found.first_s[0]:,.0f} s, is "
            f"{found.first_share:.0%} of the true knee and holds in "
            f"{found.first_kept} of {found.first}"
        )
    return told
