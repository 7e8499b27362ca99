"""TTFT request by request, where the server sent traces: quantiles of each part, step by step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.report.say import say
from harness.report.waterfall import COLUMNS

if TYPE_CHECKING:
    from harness.report.facts import Facts


def traced_rows(facts: Facts) -> list[dict[str, str]]:
    """Median and p95 in ms of the requests that have a trace; [] where none has."""
    rows = []
    for step in facts.used:
        told = step.ttft_traced
        if told is None:
            continue
        row = {"#": str(step.index + 1), "Users": f"{step.users:,}"}
        row["Traced"] = f"{told.n:,} of {told.sent:,}"
        for key, name in COLUMNS.items():
            middle, high = (say(getattr(told, f"{key}_{q}_ms")) for q in ("p50", "p95"))
            row[name] = f"{middle} / {high}"
        rows.append(row)
    return rows
