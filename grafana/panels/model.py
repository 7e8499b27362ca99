"""What a dashboard is made of. Plain data: neither Grafana nor Prometheus is needed to read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["graph", "stat", "heatmap", "xy", "states", "table"]
TOKENS_PER_S: Final = "count:tok/s"  # Grafana's word: 1.2K tok/s
Style = Literal["line", "limit", "users"]  # limit: dashed and red; users: steps on the right axis


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression; `legend` may hold `{{label}}`."""

    legend: str
    expr: str
    style: Style = "line"
    unit: str = ""  # of a table's column


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture. `shows`, `read` and `do` are what its description says, a sentence or two each.

    Of kind xy the first query is x; of kind table each query is a column, each `instance` a row. A
    value that is no number is shown as *No traffic*. `unit` is Grafana's word for it; the grid is
    24 wide, and one of its rows is 38 pixels high.
    """

    title: str
    kind: Kind
    unit: str
    queries: tuple[Query, ...]
    shows: str
    read: str
    do: str
    width: int
    height: int
    colours: tuple[tuple[float, str], ...] = ()  # from this value on
    stacked: bool = False
    least: float | None = 0.0  # where the axis begins
    most: float | None = None
    decimals: int | None = None
    empty: str = ""  # a stat without a value says this
    zero_is_empty: bool = False  # so does one of 0

    @property
    def description(self) -> str:
        return f"{self.shows}\n\n**Reading it.** {self.read}\n\n**What to do.** {self.do}"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels from left to right; the first row of a dashboard has no headline."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top: the values of a label, or a text to type, at first `text`."""

    name: str
    label: str
    says: str
    series: str = ""
    of_label: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Marks on all graphs, wherever `expr` has a value that is not 0."""

    name: str
    expr: str
    title: str
    colour: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One page."""

    title: str
    says: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    notes: tuple[Note, ...] = ()
