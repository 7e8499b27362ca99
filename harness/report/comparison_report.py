"""A comparison as text for the terminal, Markdown for a pull request, and an HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from harness.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_SLO_MISSED, one_line
from harness.metrics.level_figures import Change, Difference
from harness.metrics.numbers import (
    UNKNOWN,
    Quantity,
    count_of,
    escape_markdown,
    format_number,
    metric_name,
)
from harness.report.svg import BLUE, drawing, to_svg
from harness.report.tables import aligned
from harness.report.templates import render
from harness.search.comparison import (
    ERROR_SHARE,
    KNEE,
    MORE_IS_BETTER,
    PER_S,
    Coefficient,
    Comparison,
    Setting,
    best_setting,
    knee_text,
)

TABLE_COLUMNS: Final = ("Figure", "A", "B", "Change", "95% interval", "Verdict")
MAX_SUMMARY_ROWS: Final = 12  # rows of the summary; the full table is folded below
# Shown in the summary when nothing changed.
DEFAULT_METRICS: Final = ("ttft_p95", "itl_p95", "output_tokens_per_s")
METRIC_NAMES: Final = {
    KNEE: "knee", ERROR_SHARE: "failed requests",
    "requests_per_s": "requests/s", "output_tokens_per_s": "output tokens/s",
}  # fmt: skip
SETTING_COLUMNS: Final = {
    KNEE: "Knee", "output_tokens_per_s": "Output tokens/s", "requests_per_s": "Requests/s",
    "ttft_p95": "p95 TTFT, ms", "itl_p95": "p95 ITL, ms", "e2e_p95": "p95 e2e, ms",
}  # fmt: skip
CHART_PX: Final = (720, 150)  # the width, and the height of each figure
TICK_PX: Final = 7  # of a letter below the chart
BADGE_TONES: Final = {EXIT_OK: "good", EXIT_INCONCLUSIVE: "unsure", EXIT_SLO_MISSED: "bad"}


def difference_row(one: Difference) -> dict[str, str]:
    metric, _, quantile = one.metric.rpartition("_")
    name = METRIC_NAMES.get(one.metric) or f"{quantile} {metric_name(metric)} (ms)"
    name += f" ({one.unit})" * (one.metric == KNEE)
    if one.users:
        unit = one.unit.removesuffix("s") if one.users == 1 and one.unit != PER_S else one.unit
        name += f" at {one.users:,} {unit}"

    def value(x: float) -> str:
        if one.metric == KNEE:
            return knee_text(x, one.unit)
        return f"{x:.2%}" if one.metric == ERROR_SHARE else format_number(x)

    def change(x: float) -> str:
        if math.isnan(x):  # infinite on both sides
            return UNKNOWN
        return f"{100 * x:+.2f} points" if one.metric == ERROR_SHARE else f"{x:+.1%}"

    lo, hi = one.ci95
    verdict = one.verdict.replace("_", " ") + ", beyond the tolerance" * one.beyond
    interval = f"at most {change(hi)}" if lo <= -1 else f"{change(lo)} to {change(hi)}"
    if math.isinf(hi):
        interval = "too few requests" if lo <= -1 else f"at least {change(lo)}"
    if one.needs_times is not None:
        verdict += f"; about {one.needs_times:.2g} times the requests may decide"
    cells = (name, value(one.a), value(one.b), change(one.change), interval, verdict)
    return dict(zip(TABLE_COLUMNS, cells, strict=True))


def warning(c: Comparison) -> str:
    """How the settings of the runs differ; "" if they do not."""
    differences = [f"{name} ({a} in A, {b} in B)" for name, (a, b) in c.unlike.items()]
    said = f"CAUTION: A and B were measured differently: {', '.join(differences)}."
    return said if differences else ""


def headline(c: Comparison) -> str:
    limit = f"more than {100 * c.tolerance:g}%"
    sentence = "No significant difference between A and B was found."
    if c.exit_code == EXIT_INCONCLUSIVE:
        sentence = "Too little was measured to tell A from B: no figure has an interval."
    for differences, claim in (
        (_called(c, Change.better), "B is better than A"),
        (_called(c, Change.worse), f"B is worse than A, but not shown to be by {limit}"),
        ([d for d in c.differences if d.beyond], f"B is worse than A by {limit}"),
    ):
        if differences:
            name, a, b, change, interval, _ = difference_row(differences[0]).values()
            more = f", and {count_of(len(differences) - 1, 'other figure')}" * bool(differences[1:])
            sentence = f"{claim}: {name} {b}, not {a}: {change} ({interval}){more}."
    return sentence


def summary(c: Comparison) -> str:
    """The number of figures per verdict, the folders and the tolerance."""
    each = ", ".join(f"{len(_called(c, v))} {v.replace('_', ' ')}" for v in Change)
    of = f"A is {c.a}, B is {c.b}, the tolerance {100 * c.tolerance:g}%."
    return f"Of {count_of(len(c.differences), 'figure')}: {each}. {of}"


def summary_rows(c: Comparison) -> list[dict[str, str]]:
    """The knees and the figures that changed, or the default metrics if nothing changed."""
    top = max(d.users for d in c.differences)
    usual = [d for d in c.differences if d.users == top and d.metric in DEFAULT_METRICS]
    shown = _called(c, Change.worse) + _called(c, Change.better) or usual
    shown.sort(key=lambda d: (d.metric != KNEE, not d.beyond))
    knee = [d for d in c.differences if d.metric == KNEE and d not in shown]
    return [difference_row(d) for d in [*knee, *shown][:MAX_SUMMARY_ROWS]]


def comparison_text(c: Comparison) -> str:
    said = map(one_line, (warning(c), headline(c), summary(c)))
    return "\n".join([*said, *aligned(summary_rows(c), one_line), ""]).lstrip()


def markdown(c: Comparison) -> str:
    """For a pull request comment: the answer, the summary, and all figures folded."""
    lines = [f"> **{escape_markdown(warning(c))}**", ""] if c.unlike else []
    lines += [f"**{escape_markdown(headline(c))}**", "", *aligned(summary_rows(c)), ""]
    lines += [escape_markdown(summary(c)), "", "<details><summary>All figures</summary>", ""]
    return "\n".join(
        [*lines, *aligned([difference_row(d) for d in c.differences]), "", "</details>", ""]
    )


def setting_row(one: Setting) -> dict[str, str]:
    """Its figures at its own level: the knee, or the best of given ones; dashes without any."""
    row = {"Setting": one.name}
    for metric, name in SETTING_COLUMNS.items():
        value, lo, hi = one.figures.get(metric, (math.nan,) * 3)
        row[name] = Quantity(value, lo, hi).cell
        if metric == KNEE and metric in one.figures:
            ends = [knee_text(x, one.unit) for x in (value, lo, hi)]
            row[name] = "{} ({} to {}), {unit}".format(*ends, unit=one.unit)
    row["Start, s"] = ", ".join(f"{seconds:.1f}" for seconds in one.starts_s)
    return row | {"Exit codes": ", ".join(map(str, one.runs.values()))}


def _in_times(d: Difference) -> str:
    """The interval of a change as factors: `0.06 to 0.19`."""
    lo, hi = d.ci95
    if math.isinf(hi):
        return "too few requests" if lo <= -1 else f"at least {1 + lo:.2f}"
    return f"at most {1 + hi:.2f}" if lo <= -1 else f"{1 + lo:.2f} to {1 + hi:.2f}"


def gain(c: Comparison) -> str:
    """`B against A: output tokens/s +20% (+15% to +26%), for 2.00 times the p95 ITL (ms) (...)`."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for d in c.differences:
        if d.metric in SETTING_COLUMNS:
            name, _, _, change, interval, _ = difference_row(d).values()
            more = d.metric in MORE_IS_BETTER
            figure = f"{name} {change}"
            if not more:
                figure = f"{1 + d.change:.2f} times the {name.replace(' (ms)', '')}"
                interval = _in_times(d)
            known = d.verdict in {Change.worse, Change.better}
            parts[more].append(f"{figure} ({interval}{'' if known else ', not shown'})")
    return f"{c.b} against {c.a}: {', '.join(parts[True])}, for {', '.join(parts[False])}"


