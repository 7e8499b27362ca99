"""The page of many streams: a summary, the picture, a table for each figure, the losses, all rows.

Where several visits measured the same, a figure is what they had from least to most.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from accuracy import QUANTILES, SHARE, TTFT_MS
from tables import LEGEND, cell_tables, machine_line, table
from visits import FLOOR, OURS, STREAMS, Kept, key_of, plan

from harness.charts.definition import Axis, Chart, Color, Dash, Panel, Point, Scale, Series

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from accuracy import Latency, Row
    from cells import Cell

P50, P95, P99 = range(len(QUANTILES))
LEAST_MS: Final = 0.01  # the picture's scale is logarithmic: nearer than that is drawn there
SAME_MS: Final = 0.05  # errors that differ by less are no loss
SAME_SHARE: Final = 0.02  # nor is a cost that differs by less
ERROR_DIGITS: Final = 3
NOT_CLIENTS: Final = ("server", "bench")
COLORS: Final = {
    FLOOR: Color.muted,
    OURS: Color.blue,
    "Locust HttpUser": Color.gold,
    "vllm bench": Color.green,
    "vllm-rs bench": Color.red,
    "aiperf": Color.ink,
    "guidellm": Color.ink,
}
CAPTIONS: Final = {
    Dash.dashed: "Dashed lines are TLS.",
    Dash.dotted: "The dotted line is guidellm.",
}
INTRO: Final = """\
Each client streams 128 tokens a request, one each 20 ms, on so many streams at once for about 8 s,
as its users run it and one client after the other, beside a server that logs when each request
arrived and when each token was sent. An error is what the client read minus what was sent, at that
quantile; `!`: further off than 1% and 0.5 ms. CPU is that of all processes of the client, memory a
stream what they grew by from the first request on. The C client parses nothing and reports no
latencies: it is the lower bound of the cost, in which its connecting, also in TLS, is counted.
"""
LATER: Final = """\
vLLM's two benchmarks open a connection for each stream when they send its first request, all in the
first 0.3 s, and count that as TTFT. Without each stream's first request the error is another:
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """A table: what of a row, for so many streams; a cost has `digits` after its point."""

    title: str
    value: Callable[[Row, int], float | None]
    digits: int = 0
    is_error: bool = False
    marked: Callable[[Row], bool] = lambda _: False


def error_ms(latency: Latency, quantile: int) -> float | None:
    """Read minus sent."""
    if not latency.read or not latency.sent:
        return None
    low, high = latency.sent[quantile]
    return latency.read[quantile] - (low + high) / 2


def is_far(latency: Latency, quantile: int) -> bool:
    """Whether it is further off than 1% and 0.5 ms."""
    error = error_ms(latency, quantile)
    if error is None:
        return False
    return abs(error) > max(TTFT_MS, SHARE * latency.sent[quantile][0])


def error_of(title: str, latency_of: Callable[[Row], Latency], quantile: int) -> Figure:
    """The table of one quantile's error."""
    return Figure(
        f"{title}, error in ms",
        lambda row, _: error_ms(latency_of(row), quantile),
        is_error=True,
        marked=lambda row: is_far(latency_of(row), quantile),
    )


def cost_us(row: Row, _: int) -> float | None:
    """CPU per token."""
    return row.cost_us or None


def memory_kb(row: Row, streams: int) -> float | None:
    """What all processes of the client grew by, a stream."""
    own = [mb for kind, mb in row.memory_mb.items() if kind not in NOT_CLIENTS]
    if not own:
        return None
    grown_mb = sum(most - idle for idle, most, _ in own)
    return grown_mb * 1e3 / streams


MAIN: Final = (
    error_of("p50 TTFT", lambda row: row.ttft, P50),
    error_of("p95 TTFT", lambda row: row.ttft, P95),
    error_of("p99 TTFT", lambda row: row.ttft, P99),
    error_of("p95 ITL", lambda row: row.itl, P95),
    Figure("CPU per token, us", cost_us, digits=1),
    Figure("Memory a stream, kB", memory_kb, digits=0),
)
OF_LATER: Final = (
    error_of("p50 TTFT of later requests", lambda row: row.later_ttft, P50),
    error_of("p95 TTFT of later requests", lambda row: row.later_ttft, P95),
)


def name_of(cell: Cell, client: str) -> str:
    """A row's, with how it is connected."""
    return f"{client}, TLS" if cell.server == "tls" else client


