"""The terminal during a run: a row for each level that ended, and a panel for the current one.

The rows stay and form the final table; the panel below them is redrawn and disappears at the end.
Without a terminal the rows are lines with a timestamp, with a progress line every ten seconds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from harness.errors import one_line
from harness.measure.states import Decision, Purpose
from harness.report.numbers import Quantity, count_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.text import Text

PLAIN_LINE_INTERVAL_S: Final = 10.0
PROGRESS_BAR_WIDTH: Final = 32  # characters
DECISION_COLORS: Final[dict[str, str]] = {
    Decision.passed: "green",
    Decision.failed: "red",
    Decision.invalid: "dim",
}
PURPOSES: Final = {
    Purpose.up: "ramping up", Purpose.bisect: "bisecting", Purpose.repeat: "repeating a level",
    Purpose.down: "stepping down", Purpose.sequential: "one at a time", Purpose.batch: "a batch",
}  # fmt: skip
PASSING_SO_FAR: Final = "passing so far"
COLUMNS: Final = ("users", "p95 TTFT, ms", "p95 ITL, ms", "tokens/s", "requests")
COLUMN_WIDTHS: Final = (6, 22, 22, 9, 9)
NARROW_COLUMN_WIDTHS: Final = (6, 22, 11, 9, 9)  # without the interval of ITL
NARROW_TERMINAL_COLUMNS: Final = 96  # below this width


@dataclass(frozen=True, slots=True)
class LevelRow:
    """One level that ended."""

    users: float  # or its rate
    ttft: Quantity
    itl: Quantity
    tokens_per_s: Quantity
    requests: str
    result: str  # of Decision, or SO_FAR
    reason: str = ""

    def text(self, *, narrow: bool = False) -> str:
        """The cells under COLUMNS, then the result and the reason."""
        cells = (
            f"{self.users:,}",
            self.ttft.cell,
            self.itl.digits if narrow else self.itl.cell,
            self.tokens_per_s.digits,
            self.requests,
        )
        quiet = self.result in (Decision.held, PASSING_SO_FAR)
        why = f": {self.reason}" if self.reason and not quiet else ""
        result = "measured" if self.result == Decision.held else self.result
        return aligned_row(cells, result + why, narrow=narrow)


def aligned_row(cells: Sequence[str], last: str, *, narrow: bool) -> str:
    """Right-aligned cells, then one of any length."""
    widths = NARROW_COLUMN_WIDTHS if narrow else COLUMN_WIDTHS
    row = " ".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))
    return f"{row}  {one_line(last)}"


@dataclass(slots=True)
class TerminalPanel:
    """The content of the view. Figures are formatted already ("412 ms (398 to 432)")."""

    title: str = ""
    level: int = 0
    users: int = 0
    purpose: str = ""
    phase: str = ""
    done: float = 0.0  # share of the budget or of the given load
    time: str = ""  # elapsed and left
    latencies: dict[str, str] = field(default_factory=dict)
    tokens_per_s: str = ""
    counts: str = ""
    server: str = ""
    bracket: str = ""
    past: list[LevelRow] = field(default_factory=list)
    rate: str = ""  # in place of users: "20 requests/s", "8 sessions"

    @property
    def load(self) -> str:
        """`16 users`, `20 requests/s`, `8 sessions`."""
        return self.rate or count_of(self.users, "user")


class LiveTerminal:
    """A context manager; `show` may be called at any rate."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` is stdout, or stderr when stdout carries JSON."""
        self.stream = stream
        self.plain = not stream.isatty()
        self._live: Any = None
        self._told = 0
        self._line_at = 0.0

    def __enter__(self) -> Self:
        if not self.plain:
            from rich.console import Console  # noqa: PLC0415 - 0.1 s, and not for CI
            from rich.live import Live as RichLive  # noqa: PLC0415

            console = Console(file=self.stream)
            self._live = RichLive(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, view: TerminalPanel) -> None:
        self._rows(view)
        if self._live is not None:
            self._live.update(progress_panel(view), refresh=True)
        elif time.monotonic() - self._line_at >= PLAIN_LINE_INTERVAL_S:
            self._print(progress_line(view))

    def due(self) -> bool:
        """Whether the next `show` needs new figures: always, except between two plain lines."""
        # One second earlier than the line is due, so that no line shows old figures.
        early_s = 1.0
        return not self.plain or time.monotonic() - self._line_at >= PLAIN_LINE_INTERVAL_S - early_s

    def over(self, view: TerminalPanel) -> None:
        """The load has ended: print the last rows, and that results are computed."""
        self._rows(view)
        self._print("Computing the results.", "dim")

    def _rows(self, view: TerminalPanel) -> None:
        narrow = self._live is not None and self._live.console.width < NARROW_TERMINAL_COLUMNS
        if view.past and not self._told:
            self._print(
                aligned_row(
                    ("1/s" if view.rate else COLUMNS[0], *COLUMNS[1:]), "result", narrow=narrow
                ),
                "dim",
            )
        for row in view.past[self._told :]:
            self._print(row.text(narrow=narrow), DECISION_COLORS.get(row.result, ""))
        self._told = len(view.past)

    def _print(self, text: str, style: str = "") -> None:
        if self._live is not None:
            self._live.console.print(_plain(text, style), no_wrap=True, overflow="ellipsis")
            return
        self._line_at = time.monotonic()
        self.stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.stream.flush()


def progress_line(view: TerminalPanel) -> str:
    """The current level in one line."""
    if not view.level:
        return "waiting for the first level"
    known = [f"p95 {name} {value}" for name, value in view.latencies.items() if value]
    details = ", ".join(filter(None, [*known, view.counts, view.time]))
    return one_line(f"level {view.level}, {view.load}, {view.phase}: {details}")


def progress_panel(view: TerminalPanel) -> RenderableType:
    """The current level as a panel for at least 60 columns."""
    from rich.panel import Panel  # noqa: PLC0415 - as above
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    now = Table.grid(padding=(0, 2))
    now.add_column(style="dim")
    now.add_column()
    purpose = f" ({view.purpose})" if view.purpose else ""
    for name, value in (
        (
            f"level {view.level}" if view.level else "",
            ", ".join(filter(None, [view.load + purpose, view.phase])),
        ),
        *((f"p95 {name}", value) for name, value in view.latencies.items()),
        ("throughput", view.tokens_per_s),
        ("requests", view.counts),
        ("server", view.server),
        ("knee", view.bracket),
    ):
        if name and value:
            now.add_row(_plain(name), _plain(value))
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(1.0, min(view.done, 1.0), width=PROGRESS_BAR_WIDTH), _plain(view.time))
    now.add_row(_plain("progress"), bar)
    return Panel(now, title=_plain(view.title), title_align="left")


def _plain(text: str, style: str = "") -> Text:
    """Text without markup: a `[` stays a `[`."""
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text("".join(c if c.isprintable() else " " for c in text), style)
