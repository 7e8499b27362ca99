"""The tables and cards of a report: rows of words, and how they look as text and as Markdown.

A row is a dict from a column's head to its cell; all rows of a table have the columns of the first.
The page renders the same rows with one macro.
"""

from __future__ import annotations

import math
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from harness.measure.metrics import HEADLINES, LATENCIES
from harness.measure.states import Status
from harness.report.facts import knee_figures, mapping
from harness.report.say import (
    UNKNOWN,
    Figure,
    as_float,
    bounds,
    count,
    in_markdown,
    places,
    rounded,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.result import Level
    from harness.report.facts import Facts

    Row = dict[str, str]

STATISTICS: Final = ("p50", "p95", "p99")
PARTS: Final = {
    "queue": "Queue", "prefill": "Prefill", "rest": "Rest", "ttft": "Server",
    "residual": "Residual", "client": "Client",
}  # fmt: skip
OBSERVED: Final = {"ttft": "TTFT", "queue": "Queue", "prefill": "Prefill"}
TOOL_DIGITS: Final = 4  # one more than elsewhere: two tools are compared
WIDTH: Final = 100  # characters of remarks in a terminal


def markdown(rows: Sequence[Row], *texts: str) -> list[str]:
    """Lines of a table, as Markdown: figures to the right, columns called `texts` to the left."""
    if not rows:
        return []
    rule = (" --- |" if name in texts else " ---: |" for name in rows[0])
    lines = [f"| {' | '.join(rows[0])} |", f"|{''.join(rule)}"]
    return lines + [f"| {' | '.join(map(in_markdown, row.values()))} |" for row in rows]


def aligned(rows: Sequence[Row], said: Callable[[str], str] = in_markdown) -> list[str]:
    """Lines of a table that reads well as it is and is Markdown too."""
    lines = [list(rows[0]), *([said(cell) for cell in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([x.ljust(n) for x, n in zip(line, widths, strict=True)] for line in lines)
    return [f"| {' | '.join(line)} |" for line in padded]


def cards(facts: Facts) -> list[dict[str, str]]:
    """The few numbers that people look for first."""
    out = []
    knee = facts.knee
    if knee.holds:
        fails = f"fails by {knee.fails_by:,}" if knee.fails_by else "the most that was tried"
        out.append({"name": "Holds", "value": count(knee.holds, "user"), "note": fails})
    if knee.estimate is not None:
        lo, hi = knee.ci95
        note = f"95%: {lo:,} to {hi:,}" if lo is not None and hi is not None else ""
        out.append({"name": "Best estimate", "value": count(knee.estimate, "user"), "note": note})
    for name, figure in knee_figures(facts).items():
        if figure.known:
            value = f"{figure.digits} {figure.unit}".replace(" output tokens/s", " tok/s")
            note = (
                f"95%: {figure.interval}"
                if figure.interval
                else f"at {count(facts.measured_at, 'user')}"
            )
            out.append({"name": name, "value": value, "note": note})
    if facts.status == Status.not_reached:
        return out  # neither a peak nor a plateau was shown
    result = facts.result
    for name, found in (("Power knee", result.power), ("Throughput plateau", result.plateau)):
        if found:
            low, high = found.ci95
            note = f"between {low:,} and {high:,}"
            out.append({"name": name, "value": count(found.users, "user"), "note": note})
    return out


def levels(facts: Facts) -> list[Row]:
    """Every level held, in the order of the run."""
    return [_level(facts, step) for step in facts.steps]


def _level(facts: Facts, step: Level) -> Row:
    return _first_columns(step) | {
        "Result": step.result,
        **{
            f"p95 {name}, ms": Figure.of(step.latency(key), "p95", facts.limit_ms(key)).cell
            for key, name in HEADLINES.items()
        },
        "Tokens/s": say(step.output_tokens_per_s),
        "Good req/s": say(step.goodput_per_s),
        "n": f"{step.ttft_ms.n:,}",
        "Failed": f"{step.n_failed:,}",
        "Running": say(step.server.running_mean),
        "Waiting": say(step.server.waiting_mean),
        **_speculation(facts, step),
        "Seconds": f"{step.seconds:.0f}",
        "Purpose": step.purpose,
        "Why": step.reason,
    }


def _speculation(facts: Facts, step: Level) -> Row:
    """Where the server speculates: the share of its drafts' tokens accepted, tokens per draft."""
    if all(math.isnan(one.server.spec_acceptance) for one in facts.steps):
        return {}
    return {
        "Drafts accepted": _share(step.server.spec_acceptance),
        "Tokens per draft": say(step.server.spec_accepted_length),
    }


def _first_columns(step: Level) -> Row:
    return {"#": str(step.index + 1), "Users": f"{step.users:,}"}


def quantiles(facts: Facts) -> list[dict[str, str]]:
    """At the knee: each quantile with its sampling interval and the instrument's, in ms."""
    step = facts.result.at_knee
    if step is None:
        return []
    rows = []
    for key, metric in LATENCIES.items():
        latency = step.latency(key)
        for name in STATISTICS:
            figure = Figure.of(latency, name)
            if figure.known:
                rows.append(
                    {
                        "Quantile": f"{metric.name} {name}",
                        "ms": figure.digits,
                        "95% interval (sampling)": figure.interval or UNKNOWN,
                        "instrument": _sharp(getattr(latency, f"{name}_instrument")),
                    }
                )
    return rows


def _sharp(pair: tuple[float, float]) -> str:
    """To the microsecond: the instrument's bounds lie close together."""
    lo, hi = pair
    return UNKNOWN if lo != lo else f"{lo:,.3f} to {hi:,.3f}"  # noqa: PLR0124 - NaN


def clients(facts: Facts) -> list[dict[str, str]]:
    """Per step, what the load generator shows of itself."""
    return [
        _client(step) for step in facts.steps if step.client.cpu or step.client.instrument_share
    ]


def _client(step: Level) -> dict[str, str]:
    client = step.client
    return _first_columns(step) | {
        "Instrument's share": _share(max(client.instrument_share.values(), default=0)),
        "Exact stamps": _share(step.exact_share),
        "Tokens per event": say(step.tokens_per_event),
        "Stamped reads": _share(client.stamp_coverage),
        "Next request after, ms": say(client.turnaround_ms.mean),
        "p99": say(client.turnaround_ms.p99),
        "Worst loop lag, ms": say(client.loop_lag_max_ms),
        "Clock steps": str(client.clock_steps),
        **{f"CPU {name}": _share(cores) for name, cores in client.cpu.items()},
    }


def _share(value: Any) -> str:
    number = as_float(value)
    return UNKNOWN if number != number else f"{number:.1%}"  # noqa: PLR0124 - NaN


def mean_part(step: Level, key: str) -> tuple[float, float, float]:
    """The mean of one part in ms, and the bounds that it lies in."""
    split = step.ttft_split
    return (getattr(split, f"{key}_ms"), *bounds(getattr(split, f"{key}_ms_bound")))


def ttft_split(facts: Facts) -> list[dict[str, str]]:
    """The figures of the bars, ms; where one is not exact its bounds are in parentheses."""
    rows = []
    for step in facts.split:
        split = step.ttft_split
        decimals = max(places(mean_part(step, "client")[0]), 0)  # one for all: they add up
        row = _first_columns(step) | {"n": f"{split.n:,}"}
        for key, name in PARTS.items():
            mean, lo, hi = (rounded(x, decimals) for x in mean_part(step, key))
            row[name] = mean if lo == hi else f"{mean} ({lo} to {hi})"
        rows.append(row | {"Exact": "yes" if split.exact else "no"})
    return rows


def ttft_buckets(facts: Facts) -> list[dict[str, str]]:
    """Quantiles beside each other, each as the bucket in ms that holds it."""
    rows = []
    for step in facts.split:
        split = step.ttft_split
        held = {
            f"{name} {q}": _bucket(getattr(split, f"{key}_{q}_ms_bucket"))
            for q in ("p50", "p95")
            for key, name in OBSERVED.items()
        }
        if any(value != UNKNOWN for value in held.values()):
            rows.append(_first_columns(step) | held)
    return rows


def _bucket(pair: Any) -> str:
    lo, hi = bounds(pair)
    if math.isnan(lo):
        return UNKNOWN
    return f"over {lo:,.10g}" if math.isinf(hi) else f"{lo:,.10g} to {hi:,.10g}"


def ttft_traced(facts: Facts) -> list[dict[str, str]]:
    """Median and p95 in ms of the requests that have a trace; [] where none has."""
    rows = []
    for step in facts.used:
        told = step.ttft_traced
        if told is None:
            continue
        row = _first_columns(step) | {"Traced": f"{told.n:,} of {told.sent:,}"}
        for key, name in PARTS.items():
            middle, high = (say(getattr(told, f"{key}_{q}_ms")) for q in ("p50", "p95"))
            row[name] = f"{middle} / {high}"
        rows.append(row)
    return rows


def split_in_words(facts: Facts) -> str:
    """How the table is to be read."""
    exact = [step for step in facts.split if step.ttft_split.exact]
    told = (
        "Server and client: the mean TTFT as each of them sees it. Means add up over the same "
        "requests: those sent between two scrapes of the server. Queue "
        "and prefill are the server's own, rest is what its TTFT has beyond them (tokenizing, to "
        "the engine and back), the residual what ours has beyond its (network, HTTP, reading the "
        "request)."
    )
    if len(exact) < len(facts.split):
        told += (
            " Where requests were in flight at a scrape the server counts others than we do: the "
            "true mean lies within the bounds (whiskers); a level that began and ended empty has "
            "none."
        )
    return told


class Beside(NamedTuple):
    """One tool at one level."""

    title: str
    remarks: list[str]
    rows: list[Row]


def beside(facts: Facts) -> list[Beside]:
    """Of each level held; of a search, of the level that stands for the knee."""
    found = []
    for tool in (facts.result.compat or {}).values():
        levels = [mapping(level) for level in mapping(tool).get("levels") or []]
        here = [level for level in levels if level.get("users") == facts.measured_at]
        if facts.searched and here:
            levels = here
        found += [_beside(tool, level) for level in levels]
    return found


def _beside(tool: dict[str, Any], level: dict[str, Any]) -> Beside:
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


def _row(row: dict[str, Any]) -> Row:
    what = " ".join(filter(None, [str(row.get("name")), str(row.get("statistic") or "")]))
    ours, theirs = (digits(as_float(row.get(key))) for key in ("ours", "theirs"))
    return {
        "In its words": f"{what}, {row.get('unit')}",
        "Ours": ours,
        "Theirs": theirs,
        "Why they differ": str(row.get("why") or "no difference"),
    }


def digits(value: float) -> str:
    """`383.8`, `48.36`, `1,041`, `inf`."""
    if math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "inf"
    size = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(TOOL_DIGITS - 1 - size, 0)}f}"


def tools_as_text(tables: list[Beside]) -> list[str]:
    """Lines for a terminal."""
    lines = []
    for table in tables:
        rows = [("", "ours", "theirs", "why they differ"), *(row.values() for row in table.rows)]
        cells = [list(row) for row in rows]
        wide = [max(len(row[i]) for row in cells) for i in range(3)]
        lines += ["", f"{table.title}."]
        lines += [
            f"  {what:<{wide[0]}}  {ours:>{wide[1]}}  {theirs:>{wide[2]}}  {why}".rstrip()
            for what, ours, theirs, why in cells
        ]
        for text in table.remarks:
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")
    return lines


def tools_as_markdown(tables: list[Beside]) -> list[str]:
    """Lines of a section for each."""
    lines = []
    for table in tables:
        lines += ["", f"**{in_markdown(table.title)}**", ""]
        lines += markdown(table.rows, "In its words", "Why they differ")
        lines += ["", *map(in_markdown, table.remarks)]
    return lines
