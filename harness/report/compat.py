"""Other tools' figures beside ours, as text, Markdown and rows for the page."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.report.facts import mapping
from harness.report.say import UNKNOWN, as_float, count
from harness.report.words import in_markdown

if TYPE_CHECKING:
    from harness.report.facts import Facts

DIGITS: Final = 4  # one more than elsewhere: two tools are compared
WIDTH: Final = 100
COLUMNS: Final = ("In its words", "Ours", "Theirs", "Why they differ")


class Beside(NamedTuple):
    """One tool at one level. Rows are (what, ours, theirs, why)."""

    title: str
    remarks: list[str]
    rows: list[tuple[str, str, str, str]]


def beside(facts: Facts) -> list[Beside]:
    """Of each level held; of a search, of the level that stands for the knee."""
    found = []
    for tool in (facts.result.compat or {}).values():
        levels = [mapping(level) for level in mapping(tool).get("levels") or []]
        here = [level for level in levels if level.get("users") == facts.measured_at]
        if facts.searched and here:
            levels = here
        found += [_level(tool, level) for level in levels]
    return found


def _level(tool: dict[str, Any], level: dict[str, Any]) -> Beside:
    users, n, left = (int(level.get(key) or 0) for key in ("users", "requests", "left_out"))
    remarks = [str(tool.get("note") or "")]
    if left:
        remarks.insert(
            0,
            f"{count(left, 'request')} sent before the level had settled are in neither column; "
            "the tool would count them.",
        )
    if level.get("approximate"):
        remarks.append(f"Approximate: {level['approximate']}.")
    return Beside(
        f"Beside {tool.get('title')} {tool.get('version')}: {count(users, 'user')}, "
        f"{count(n, 'request')}",
        [text for text in remarks if text],
        [_row(row) for row in level.get("rows") or []],
    )


def _row(row: dict[str, Any]) -> tuple[str, str, str, str]:
    what = " ".join(filter(None, [str(row.get("name")), str(row.get("statistic") or "")]))
    ours, theirs = (digits(as_float(row.get(key))) for key in ("ours", "theirs"))
    return f"{what}, {row.get('unit')}", ours, theirs, str(row.get("why") or "no difference")


def digits(value: float) -> str:
    """`383.8`, `48.36`, `1,041`, `inf`."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "inf"
    size = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(DIGITS - 1 - size, 0)}f}"


def as_text(tables: list[Beside]) -> list[str]:
    """Lines for a terminal."""
    lines = []
    for table in tables:
        rows = [("", "ours", "theirs", "why they differ"), *table.rows]
        wide = [max(len(row[i]) for row in rows) for i in range(3)]
        lines += ["", f"{table.title}."]
        lines += [
            f"  {what:<{wide[0]}}  {ours:>{wide[1]}}  {theirs:>{wide[2]}}  {why}".rstrip()
            for what, ours, theirs, why in rows
        ]
        for text in table.remarks:
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def as_markdown(tables: list[Beside]) -> list[str]:
    """Lines of a section for each."""
    lines = []
    for table in tables:
        lines += ["", f"**{in_markdown(table.title)}**", "", f"| {' | '.join(COLUMNS)} |"]
        lines += ["| --- | ---: | ---: | --- |"]
        lines += [f"| {' | '.join(map(in_markdown, row))} |" for row in table.rows]
        lines += ["", *map(in_markdown, table.remarks)]
    return lines