def settings_report(
    settings: Sequence[Setting],
    pairs: Sequence[Comparison],
    slos: Sequence[str],
    code: int,
    costs: Sequence[Coefficient] = (),
) -> tuple[str, str]:
    """The text, which is Markdown too and begins with the headline; the page."""
    best, ties = best_setting(settings, pairs)
    measured = [one.name for one in settings if one.figures]
    failures = [f"{one.name}: {one_line(one.failure)}" for one in settings if one.failure]
    first = f"Best for {' and '.join(slos) or 'throughput'}: {best}."
    if not measured[1:]:
        only = f"only {measured[0]}" if measured else "none of the settings"
        first = f"Nothing to compare: {only} was measured."
        first, failures = " ".join([first, *failures]), []
    elif len(ties) == len(measured) - 1:
        first = f"No difference shown between {' and '.join(measured)}."
    elif ties:
        first += f" No difference to {', '.join(ties)} is shown."
    rows = [setting_row(one) for one in settings]
    for name in (SETTING_COLUMNS[KNEE], "Start, s"):  # without a search; without a server of ours
        if all(row[name] in {"", UNKNOWN} for row in rows):
            rows = [{key: cell for key, cell in row.items() if key != name} for row in rows]
    steps = [c for c in pairs if (c.a, c.b) in {*pairwise(measured)} and c.differences]
    parts = [
        {"Figure": c.name, "95% interval": Quantity(c.value, *c.ci95).cell, "Meaning": c.meaning}
        for c in costs
    ]
    title = ""
    if costs:
        unit = settings[0].unit
        one = costs[0].load == 1 and unit != PER_S
        title = f"By length, at {costs[0].load:g} {unit.removesuffix('s') if one else unit}"
    tables = {"Settings": rows} | ({title: parts} if costs else {})
    tables |= {gain(c): [*map(difference_row, c.differences)] for c in steps}
    tone = BADGE_TONES.get(code, "unsure"), f"exit code {code}"
    lines = [f"{title}:", "", *aligned(parts, one_line), ""] if costs else []
    lines = [*aligned(rows, one_line), "", *lines, *failures, *map(gain, steps), ""]
    text = "\n".join([first, "", *lines])
    return text, page(tone, ("", first, " ".join(failures)), tables, settings_chart(settings))


