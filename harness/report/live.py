"""The live terminal view: one panel, redrawn in place; plain lines where there is no terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from harness.report.say import count
from harness.report.words import one_line
from harness.units import SECOND, say_ns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

LINE_EVERY_S: Final = 10.0
COLORS: Final = {"good": "green", "bad": "red", "undecided": "yellow", "invalid": "dim"}


@dataclass(slots=True)
class LiveView:
    """What the view shows now. Figures are words already ("412 ms (398 to 432)")."""

    title: str = ""
    step: int = 0
    purpose: str = ""
    phase: str = ""
    users: int = 0
    running_users: int = 0
    left_ns: int = -1  # time left at most; -1: not known
    latencies: dict[str, str] = field(default_factory=dict)
    tokens_per_s: str = ""
    counts: str = ""
    server: str = ""
    bracket: str = ""
    past: list[tuple[str, str, str]] = field(default_factory=list)  # users, decision, figures


class Live:
    """A context manager; `show` may be called at any rate."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` is stdout, or stderr when stdout carries JSON."""
        self.stream = stream
        self.plain = not stream.isatty()
        self._live: Any = None
        self._said = 0
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
        """The panel goes, the answer comes."""
        if self._live is not None:
            self._live.stop()

    def show(self, view: LiveView) -> None:
        """Redraw, or say what is new."""
        if self._live is not None:
            self._live.update(panel(view), refresh=True)
            return
        for users, decision, figures in view.past[self._said :]:
            self._say(f"{count(int(users), 'user')}: {decision}; {figures}")
            self._line_at = time.monotonic()
        self._said = len(view.past)
        if time.monotonic() - self._line_at >= LINE_EVERY_S:
            self._line_at = time.monotonic()
            self._say(line(view))

    def due(self) -> bool:
        """Whether the next `show` may show the step's figures: always, but in plain lines."""
        early_s = 1.0  # than the line itself, so that no line goes out with older figures
        return not self.plain or time.monotonic() - self._line_at >= LINE_EVERY_S - early_s

    def _say(self, text: str) -> None:
        self.stream.write(one_line(text) + "\n")
        self.stream.flush()


def line(view: LiveView) -> str:
    """The step under way in one line."""
    if not view.step:
        return "waiting for the first step"
    left = f"{say_ns(view.left_ns)} left at most" if view.left_ns >= 0 else ""
    known = [f"p95 {name} {value}" for name, value in view.latencies.items() if value]
    told = ", ".join(filter(None, [*known, view.counts and f"requests: {view.counts}", left]))
    now = f"step {view.step}, {count(view.users, 'user')}, {view.phase}"
    return f"{now}: {told}" if told else now


def panel(view: LiveView) -> RenderableType:
    """The whole view for a terminal of 80 columns or more."""
    from rich.console import Group  # noqa: PLC0415 - as above
    from rich.panel import Panel  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    left = f"{say_ns(view.left_ns)} left at most" if view.left_ns >= 0 else ""
    now = Table.grid(padding=(0, 2))
    now.add_column(style="dim")
    now.add_column()
    for name, value in (
        (f"step {view.step}" if view.step else "", _holding(view)),
        *((f"p95 {name}", value) for name, value in view.latencies.items()),
        ("throughput", view.tokens_per_s),
        ("requests", view.counts),
        ("server", view.server),
        ("knee", view.bracket),
    ):
        if name and value:
            now.add_row(_plain(name), _plain(value))
    body = Group(now, _past(view)) if view.past else now
    title, subtitle = _plain(view.title), _plain(left) if left else None
    return Panel(body, title=title, subtitle=subtitle, title_align="left", subtitle_align="right")


def _past(view: LiveView) -> Table:
    """The last steps."""
    from rich.table import Table  # noqa: PLC0415 - as above

    past = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("users", "decision", "why"):
        past.add_column(column, justify="right" if column == "users" else "left")
    for users, decision, figures in view.past[-8:]:
        color = COLORS.get(decision.split(" ")[0], "")
        past.add_row(_plain(users), _plain(decision, color), _plain(figures))
    return past


def _plain(text: str, style: str = "") -> Text:
    """Text in which a `[` is no markup."""
    from rich.text import Text  # noqa: PLC0415 - as above

    return Text(one_line(text), style)


def _holding(view: LiveView) -> str:
    purpose = f" ({view.purpose})" if view.purpose else ""
    return ", ".join(filter(None, [count(view.users, "user") + purpose, view.phase]))


def seconds_left(began_ns: int, now_ns: int, budget_ns: int) -> int:
    """Of the budget, never below zero; -1 without a budget."""
    return max(budget_ns - (now_ns - began_ns), 0) // SECOND * SECOND
