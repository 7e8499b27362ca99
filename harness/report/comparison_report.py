"""A comparison as text for the terminal, Markdown for a pull request, and an HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Final

from harness.charts.definition import (
    Axis,
    Chart,
    Color,
    Dash,
    Limit,
    Panel,
    Point,
    Scale,
    Series,
    Shape,
    line,
)
from harness.charts.embed import page_parts
from harness.core.load import unit_named
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
from harness.report.deployments_report import DeploymentFindings
from harness.report.tables import aligned
from harness.report.templates import render
from harness.search.comparison import (
    ERROR_SHARE,
    KNEE,
    MORE_IS_BETTER,
    Coefficient,
    Comparison,
    Setting,
    best_setting,
    knee_text,
)

MAX_SUMMARY_ROWS: Final = 12  # rows of the summary; the full table is folded below
# Shown in the summary when nothing changed.
DEFAULT_METRICS: Final = ("ttft_p95", "itl_p95", "output_tokens_per_s")
METRIC_NAMES: Final = {
    KNEE: "knee",
    ERROR_SHARE: "failed requests",
    "requests_per_s": "requests/s",
    "output_tokens_per_s": "output tokens/s",
}
SETTING_COLUMNS: Final = {
    KNEE: "Knee",
    "output_tokens_per_s": "Output tokens/s",
    "requests_per_s": "Requests/s",
    "ttft_p95": "p95 TTFT, ms",
    "itl_p95": "p95 ITL, ms",
    "e2e_p95": "p95 e2e, ms",
}
# Left out of the table where all settings lack them: without a search, without a server of ours.
OPTIONAL_COLUMNS: Final = (SETTING_COLUMNS[KNEE], "Start, s")
NO_FIGURE: Final = (math.nan, math.nan, math.nan)  # value, and both ends of its interval
FEWEST_COMPARED: Final = 2
MAX_LABELS_PX: Final = 720  # of all labels below the chart of the settings
SETTING_PX: Final = 110  # the height of a figure of all settings,
MARGIN: Final = 0.4  # of the span of all figures: what is left below them
CHANGE_PX: Final = 26  # and of a change
VERDICT_COLORS: Final = {Change.worse: Color.red, Change.better: Color.green}
TICK_PX: Final = 7  # of a letter below the chart
BADGE_TONES: Final = {EXIT_OK: "good", EXIT_INCONCLUSIVE: "unsure", EXIT_SLO_MISSED: "bad"}
BEST_TABLE: Final = "Best for what"
MOST_GOALS: Final = 3  # rows of one load in that table
ALL_FIGURES: Final = "All figures"  # a table that opens when it is clicked


def difference_row(difference: Difference) -> dict[str, str]:
    return {
        "Figure": _figure_name(difference),
        "A": _value_text(difference, difference.a),
        "B": _value_text(difference, difference.b),
        "Change": _change_text(difference, difference.change),
        "95% interval": _interval_text(difference),
        "Verdict": _verdict_text(difference),
    }


def _figure_name(difference: Difference) -> str:
    """`p95 TTFT (ms) at 16 users`, `knee (users)`."""
    metric = difference.metric
    unit = unit_named(difference.unit)
    name = METRIC_NAMES.get(metric)
    if name is None:
        latency, _, quantile = metric.rpartition("_")
        name = f"{quantile} {metric_name(latency)} (ms)"
    if metric == KNEE:
        name += f" ({unit.short_many})"
    if difference.users:
        name += f" at {unit.short(difference.users)}"
    return name


def _value_text(difference: Difference, value: float) -> str:
    if difference.metric == KNEE:
        return knee_text(value, unit_named(difference.unit))
    if difference.metric == ERROR_SHARE:
        return f"{value:.2%}"
    return format_number(value)


def _change_text(difference: Difference, change: float) -> str:
    """`+12.0%`; of a share of failed requests `+1.50 points`."""
    if math.isnan(change):  # infinite on both sides
        return UNKNOWN
    if difference.metric == ERROR_SHARE:
        return f"{100 * change:+.2f} points"
    return f"{change:+,.1%}"


def _interval_text(difference: Difference) -> str:
    """Of the change. A fall by 100% is no lower end, an infinite rise no upper end."""
    low, high = difference.ci95
    low_text = "" if low <= -1 else _change_text(difference, low)
    high_text = "" if math.isinf(high) else _change_text(difference, high)
    return _range_text(low_text, high_text)


def _range_text(low: str, high: str) -> str:
    """`+1.0% to +3.0%`; an end that is "" is not known."""
    if low and high:
        return f"{low} to {high}"
    if low:
        return f"at least {low}"
    if high:
        return f"at most {high}"
    return "too few requests"


def _verdict_text(difference: Difference) -> str:
    verdict = difference.verdict.replace("_", " ")
    if difference.beyond:
        verdict += ", beyond the tolerance"
    if difference.needs_times is not None:
        verdict += f"; about {difference.needs_times:.2g} times the requests may decide"
    return verdict


def warning(c: Comparison) -> str:
    """How the settings of the runs differ; "" if they do not."""
    if not c.unlike:
        return ""
    differences = [f"{name} ({a} in A, {b} in B)" for name, (a, b) in c.unlike.items()]
    return f"CAUTION: A and B were measured differently: {', '.join(differences)}."


def headline(c: Comparison) -> str:
    """The gravest claim that is shown: worse beyond the tolerance, worse, better."""
    limit = f"more than {100 * c.tolerance:g}%"
    if beyond := [d for d in c.differences if d.beyond]:
        return _claim(f"B is worse than A by {limit}", beyond)
    if worse := _called(c, Change.worse):
        return _claim(f"B is worse than A, but not shown to be by {limit}", worse)
    if better := _called(c, Change.better):
        return _claim("B is better than A", better)
    if c.exit_code == EXIT_INCONCLUSIVE:
        return "Too little was measured to tell A from B: no figure has an interval."
    return "No significant difference between A and B was found."


def _claim(claim: str, differences: Sequence[Difference]) -> str:
    """With the first difference as its evidence, and the number of others."""
    row = difference_row(differences[0])
    others = ""
    if len(differences) > 1:
        others = f", and {count_of(len(differences) - 1, 'other figure')}"
    figures = f"{row['Figure']} {row['B']}, not {row['A']}"
    change = f"{row['Change']} ({row['95% interval']})"
    return f"{claim}: {figures}: {change}{others}."


def summary(c: Comparison) -> str:
    """The number of figures per verdict, the folders and the tolerance."""
    counts = [f"{len(_called(c, verdict))} {verdict.replace('_', ' ')}" for verdict in Change]
    figures = count_of(len(c.differences), "figure")
    folders = f"A is {c.a}, B is {c.b}, the tolerance {100 * c.tolerance:g}%."
    return f"Of {figures}: {', '.join(counts)}. {folders}"


def summary_rows(c: Comparison) -> list[dict[str, str]]:
    return [difference_row(difference) for difference in _summarized(c)]


def _summarized(c: Comparison) -> list[Difference]:
    """The knees and the figures that changed, or the default metrics if nothing changed."""
    shown = _called(c, Change.worse) + _called(c, Change.better)
    if not shown:
        top = max(d.users for d in c.differences)
        at_top = [d for d in c.differences if d.users == top]
        shown = [d for d in at_top if d.metric in DEFAULT_METRICS]
    # the knee first, then what is worse beyond the tolerance
    shown.sort(key=lambda d: (d.metric != KNEE, not d.beyond))
    knees = [d for d in c.differences if d.metric == KNEE and d not in shown]
    return [*knees, *shown][:MAX_SUMMARY_ROWS]


def comparison_text(c: Comparison) -> str:
    sentences = (warning(c), headline(c), summary(c))
    lines = [one_line(sentence) for sentence in sentences]
    lines += [*aligned(summary_rows(c), one_line), ""]
    return "\n".join(lines).lstrip()


def markdown(c: Comparison) -> str:
    """For a pull request comment: the answer, the summary, and all figures folded."""
    lines = []
    if c.unlike:
        lines += [f"> **{escape_markdown(warning(c))}**", ""]
    lines += [f"**{escape_markdown(headline(c))}**", ""]
    lines += [*aligned(summary_rows(c)), ""]
    lines += [escape_markdown(summary(c)), ""]
    lines += [f"<details><summary>{ALL_FIGURES}</summary>", ""]
    lines += [*aligned(_difference_rows(c)), ""]
    lines += ["</details>", ""]
    return "\n".join(lines)


def setting_row(setting: Setting) -> dict[str, str]:
    """Its figures at its own level: the knee, or the best of given ones; dashes without any."""
    row = {"Setting": setting.name}
    for metric, name in SETTING_COLUMNS.items():
        value, low, high = setting.figures.get(metric, NO_FIGURE)
        row[name] = Quantity(value, low, high).cell
        if metric == KNEE and metric in setting.figures:
            unit = unit_named(setting.unit)
            ends = f"{knee_text(low, unit)} to {knee_text(high, unit)}"
            knee = knee_text(value, unit)
            if math.isfinite(value):
                knee += f" {unit.short_many}"
            row[name] = f"{knee} ({ends})"
    row["Start, s"] = ", ".join(f"{seconds:.1f}" for seconds in setting.starts_s)
    row["Exit codes"] = ", ".join(map(str, setting.runs.values()))
    return row


def gain(c: Comparison) -> str:
    """`B against A: output tokens/s +20% (+15% to +26%), for 2.00 times the p95 ITL (ms) (...)`."""
    gains = []
    costs = []
    for difference in c.differences:
        if difference.metric in MORE_IS_BETTER:
            gains.append(_gain_text(difference))
        elif difference.metric in SETTING_COLUMNS:
            costs.append(_cost_text(difference))
    return f"{c.b} against {c.a}: {', '.join(gains)}, for {', '.join(costs)}"


def _gain_text(difference: Difference) -> str:
    """`output tokens/s +20.0% (+15.0% to +26.0%)`."""
    row = difference_row(difference)
    interval = row["95% interval"] + _doubt(difference)
    return f"{row['Figure']} {row['Change']} ({interval})"


def _cost_text(difference: Difference) -> str:
    """`2.00 times the p95 ITL (1.80 to 2.20)`."""
    name = _figure_name(difference).replace(" (ms)", "")
    interval = _interval_in_times(difference) + _doubt(difference)
    return f"{1 + difference.change:.2f} times the {name} ({interval})"


def _interval_in_times(difference: Difference) -> str:
    """The interval of a change as factors: `0.06 to 0.19`."""
    low, high = difference.ci95
    low_text = "" if low <= -1 else f"{1 + low:.2f}"
    high_text = "" if math.isinf(high) else f"{1 + high:.2f}"
    return _range_text(low_text, high_text)


def _doubt(difference: Difference) -> str:
    if difference.verdict in {Change.worse, Change.better}:
        return ""
    return ", not shown"


def settings_report(
    settings: Sequence[Setting],
    pairs: Sequence[Comparison],
    slos: Sequence[str],
    code: int,
    costs: Sequence[Coefficient] = (),
    *,
    deployed: DeploymentFindings | None = None,
) -> tuple[str, str]:
    """The text, which is Markdown too and begins with the headline; the page."""
    deployed = deployed or DeploymentFindings()
    measured = [setting.name for setting in settings if setting.figures]
    failed = [setting for setting in settings if setting.failure]
    failures = [f"{setting.name}: {one_line(setting.failure)}" for setting in failed]
    first = _best_sentence(settings, pairs, measured, slos)
    if deployed.best_rows:
        first = best_deployments(deployed.best_rows, slos)
    if len(measured) < FEWEST_COMPARED:  # the headline says why
        first = " ".join([first, *failures])
        failures = []
    more = dict.fromkeys(chain.from_iterable(deployed.columns.values()), UNKNOWN)
    setting_rows = [
        setting_row(one) | more | deployed.columns.get(one.name, {}) for one in settings
    ]
    setting_rows = _without_unused_columns(setting_rows)
    cost_tables = _cost_tables(settings, costs)
    if deployed.best_rows:
        cost_tables = {BEST_TABLE: deployed.best_rows, **cost_tables}
    step_tables = _step_tables(measured, pairs)

    lines = [first, ""]
    lines += [*aligned(setting_rows, one_line), ""]
    for title, rows in cost_tables.items():
        lines += [f"{title}:", ""]
        lines += [*aligned(rows, one_line), ""]
    lines += [*deployed.sentences, *failures, *step_tables, ""]

    sentences = ("", first, " ".join([*deployed.sentences, *failures]))
    tables = {"Settings": setting_rows, **cost_tables, **step_tables}
    chart = settings_chart(settings)
    return "\n".join(lines), page(badge_of(code, missed="SLO missed"), sentences, tables, chart)


def best_deployments(rows: Sequence[Mapping[str, str]], slos: Sequence[str]) -> str:
    """The headline: the first row of each load, which is that of the most users per GPU."""
    words = []
    for among in dict.fromkeys(row["With"] for row in rows):
        row = next(row for row in rows if row["With"] == among)
        with_load = f" with {among}" if len(rows) > MOST_GOALS else ""
        tie = row["Not shown to beat"]
        doubt = f" (not shown to beat {tie})" if tie != "-" else ""
        words.append(f"{row['Deployment']}{with_load}, {row['Figure']}{doubt}")
    return f"{rows[0]['Best for']} for {' and '.join(slos) or 'throughput'}: {'; '.join(words)}."


def _best_sentence(
    settings: Sequence[Setting],
    pairs: Sequence[Comparison],
    measured: Sequence[str],
    slos: Sequence[str],
) -> str:
    """The best of the settings that were measured, and those not shown to be worse."""
    if not measured:
        return "Nothing to compare: none of the settings was measured."
    if len(measured) < FEWEST_COMPARED:
        return f"Nothing to compare: only {measured[0]} was measured."
    if not pairs:
        return "Nothing to compare: no two settings were measured with the same load."
    best, ties = best_setting(settings, pairs)
    if len(ties) == len(measured) - 1:
        return f"No difference shown between {' and '.join(measured)}."
    sentence = f"Best for {' and '.join(slos) or 'throughput'}: {best}."
    if ties:
        sentence += f" No difference to {', '.join(ties)} is shown."
    return sentence


def _without_unused_columns(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    for name in OPTIONAL_COLUMNS:
        if all(row[name] in {"", UNKNOWN} for row in rows):
            for row in rows:
                del row[name]
    return rows


def _cost_tables(
    settings: Sequence[Setting], costs: Sequence[Coefficient]
) -> dict[str, list[dict[str, str]]]:
    """`By length, at 16 users` -> what a latency grows by; {} where no length was varied."""
    if not costs:
        return {}
    load = costs[0].load
    unit = unit_named(settings[0].unit)
    rows = []
    for cost in costs:
        value = Quantity(cost.value, *cost.ci95).cell
        rows.append({"Figure": cost.name, "Value": value, "Meaning": cost.meaning})
    return {f"By length, at {load:g} {unit.short_noun(load)}": rows}


def _step_tables(
    measured: Sequence[str], pairs: Sequence[Comparison]
) -> dict[str, list[dict[str, str]]]:
    """What each setting gains over the one measured before it -> their differences."""
    in_turn = set(pairwise(measured))
    steps = [c for c in pairs if (c.a, c.b) in in_turn and c.differences]
    return {gain(step): _named_rows(step) for step in steps}


def _named_rows(step: Comparison) -> list[dict[str, str]]:
    """With the names of the settings at the heads of their columns."""
    heads = {"A": step.a, "B": step.b}
    rows = _difference_rows(step)
    return [{heads.get(name, name): cell for name, cell in row.items()} for row in rows]


def settings_chart(settings: Sequence[Setting]) -> Chart | None:
    """The knee, or throughput, and both latencies of each setting; None with fewer than two."""
    shown = [setting for setting in settings if setting.figures]
    if len(shown) < FEWEST_COMPARED:
        return None
    searched = any(KNEE in setting.figures for setting in shown)
    load = KNEE if searched else "output_tokens_per_s"
    panels = [_setting_panel(metric, shown) for metric in (load, "ttft_p95", "itl_p95")]
    variable, labels = _axis_texts([setting.name for setting in shown])
    x = Axis(variable, scale=Scale.names, names=labels)
    return Chart(
        "settings", "The figures of each setting, with 95% intervals", panels, x, wide=True
    )


def _axis_texts(names: Sequence[str]) -> tuple[str, list[str]]:
    """What varies, and the label of each setting: `max-num-seqs` and 8, 16, ... where all set it.

    The numbers of their rows, where the labels would overlap.
    """
    variable = "setting"
    labels = list(names)
    flag = names[0].partition("=")[0]
    start = f"{flag}="
    set_one_option = all(name.count("=") == 1 for name in names)
    if set_one_option and all(name.startswith(start) for name in names):
        variable = flag
        labels = [name.removeprefix(start) for name in names]
    longest = max(map(len, labels))
    if longest * TICK_PX * len(labels) > MAX_LABELS_PX:
        variable = f"row of the table ({variable})"
        labels = [str(number) for number in range(1, len(labels) + 1)]
    return variable, labels


def _setting_panel(metric: str, settings: Sequence[Setting]) -> Panel:
    title = SETTING_COLUMNS[metric]
    unit = "ms"
    if metric == KNEE:
        unit = settings[0].unit
        title += f", {unit}"
    elif metric in MORE_IS_BETTER:
        unit = ""
    points = []
    for place, setting in enumerate(settings):
        value, low, high = setting.figures.get(metric, NO_FIGURE)
        if math.isfinite(value):  # else it has no place on the axis; the table says it
            points.append(Point(place, value, low, high, note=setting.name))
    name = METRIC_NAMES.get(metric) or title.partition(",")[0]
    through = line("", Color.muted, [(point.x, point.y) for point in points], width_px=1)
    series = [through, Series(name, Color.blue, points, Shape.points)]
    y = Axis(unit=unit, low=_lowest(points))
    return Panel(series, y, title, height_px=SETTING_PX)


def _lowest(points: Sequence[Point]) -> float:
    """Where the axis begins: the points differ by less than their distance from zero."""
    ends = [end for point in points for end in (point.y, point.low, point.high)]
    known = [end for end in ends if math.isfinite(end)]
    if not known:
        return 0
    margin = MARGIN * (max(known) - min(known)) or 1
    return max(min(known) - margin, 0)


def changes_chart(c: Comparison) -> Chart | None:
    """The change of each figure of the summary with its interval; None where none has one."""
    shown = [d for d in _summarized(c) if d.metric != ERROR_SHARE and math.isfinite(d.change)]
    if not shown:
        return None
    points: dict[Change, list[Point]] = {}
    for place, difference in enumerate(shown):
        low, high = (100 * end for end in difference.ci95)
        note = _verdict_text(difference)
        point = Point(place, 100 * difference.change, low, high, note=note)
        points.setdefault(difference.verdict, []).append(point)
    series = []
    for verdict, some in points.items():
        color = VERDICT_COLORS.get(verdict, Color.muted)
        series.append(Series(verdict.replace("_", " "), color, some, Shape.points))
    x = Axis(scale=Scale.names, names=[_figure_name(difference) for difference in shown])
    y = Axis("change from A to B, %", unit="%")
    none = Limit(0, "", Color.ink, dash=Dash.solid)
    panel = Panel(series, y, limits=[none], height_px=20 + CHANGE_PX * len(shown))
    title = "What changed from A to B, with 95% intervals"
    return Chart("changes", title, [panel], x, sideways=True, wide=True)


def html(c: Comparison) -> str:
    lines = (warning(c), headline(c), summary(c))
    tables = {"Summary": summary_rows(c), ALL_FIGURES: _difference_rows(c)}
    return page(badge_of(c.exit_code, missed="worse"), lines, tables, changes_chart(c))


def page(
    badge: tuple[str, str],
    lines: Sequence[str],
    tables: Mapping[str, Sequence[Mapping[str, str]]],
    chart: Chart | None = None,
) -> str:
    """`lines`: a warning or "", the headline, the small print."""
    shown = {"badge": badge, "lines": lines, "tables": tables, "chart": chart}
    return render("compare.html.j2", **shown, folded=(ALL_FIGURES,), **page_parts())


def badge_of(code: int, missed: str) -> tuple[str, str]:
    """The tone and the text of an exit code's badge; `missed`: what 99 means here."""
    words = {EXIT_OK: "ok", EXIT_INCONCLUSIVE: "inconclusive", EXIT_SLO_MISSED: missed}
    text = f"exit code {code}"
    if code in words:
        text = f"{words[code]} (exit code {code})"
    return BADGE_TONES.get(code, "unsure"), text


def _called(c: Comparison, verdict: Change) -> list[Difference]:
    return [d for d in c.differences if d.verdict is verdict]


def _difference_rows(c: Comparison) -> list[dict[str, str]]:
    return [difference_row(d) for d in c.differences]