def settings_chart(settings: Sequence[Setting]) -> str:
    """The knee, or throughput, and both latencies of each setting; "" with fewer than two."""
    shown = [one for one in settings if one.figures]
    if len(shown) < 2:  # noqa: PLR2004 - nothing to compare
        return ""
    load = KNEE if any(KNEE in one.figures for one in shown) else MORE_IS_BETTER[1]
    variable, prefix = "setting", f"{shown[0].name.partition('=')[0]}="
    labels = [one.name for one in shown]
    if all(label.count("=") == 1 and label.startswith(prefix) for label in labels):
        variable, labels = prefix[:-1], [label.removeprefix(prefix) for label in labels]
    if max(map(len, labels)) * TICK_PX * len(labels) > CHART_PX[0]:
        variable, labels = f"row of the table ({variable})", [*map(str, range(1, len(labels) + 1))]
    metrics = (load, "ttft_p95", "itl_p95")
    with drawing(CHART_PX[0], CHART_PX[1] * len(metrics), (1,) * len(metrics)) as (figure, rows):
        for axes, metric in zip(rows, metrics, strict=True):
            unit = f", {shown[0].unit}" * (metric == KNEE)
            axes.set_title(f"{SETTING_COLUMNS[metric]}{unit}, with 95% intervals")
            for x, one in enumerate(shown):
                value, low, high = one.figures.get(metric, (math.nan,) * 3)
                if math.isfinite(value):  # else it has no place on the axis; the table says it
                    top, mark = (high, "_") if math.isfinite(high) else (value * 1.25, "^")
                    axes.plot([x], [value], "o", color=BLUE, markersize=4)
                    axes.plot([x, x], [low, top], color=BLUE, marker=mark, markevery=[1])
                    axes.plot([x], [low], "_", color=BLUE)
            axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        rows[-1].set_xlim(-0.5, len(shown) - 0.5)
        rows[-1].set_xticks(range(len(shown)), labels)
        rows[-1].set_xlabel(variable)
        return to_svg(figure, "settings", "The figures of each setting")


def html(c: Comparison) -> str:
    every = [difference_row(d) for d in c.differences]
    return page(
        (BADGE_TONES[c.exit_code], f"exit code {c.exit_code}"),
        (warning(c), headline(c), summary(c)),
        {"Summary": summary_rows(c), "All figures": every},
    )


def page(
    badge: tuple[str, str],
    lines: Sequence[str],
    tables: Mapping[str, Sequence[Mapping[str, str]]],
    chart: str = "",
) -> str:
    """`lines`: a warning or "", the headline, the small print; the first table is shown open."""
    return render("compare.html.j2", badge=badge, lines=lines, tables=tables, chart=chart)


def _called(c: Comparison, verdict: Change) -> list[Difference]:
    return [d for d in c.differences if d.verdict is verdict]
