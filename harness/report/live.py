"""The terminal during a run: a row for each level that ended, and a panel of the one under way.

The rows stay and are the final table; the panel is redrawn below them and goes at the end. Without
a terminal the same rows come as lines with a time stamp, and every ten seconds one of the progress.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from harness.measure.states import Decision, Purpose
from harness.report.say import Figure, count
from harness.report.words import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.text import Text

LINE_EVERY_S: Final = 10.0
BAR: Final = 32  # characters
COLORS: Final[dict[str, str]] = {
    Decision.passed: "green",
    Decision.failed: "red",
    Decision.invalid: "dim",
}
PURPOSES: Final = {
    Purpose.up: "ramping up", Purpose.bisect: "bisecting", Purpose.repeat: "repeating a level",
    Purpose.down: "stepping down",
}  # fmt: skip
SO_FAR: Final = "passing so far"
COLUMNS: Final = ("users", "p95 TTFT, ms", "p95 ITL, ms", "tokens/s", "requests")
WIDTHS: Final = (6, 22, 22, 9, 9)
NARROW_WIDTHS: Final = (6, 22, 11, 9, 9)  # without the ITL's interval
NARROW: Final = 96  # columns of a terminal


@dataclass(frozen=True, slots=True)
class Row:
    """One level that ended."""

    users: int
    ttft: Figure
    itl: Figure
    tokens_per_s: Figure
    requests: str
    result: str  # of Decision, or SO_FAR
    reason: str = ""

    def text(self, *, narrow: bool = False) -> str:
        """Under the heads of COLUMNS; then the result and why."""
        cells = (
            f"{self.users:,}",
            self.ttft.cell,
            self.itl.digits if narrow else self.itl.cell,
            self.tokens_per_s.digits,
            self.requests,
        )
        quiet = self.result in (Decision.held, SO_FAR)
        why = f": {self.reason}" if self.reason and not quiet else ""
        result = "measured" if self.result == Decision.held else self.result
        return in_columns(cells, result + why, narrow=narrow)


def in_columns(cells: Sequence[str], last: str, *, narrow: bool) -> str:
    """Right-aligned cells, and a last one that may be of any length."""
    widths = NARROW_WIDTHS if narrow else WIDTHS
    told = " ".join(f"{cell:>{wide}}" for cell, wide in zip(cells, widths, strict=True))
    return f"{told}  {one_line(last)}"


@dataclass(slots=True)
class LiveView:
    """What the view shows now. Figures are words already ("412 ms (398 to 432)")."""

    title: str = ""
    level: int = 0
    users: int = 0
    purpose: str = ""
    phase: str = ""
    done: float = 0.0  # share of the budget, or of what was asked for
    time: str = ""  # elapsed and left
    latencies: dict[str, str] = field(default_factory=dict)
    tokens_per_s: str = ""
    counts: str = ""
    server: str = ""
    bracket: str = ""
    past: list[Row] = field(default_factory=list)


class Live:
    """A context manager; `show` may be called at any rate."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` is stdout, or stderr when stdout carries JSON."""
        self.stream = stream
        self.plain = not stream.isatty()
        self._live: Any = None
        self._told = 0
        self._line_at = 0.0

    def __enter__(self) -> Self:
        """Begin drawing."""
        if not self.plain:
            from rich.console import Console  # noqa: PLC0415 - 0.1 s, and not for CI
            from rich.live import Live as RichLive  # noqa: PLC0415

            console = Console(file=self.stream)
            self._live = RichLive(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The panel goes, the rows stay, the answer comes."""
        if self._live is not None:
            self._live.stop()

    def show(self, view: LiveView) -> None:
        """Redraw, or print what is new."""
        self._rows(view)
        if self._live is not None:
            self._live.update(panel(view), refresh=True)
        elif time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._print(line(view))

    def due(self) -> bool:
        """Whether the next `show` may show the level's figures: always, but in plain lines."""
        early_s = 1.0  # than the line itself, so that no line goes out with older figures
        return not self.plain or time.monotonic() - self._line_at >= LINE_EVERY_S - early_s

    def over(self, view: LiveView) -> None:
        """The load has ended: its last rows, and what takes time now."""
        self._rows(view)
        self._print("Computing the results.", "dim")

    def _rows(self, view: LiveView) -> None:
        narrow = self._live is not None and self._live.console.width < NARROW
        if view.past and not self._told:
            self._print(in_columns(COLUMNS, "result", narrow=narrow), "dim")
        for row in view.past[self._told :]:
            self._print(row.text(narrow=narrow), COLORS.get(row.result, ""))
        self._told = len(view.past)

    def _print(self, text: str, style: str = "") -> None:
        if self._live is not None:
            self._live.console.print(_plain(text, style), no_wrap=True, overflow="ellipsis")
            return
        self._line_at = time.monotonic()
        self.stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.stream.flush()


def line(view: LiveView) -> str:
    """The level under way in one line."""
    if not view.level:
        return "waiting for the first level"
    known = [f"p95 {name} {value}" for name, value in view.latencies.items() if value]
    told = ", ".join(filter(None, [*known, view.counts, view.time]))
    return one_line(f"level {view.level}, {count(view.users, 'user')}, {view.phase}: {told}")


def panel(view: LiveView) -> RenderableType:
    """The level under way, for a terminal of 60 columns or more."""
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
            ", ".join(filter(None, [count(view.users, "user") + purpose, view.phase])),
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
    bar.add_row(ProgressBar(1.0, min(view.done, 1.0), width=BAR), _plain(view.time))
    now.add_row(_plain("progress"), bar)
    return Panel(now, title=_plain(view.title), title_align="left")


def _plain(text: str, style: str = "") -> Text:
    """Text in which a `[` is no markup."""
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text("".join(c if c.isprintable() else " " for c in text), style)