def values(visits: Sequence[Kept], figure: Figure, cell: Cell, client: str) -> list[float]:
    """What each visit had that measured it."""
    key = key_of(cell, client)
    rows = [kept.rows[key] for kept in visits if key in kept.rows]
    found = [figure.value(row, cell.streams) for row in rows]
    return [value for value in found if value is not None]


def shown(visits: Sequence[Kept], figure: Figure, cell: Cell, client: str) -> str:
    """One field of a table."""
    found = values(visits, figure, cell, client)
    if not found:
        return "-"
    least = written(min(found), figure)
    most = written(max(found), figure)
    text = least if least == most else f"{least} to {most}"
    key = key_of(cell, client)
    far = any(figure.marked(kept.rows[key]) for kept in visits if key in kept.rows)
    return f"{text}{' !' if far else ''}"


def written(value: float, figure: Figure) -> str:
    """With its digits: an error has three, or as many as it has before its point."""
    if not figure.is_error:
        return f"{value:,.{figure.digits}f}"
    before_point = len(str(int(abs(value))))
    digits = max(ERROR_DIGITS - before_point, 0)
    return f"{value:+,.{digits}f}"


def figure_table(visits: Sequence[Kept], figure: Figure, most: int) -> list[str]:
    """Rows are clients, those in TLS last; columns are numbers of streams."""
    in_order = sorted(plan(most), key=lambda planned: planned[0].server == "tls")
    rows: dict[str, dict[int, str]] = {}
    for cell, client in in_order:
        text = shown(visits, figure, cell, client)
        rows.setdefault(name_of(cell, client), {})[cell.streams] = text
    levels = [streams for streams in STREAMS if streams <= most]
    headings = ["client", *(f"{streams:,} streams" for streams in levels)]
    lines = [
        [name, *(texts[streams] for streams in levels)]
        for name, texts in rows.items()
        if set(texts.values()) != {"-"}
    ]
    return ["", f"### {figure.title}", "", *table(headings, lines)] if lines else []


def summary(visits: Sequence[Kept], most: int) -> str:
    """What ours does with the most streams that it was measured on."""
    ours = [cell for cell, client in plan(most) if client == OURS and cell.server == "paced"]
    error, cost = MAIN[1], MAIN[4]
    seen = [cell for cell in ours if values(visits, cost, cell, OURS)]
    if not seen:
        return "Ours was not measured."
    top = seen[-1]
    text = (
        f"With {top.streams:,} streams the p95 TTFT that vllm-harness reads is off by "
        f"{shown(visits, error, top, OURS)} ms, for {shown(visits, cost, top, OURS)} us of CPU "
        "per token"
    )
    floor = shown(visits, cost, top, FLOOR)
    return f"{text} (the C client: {floor})." if floor != "-" else f"{text}."


def losses(visits: Sequence[Kept], most: int) -> list[str]:
    """Where another client is better than ours, and where ours is off."""
    lines = []
    for figure in (*MAIN, *OF_LATER):
        for server, suffix in (("paced", ""), ("tls", ", TLS")):
            where: dict[str, list[str]] = {}
            for cell, client in plan(most):
                if cell.server == server and is_loss(visits, figure, cell, client):
                    theirs = shown(visits, figure, cell, client)
                    mine = shown(visits, figure, cell, OURS)
                    text = f"{theirs} against {mine} at {cell.streams:,} streams"
                    where.setdefault(client, []).append(text)
            lines += [
                f"- {figure.title}{suffix}: {client} has {', '.join(texts)}."
                for client, texts in where.items()
            ]
    for figure in MAIN:
        for cell, client in plan(most):
            text = shown(visits, figure, cell, client)
            if client == OURS and text.endswith("!"):
                lines.append(f"- Ours is off in {figure.title}: {text} ({cell.name}).")
    return lines or ["None."]


def is_loss(visits: Sequence[Kept], figure: Figure, cell: Cell, client: str) -> bool:
    """Whether it is better than ours by more than nothing, in the middle of the visits."""
    theirs = values(visits, figure, cell, client)
    mine = values(visits, figure, cell, OURS)
    if client == OURS or not theirs or not mine:
        return False
    if figure.is_error:
        return abs(median(theirs)) < abs(median(mine)) - SAME_MS
    return median(theirs) < median(mine) * (1 - SAME_SHARE)


