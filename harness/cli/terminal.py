"""The terminal during a run: a row for each level that ended, and a panel for the current one.

The rows stay and form the final table; the panel below them is redrawn and disappears at the end.
Without a terminal the rows are lines with a timestamp, with a progress line every ten seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, Self, TextIO

from harness.core.load import Number, Users
from harness.core.states import Decision, Purpose, StopRule
from harness.errors import one_line
from harness.metrics.metrics import HEADLINES
from harness.metrics.numbers import Quantity, count_of, format_number
from harness.metrics.window_summary import WindowTokens
from harness.run.page_viewer import MAX_WINDOW_NS, ended_levels, headline_latencies
from harness.search.knee_estimate import bracket_users
from harness.search.level_words import (
    PASSING_SO_FAR,
    bracket_text,
    phase_text,
    purpose_text,
    result_text,
)
from harness.units import MS, SECOND, say_ns

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from harness.metrics.record_source import RecordSource
    from harness.run.ended_level import EndedLevel
    from harness.run.experiment import Experiment, Viewer
    from harness.run.study_options import Wanted
    from harness.search.controller import KneeController
    from harness.search.level_state import CurrentLevel, HeldLevel
    from harness.search.next_level import Hold, SearchPlan

# The figures of the view cover the latest part of the current level, at most MAX_RECENT_NS. They
# cover less, down to MIN_RECENT_NS, if that time has more than MAX_EVENTS events: the view must not
# cost as much CPU as the measurement.
MAX_RECENT_NS = 30 * SECOND
MIN_RECENT_NS = 5 * SECOND
MAX_EVENTS = 100_000


@contextmanager
def watch(wanted: Wanted, stream: TextIO) -> Iterator[Viewer | None]:
    """The live view, for as long as the load lasts; none with `--quiet`."""
    if not wanted.output.live:
        yield None
        return
    with LiveTerminal(stream) as live:
        yield _TerminalView(live, wanted)


class _TerminalView:
    """Collects what the view shows, once a second."""

    def __init__(self, live: LiveTerminal, wanted: Wanted) -> None:
        self.live = live
        self.wanted = wanted
        self.view = TerminalPanel(title=f"vllm-harness {wanted.kind.name}")
        self._recent_ns = MAX_RECENT_NS

    def show(self, experiment: Experiment, now_ns: int, running_users: int) -> None:
        controller = experiment.controller
        self.view.latencies = {}
        self.view.tokens_per_s = ""
        self.view.counts = ""
        level = controller.now
        if level is not None:
            self._level(controller, level, running_users)
            ended = 0
            if level.phase == "measuring" and controller.horizon_ns - level.settled_ns >= SECOND:
                ended = self._measured(experiment, level.settled_ns)
            self._progress(controller, level, now_ns - controller.began_ns, ended)
        self._past(experiment)
        self._server(experiment)
        self.live.show(self.view)

    def over(self, experiment: Experiment) -> None:
        """Show the final rows, including a level that was cut short."""
        self._past(experiment, over=True)
        self.live.over(self.view)

    def _level(self, controller: KneeController, level: CurrentLevel, running_users: int) -> None:
        """Which level is held, with what load, and why."""
        view = self.view
        unit = self.wanted.load.unit
        load = level.hold.load
        view.level = len(controller.levels) + 1
        view.load = unit.short(load.number)
        if unit.by_schedule:
            view.load += f", {running_users:,} in flight"
        view.heading = load.heading
        view.purpose = self._purpose(controller, level.hold)
        view.phase = phase_text(level.phase, running_users, load.users)

    def _purpose(self, controller: KneeController, hold: Hold) -> str:
        """Why the level is held; "" for one that was given."""
        searches = self.wanted.kind.searches
        if hold.purpose == Purpose.hold and not searches:
            return ""
        before = [level.window.load for level in controller.levels]
        return purpose_text(hold.purpose, hold.load, before, searches=searches)

    def _measured(self, experiment: Experiment, settled_ns: int) -> int:
        """Show what the level has measured so far; returns how many requests have ended."""
        known_ns = experiment.controller.horizon_ns
        ended, failed = experiment.ledger.ended(settled_ns, known_ns)
        self.view.counts = request_counts(ended, failed)
        if self.live.due():
            start_ns = max(settled_ns, known_ns - self._recent_ns)
            records = experiment.ledger.look(start_ns, known_ns)
            events = self._latest(records, start_ns, known_ns)
            self._recent_ns = affordable_ns(known_ns - start_ns, events)
        return ended

    def _progress(
        self, controller: KneeController, level: CurrentLevel, elapsed_ns: int, ended: int
    ) -> None:
        """The share done and the time left, of the budget or of the given levels."""
        levels = len(self.wanted.holds)
        if not levels:
            done = elapsed_ns
            total = self.wanted.plan.budget_ns + self.wanted.confirm_ns * 5 // 4
            left = f"at most {whole_seconds(total - done)} left"
        elif level.hold.stop == StopRule.time:
            measured_ns = 0
            if level.settled_ns >= 0:
                measured_ns = max(controller.horizon_ns - level.settled_ns, 0)
            level_ns = level.hold.max_ns
            done = len(controller.levels) * level_ns + min(measured_ns, level_ns)
            total = levels * level_ns
            left = f"at least {whole_seconds(total - done)} left"
        else:
            level_requests = level.hold.max_requests
            done = len(controller.levels) * level_requests + min(ended, level_requests)
            total = levels * level_requests
            left = f"{done:,} of {count_of(total, 'request')}"
        self.view.done = done / total
        self.view.time = f"{whole_seconds(elapsed_ns)} elapsed, {left}"

    def _latest(self, records: RecordSource, start_ns: int, end_ns: int) -> int:
        """Show the figures of a time span; returns the number of events in it."""
        view = self.view
        span = (start_ns, end_ns)
        tokens = WindowTokens.of(records, span)
        for key, p95 in headline_latencies(records.table, span, tokens).items():
            latency = Quantity(*p95, "ms")
            view.latencies[HEADLINES[key]] = str(latency) if latency.known else ""
        seconds = max(end_ns - start_ns, 1) / SECOND
        view.tokens_per_s = f"{format_number(tokens.arrived.tokens / seconds)} tokens/s"
        return tokens.arrived.events

    def _past(self, experiment: Experiment, *, over: bool = False) -> None:
        past = self.view.past
        controller = experiment.controller
        ended = ended_levels(experiment, over=over)
        for number in range(len(past), len(ended)):
            row = _row(controller.plan, controller.levels[number], ended[number])
            past.append(row)
        holds, fails_at = bracket_users(controller.plan, controller.levels)
        held_now = controller.now.hold.purpose if controller.now else None
        self.view.bracket = bracket_text(holds, fails_at, held_now)

    def _server(self, experiment: Experiment) -> None:
        sample = experiment.controller.server
        session = experiment.session
        unread = session.scraper.unread if session is not None else []
        if sample is None or math.isnan(sample.running):
            self.view.server = "no metrics"
        elif unread:
            self.view.server = f"no metrics from {', '.join(unread)}"
        else:
            kv = "" if math.isnan(sample.kv_usage) else f", KV cache {sample.kv_usage:.0%}"
            self.view.server = f"{sample.running:.0f} running, {sample.waiting:.0f} waiting{kv}"


def _row(plan: SearchPlan, level: HeldLevel, ended: EndedLevel) -> LevelRow:
    limits_ms = {slo.metric: slo.limit_ns / MS for slo in plan.slos if slo.statistic == "p95"}
    latencies = {}
    for key, p95 in ended.p95_ms.items():
        limit_ms = limits_ms.get(key, math.nan)
        latencies[key] = Quantity(*p95, "ms", limit_ms)
    counts = request_counts(ended.ended, ended.failed)
    running = ""
    if ended.n_open:
        running = f"{count_of(ended.n_open, 'request')} still running"
    return LevelRow(
        load=level.window.load.number,
        ttft=latencies["ttft"],
        itl=latencies["itl"],
        tokens_per_s=Quantity(ended.output_tokens_per_s),
        requests=counts.replace(" ended", ""),
        result=result_text(level),
        reason=level.invalid or level.judgement.reason,
        running=running,
        whole=ended.whole,
    )


def affordable_ns(span_ns: int, events: int) -> int:
    """The span of the next update, after one of `span_ns` had so many events."""
    affordable = span_ns * MAX_EVENTS // max(events, 1)
    return min(max(affordable, MIN_RECENT_NS), MAX_RECENT_NS)


def request_counts(ended: int, failed: int) -> str:
    """`1,200 ended`, `1,200 ended, 3 failed`."""
    text = f"{ended:,} ended"
    if failed:
        text += f", {failed:,} failed"
    return text


def whole_seconds(ns: int) -> str:
    """A duration in whole seconds, never below zero."""
    if ns < SECOND:
        return "0 s"
    return say_ns(ns // SECOND * SECOND)


PLAIN_LINE_INTERVAL_S: Final = 10.0
PROGRESS_BAR_WIDTH: Final = 32  # characters
DECISION_COLORS: Final[dict[str, str]] = {
    Decision.passed: "green",
    Decision.failed: "red",
    Decision.invalid: "dim",
}
REASON_INDENT: Final = 8 * " "
COLUMNS: Final = ("p95 TTFT, ms", "p95 ITL, ms", "tokens/s", "requests")
COLUMN_WIDTHS: Final = (6, 22, 22, 9, 9)
NARROW_COLUMN_WIDTHS: Final = (6, 22, 11, 9, 9)  # without the interval of ITL
NARROW_TERMINAL_COLUMNS: Final = 96  # below this width


@dataclass(frozen=True, slots=True)
class LevelRow:
    load: Number
    ttft: Quantity
    itl: Quantity
    tokens_per_s: Quantity
    requests: str
    result: str  # of Decision, or SO_FAR
    reason: str = ""
    running: str = ""  # how many of its requests have not ended: its figures may still change
    whole: bool = True  # False: ITL is that of the last MAX_WINDOW_NS

    def lines(self, width: int = 0, *, narrow: bool = False) -> list[str]:
        """The load, the cells under COLUMNS, then the result and the reason.

        What does not fit into `width` is in lines below; 0: there is no limit.
        """
        cells = self._cells(narrow=narrow)
        result = "measured" if self.result == Decision.held else self.result
        # A level that is held or passes so far needs no reason.
        reason = "" if self.result in (Decision.held, PASSING_SO_FAR) else self.reason
        parts = filter(None, [result, reason, self.running])
        text = one_line(": ".join(parts))
        row = aligned_row(cells, text, narrow=narrow)
        if not width or len(row) <= width:
            return [row]
        row = aligned_row(cells, result, narrow=narrow)
        below = text.removeprefix(result).lstrip(": ")
        if len(row) > width:
            row = aligned_row(cells, "", narrow=narrow)
            below = text
        lines_below = wrap(below, width - len(REASON_INDENT))
        return [row.rstrip(), *(REASON_INDENT + line for line in lines_below)]

    def _cells(self, *, narrow: bool) -> tuple[str, ...]:
        itl = self.itl.digits if narrow else self.itl.cell
        if self.itl.known and not self.whole:
            itl = f"{self.itl.digits} (last {say_ns(MAX_WINDOW_NS)})"
        return f"{self.load:,}", self.ttft.cell, itl, self.tokens_per_s.digits, self.requests


def aligned_row(cells: Sequence[str], last: str, *, narrow: bool) -> str:
    """Right-aligned cells, then one of any length."""
    widths = NARROW_COLUMN_WIDTHS if narrow else COLUMN_WIDTHS
    by_column = zip(cells, widths, strict=True)
    row = " ".join(f"{cell:>{wide}}" for cell, wide in by_column)
    return f"{row}  {one_line(last)}"


@dataclass(slots=True)
class TerminalPanel:
    """The content of the view. Figures are formatted already ("412 ms (398 to 432)")."""

    title: str = ""
    level: int = 0
    load: str = ""  # "48 users", "20 requests/s, 31 in flight"
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
    heading: str = Users.heading  # of the loads of `past`


class LiveTerminal:
    """A context manager; `show` may be called at any rate."""

    def __init__(self, stream: TextIO) -> None:
        """`stream` is stdout, or stderr when stdout carries JSON."""
        self.stream = stream
        self.plain = not stream.isatty()
        self._live: Any = None
        self._rows_printed = 0
        self._line_at_s = 0.0

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
        elif self._line_age_s() >= PLAIN_LINE_INTERVAL_S:
            self._print(progress_line(view))

    def due(self) -> bool:
        """Whether the next `show` needs new figures: always, except between two plain lines."""
        # One second earlier than the line is due, so that no line shows old figures.
        early_s = 1.0
        return not self.plain or self._line_age_s() >= PLAIN_LINE_INTERVAL_S - early_s

    def _line_age_s(self) -> float:
        return time.monotonic() - self._line_at_s

    def over(self, view: TerminalPanel) -> None:
        """The load has ended: print the last rows, and that results are computed."""
        self._rows(view)
        self._print("Computing the results.", "dim")

    def _rows(self, view: TerminalPanel) -> None:
        width = 0 if self._live is None else self._live.console.width
        narrow = 0 < width < NARROW_TERMINAL_COLUMNS
        if view.past and not self._rows_printed:
            heads = (view.heading, *COLUMNS)
            self._print(aligned_row(heads, "result", narrow=narrow), "dim")
        for row in view.past[self._rows_printed :]:
            for line in row.lines(width, narrow=narrow):
                self._print(line, DECISION_COLORS.get(row.result, ""))
        self._rows_printed = len(view.past)

    def _print(self, text: str, style: str = "") -> None:
        if self._live is not None:
            self._live.console.print(_plain(text, style), no_wrap=True, overflow="ellipsis")
            return
        self._line_at_s = time.monotonic()
        self.stream.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.stream.flush()


def progress_line(view: TerminalPanel) -> str:
    """The current level in one line."""
    if not view.level:
        return "waiting for the first level"
    known = [f"p95 {name} {value}" for name, value in view.latencies.items() if value]
    parts = filter(None, [*known, view.counts, view.time])
    details = ", ".join(parts)
    shown = f"; {view.bracket}" if view.bracket else ""
    return one_line(f"level {view.level}, {view.load}, {view.phase}: {details}{shown}")


def progress_panel(view: TerminalPanel) -> RenderableType:
    """The current level as a panel for at least 60 columns."""
    from rich.panel import Panel  # noqa: PLC0415 - as above
    from rich.progress_bar import ProgressBar  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    now = Table.grid(padding=(0, 2))
    now.add_column(style="dim")
    now.add_column()
    for name, value in _panel_rows(view):
        if value:
            now.add_row(_plain(name), _plain(value))
    bar = Table.grid(padding=(0, 2))
    done = ProgressBar(1.0, min(view.done, 1.0), width=PROGRESS_BAR_WIDTH)
    bar.add_row(done, _plain(view.time))
    now.add_row(_plain("progress"), bar)
    return Panel(now, title=_plain(view.title), title_align="left")


def _panel_rows(view: TerminalPanel) -> Iterator[tuple[str, str]]:
    """Names and values; a value that is not known is empty."""
    if view.level:
        load = f"{view.load} ({view.purpose})" if view.purpose else view.load
        yield f"level {view.level}", f"{load}, {view.phase}" if view.phase else load
    for name, value in view.latencies.items():
        yield f"p95 {name}", value
    yield "throughput", view.tokens_per_s
    yield "requests", view.counts
    yield "server", view.server
    yield "knee", view.bracket


def _plain(text: str, style: str = "") -> Text:
    """Text without markup: a `[` stays a `[`."""
    from rich.text import Text  # noqa: PLC0415 - as above

    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return Text(printable, style)
