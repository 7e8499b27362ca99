"""A comparison in words: for a terminal, for a pull request's comment, and as a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED
from harness.measure.compare import ERRORS, KNEE, Change
from harness.report.say import UNKNOWN, count, say
from harness.report.words import in_markdown, metric_name, one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.measure.compare import Comparison, Difference

COLUMNS: Final = ("Figure", "A", "B", "Change", "95% interval", "Verdict")
MOST_ROWS: Final = 12  # in sight; the whole table is folded below
USUAL: Final = ("ttft_p95", "itl_p95", "output_tokens_per_s")  # in sight though nothing changed
NAMES: Final = {KNEE: "knee (users)", ERRORS: "failed requests", "requests_per_s": "requests/s",
                "output_tokens_per_s": "output tokens/s"}  # fmt: skip
TONES: Final = {EXIT_OK: "good", EXIT_INCONCLUSIVE: "unsure", EXIT_SLO_MISSED: "bad"}


def row(one: Difference) -> list[str]:
    """What a table says of it, in COLUMNS."""
    metric, _, quantile = one.metric.partition("_")
    name = NAMES.get(one.metric) or f"{quantile} {metric_name(metric)} (ms)"
    name += f" at {count(one.users, 'user')}" if one.users else ""

    def value(x: float) -> str:
        if one.metric == KNEE:
            return "above all levels" if math.isinf(x) else f"{math.floor(x):,}"
        return f"{x:.2%}" if one.metric == ERRORS else say(x)

    def change(x: float) -> str:
        if math.isnan(x):  # infinite on both sides
            return UNKNOWN
        return f"{100 * x:+.2f} points" if one.metric == ERRORS else f"{x:+.1%}"

    (lo, hi), verdict = (
        one.ci95,
        one.verdict.replace("_", " ") + ", beyond the tolerance" * one.beyond,
    )
    interval = f"at most {change(hi)}" if lo <= -1 else f"{change(lo)} to {change(hi)}"
    if math.isinf(hi):
        interval = "too few requests" if lo <= -1 else f"at least {change(lo)}"
    if one.needs_times is not None:
        verdict += f"; about {one.needs_times:.2g} times the requests may decide"
    return [name, value(one.a), value(one.b), change(one.change), interval, verdict]


def warning(c: Comparison) -> str:
    """What else the runs differ in, to be read first; "" where nothing."""
    told = [f"{name} ({a} in A, {b} in B)" for name, (a, b) in c.unlike.items()]
    return f"CAUTION: A and B were not measured alike: {', '.join(told)}." if told else ""


def headline(c: Comparison) -> str:
    """The answer."""
    limit, said = f"more than {100 * c.tolerance:g}%", "No difference between A and B is shown."
    if c.exit_code == EXIT_INCONCLUSIVE:
        said = "Too little was measured to tell A from B: no figure has an interval."
    for some, so in (
        (_called(c, Change.better), "B is better than A"),
        (_called(c, Change.worse), f"B is worse than A, but it is not shown to be so by {limit}"),
        ([d for d in c.differences if d.beyond], f"B is worse than A by {limit}"),
    ):
        if some:
            name, a, b, change, interval, _ = row(some[0])
            more = f", and {count(len(some) - 1, 'other figure')}" if some[1:] else ""
            said = f"{so}: {name} {b}, not {a}: {change} ({interval}){more}."
    return said


def summary(c: Comparison) -> str:
    """How many of each verdict, of what."""
    each = ", ".join(f"{len(_called(c, v))} {v.replace('_', ' ')}" for v in Change)
    of = f"A is {c.a}, B is {c.b}, the tolerance {100 * c.tolerance:g}%."
    return f"Of {count(len(c.differences), 'figure')}: {each}. {of}"


def in_sight(c: Comparison) -> list[list[str]]:
    """The knees and what changed, or else what one looks at first."""
    top = max(d.users for d in c.differences)
    usual = [d for d in c.differences if d.users == top and d.metric in USUAL]
    some = _called(c, Change.worse) + _called(c, Change.better) or usual
    some.sort(key=lambda d: (d.metric != KNEE, not d.beyond))
    knee = [d for d in c.differences if d.metric == KNEE and d not in some]
    return [row(d) for d in [*knee, *some][:MOST_ROWS]]


def text(c: Comparison) -> str:
    """For a terminal."""
    told = [*map(one_line, (warning(c), headline(c), summary(c))), *_table(in_sight(c), one_line)]
    return "\n".join([*told, ""]).lstrip()


def markdown(c: Comparison) -> str:
    """For a comment on a pull request: the answer, what matters, and the rest folded."""
    told = [f"> **{in_markdown(warning(c))}**", ""] if c.unlike else []
    told += [f"**{in_markdown(headline(c))}**", "", *_table(in_sight(c)), ""]
    told += [in_markdown(summary(c)), "", "<details><summary>All figures</summary>", ""]
    return "\n".join([*told, *_table([row(d) for d in c.differences]), "", "</details>", ""])


def html(c: Comparison) -> str:
    """The page, in the report's style."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only here

    loader = PackageLoader("harness.report")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    report, _, _ = loader.get_source(environment, "report.html.j2")
    return environment.get_template("compare.html.j2").render(
        style=report.partition("<style>")[2].partition("</style>")[0],
        badge=(TONES[c.exit_code], f"exit code {c.exit_code}"),
        told=(warning(c), headline(c), summary(c)),
        columns=COLUMNS,
        tables={"In short": in_sight(c), "All figures": [row(d) for d in c.differences]},
    )


def _called(c: Comparison, verdict: Change) -> list[Difference]:
    return [d for d in c.differences if d.verdict is verdict]


def _table(rows: Sequence[Sequence[str]], told: Callable[[str], str] = in_markdown) -> list[str]:
    """In Markdown, aligned."""
    cells = [COLUMNS, *(list(map(told, one)) for one in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = ([x.ljust(n) for x, n in zip(line, widths, strict=True)] for line in cells)
    return [f"| {' | '.join(line)} |" for line in lines]