def not_measured(visits: Sequence[Kept], most: int) -> list[str]:
    """A line for each client, with its reasons."""
    found: dict[str, dict[str, list[str]]] = {}
    for kept in visits:
        for cell, client in plan(most):
            key = key_of(cell, client)
            if key in kept.why and not any(key in visit.rows for visit in visits):
                levels = found.setdefault(name_of(cell, client), {}).setdefault(kept.why[key], [])
                if (level := f"{cell.streams:,}") not in levels:
                    levels.append(level)
    return [
        f"- {name} at {', '.join(levels)} streams: {reason}."
        for name, reasons in found.items()
        for reason, levels in reasons.items()
    ]


def details(kept: Kept, most: int) -> list[str]:
    """All rows of one visit."""
    found: dict[str, tuple[Cell, list[Row], list[str]]] = {}
    for cell, client in plan(most):
        _, rows, notes = found.setdefault(cell.name, (cell, [], []))
        key = key_of(cell, client)
        if key in kept.rows:
            row = kept.rows[key]
            rows.append(row)
            if rows[0].client == FLOOR and rows[0].cost_us:
                row.ratio = row.cost_us / rows[0].cost_us
        if key in kept.why:
            notes.append(f"{client}: {kept.why[key]}.")
    results = [(cell, rows, " ".join(notes)) for cell, rows, notes in found.values()]
    return cell_tables([one for one in results if one[1] or one[2]], "###")


def machines(visits: Sequence[Kept]) -> list[str]:
    """A line for each visit: where, and with which versions of the clients."""
    lines = []
    for number, kept in enumerate(visits, 1):
        versions = kept.machine.get("clients", {})
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        clients = f" Clients: {named}." if named else ""
        lines.append(f"{number}. {machine_line(kept.machine)}{clients}")
    return lines


def page(visits: Sequence[Kept], most: int, picture: str) -> str:
    """All of it, in Markdown."""
    out = ["# Many streams, side by side", "", summary(visits, most), ""]
    out += [f"![Cost and error]({picture})", "", caption(visits), "", INTRO]
    out += [
        "Visits:" if len(visits) > 1 else "Measured on:",
        "",
        *machines(visits),
        "",
        "## Figures",
    ]
    for figure in MAIN:
        out += figure_table(visits, figure, most)
    later = [line for figure in OF_LATER for line in figure_table(visits, figure, most)]
    if later:
        out += ["", LATER, *later]
    if missing := not_measured(visits, most):
        out += ["", "### Not measured", "", *missing]
    out += ["", "## Losses", "", "Where another client has the better figure:", ""]
    out += losses(visits, most)
    out += ["", "## All rows", "", LEGEND]
    for number, kept in enumerate(visits, 1):
        if len(visits) > 1:
            out += ["", f"Visit {number}:"]
        out += details(kept, most)
    return "\n".join(out) + "\n"


def chart(visits: Sequence[Kept]) -> Chart:
    """CPU per token, and how far the p95 TTFT is off, over the streams, by client."""
    error, cost = MAIN[1], MAIN[4]
    return Chart(
        "streams",
        "Cost and error by streams",
        [
            Panel(lines_of(visits, cost, 0), Axis(scale=Scale.log), "CPU per token, us"),
            Panel(
                lines_of(visits, error, LEAST_MS),
                Axis(scale=Scale.log),
                "p95 TTFT, read off what was sent, ms",
            ),
        ],
        Axis("streams", scale=Scale.log),
        wide=True,
    )


def caption(visits: Sequence[Kept]) -> str:
    """What is said of the lines that the picture has."""
    drawn = {line.dash for line in lines_of(visits, MAIN[4], 0)}
    return " ".join(words for dash, words in CAPTIONS.items() if dash in drawn)


def lines_of(visits: Sequence[Kept], figure: Figure, least: float) -> list[Series]:
    """A line for each client, in the middle of the visits."""
    points: dict[tuple[str, str], list[Point]] = {}
    for cell, client in plan(STREAMS[-1]):
        if found := values(visits, figure, cell, client):
            size = max(abs(median(found)), least)
            points.setdefault((client, cell.server), []).append(Point(cell.streams, size))
    return [
        Series(
            f"{client}, TLS" if server == "tls" else client,
            COLORS[client],
            own,
            dash=dash_of(client, server),
            dots=True,
        )
        for (client, server), own in points.items()
    ]


def dash_of(client: str, server: str) -> Dash:
    """There are fewer colors than clients."""
    if server == "tls":
        return Dash.dashed
    return Dash.dotted if client == "guidellm" else Dash.solid
