"""How the readings of a window become one of its figures: each field of ServerFigures says it.

`by(MEAN)` at `running_mean`: the mean of `running`, a field of ServerSample. Where a field is not
called after what it is made of, that is named: `by(RATE, "requests_total")`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import nan
from typing import Any, Final

ROW: Final = "server_summary"  # its key in a field's metadata

# The first five are what names of fields end in.
MEAN: Final = "mean"  # of a gauge
MAX: Final = "max"
MIN: Final = "min"
OBSERVED: Final = "mean_s"  # the mean of a histogram's observations
P95_BUCKET: Final = "p95_s"  # the bucket of a histogram that holds the p95; None: not known
INCREASE: Final = "increase"  # of a counter
RATE: Final = "rate"  # the increase per second
ESTIMATED_RATE: Final = "estimated rate"  # of counters that stay 0 where vLLM does not estimate
SHARE: Final = "share"  # one counter's increase over another's
AND_ONE: Final = "and one"  # that, and one


@dataclass(frozen=True, slots=True)
class Summary:
    """What a figure is computed from, and how: one of the above."""

    how: str
    keys: tuple[str, ...]  # of ServerSample, or of its histograms; (): what the field's name begins
    column: str = ""  # its head in the report's table of levels; "": no column
    column_unit: float = 1.0  # in which the column has it


def by(how: str, *keys: str, column: str = "", column_unit: float = 1.0) -> Any:
    """A field that follows from the readings; unknown until it is computed.

    Reports have the column where a level has a figure above 0: not all servers report it.
    """
    default = None if how == P95_BUCKET else nan
    summary = Summary(how, keys, column, column_unit)
    return field(default=default, metadata={ROW: summary})


def summaries(figures: Any) -> dict[str, Summary]:
    """Each field of a class that is declared with `by`, with the keys filled in."""
    rows = {}
    for one in fields(figures):
        row = one.metadata.get(ROW)
        if row is not None:
            keys = row.keys or (one.name.removesuffix(f"_{row.how}"),)
            rows[one.name] = replace(row, keys=keys)
    return rows
