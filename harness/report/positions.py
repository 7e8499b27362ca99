"""ITL by token position, of the level that stands for the run: a table, a curve and a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from harness.charts.definition import Axis, Chart, Color, Dash, Panel, Scale, line
from harness.metrics.numbers import Quantity, decimal_places, format_number
from harness.metrics.token_positions import (
    LEAST_REQUESTS,
    POSITIONS,
    PositionFigures,
    PositionRow,
)

if TYPE_CHECKING:
    from harness.report.report_data import ReportData

LEAST_POINTS: Final = 4  # fewer make no curve
HOW_TO_READ: Final = (
    "n: gaps that end at a token within 10% of that position, of all requests. The last column "
    "compares means within the requests that have tokens around both positions, with the 95% "
    "interval of the difference, as answers that end early are in the first rows alone."
)


def positions_of(facts: ReportData) -> PositionFigures:
    level = facts.result.at_knee
    return level.positions if level is not None else PositionFigures()


def position_rows(facts: ReportData) -> list[dict[str, str]]:
    """A row for each position with enough tokens; [] where answers are short."""
    return [_cells(row) for row in positions_of(facts).rows]


def _cells(row: PositionRow) -> dict[str, str]:
    return {
        "Around token": f"{row.position:,}",
        "n": f"{row.n:,}",
        "ITL p50, ms": format_number(row.p50_ms),
        "ITL p95, ms": format_number(row.p95_ms),
        "Mean ITL above the 10th's, ms": _difference(row) if row.is_compared else "",
    }


def _difference(row: PositionRow) -> str:
    """`+1.50 (+1.05 to +1.95)`."""
    low_ms, high_ms = row.later_ci95_ms
    decimals = max(decimal_places(row.later_ms, low_ms, high_ms), 0)
    number = f"+,.{decimals}f"
    return f"{row.later_ms:{number}} ({low_ms:{number}} to {high_ms:{number}})"


def position_note(facts: ReportData) -> str:
    """Whether late tokens are slower; ""."""
    return position_sentence(positions_of(facts))


def position_chart(facts: ReportData) -> Chart | None:
    """p95 and median by position; None for too few points."""
    curve = positions_of(facts).curve
    if len(curve) < LEAST_POINTS:
        return None
    # the geometric middle of each range, as the axis is logarithmic
    positions = [(point.first * point.last) ** 0.5 for point in curve]
    p95_ms = [point.p95_ms for point in curve]
    p50_ms = [point.p50_ms for point in curve]
    p95 = line("p95", Color.blue, zip(positions, p95_ms, strict=True))
    p50 = line("median", Color.muted, zip(positions, p50_ms, strict=True), dash=Dash.dotted)
    x = Axis("position of the token in its answer", scale=Scale.log, one="token")
    panel = Panel([p95, p50], Axis(unit="ms", low=0))
    return Chart("positions", "ITL by token position, ms", [panel], x)


def position_sentence(figures: PositionFigures) -> str:
    """Whether late tokens are slower, by the farthest position that can be compared.

    "" without late tokens.
    """
    later = [row for row in figures.rows if row.position != POSITIONS[0]]
    compared = [row for row in later if row.is_compared]
    if compared:
        return _comparison(compared[-1])
    if later:
        most = max(later, key=lambda row: row.requests)
        return (
            f"Whether late tokens are slower is not known: that takes {LEAST_REQUESTS} requests "
            f"with measured tokens around both token {POSITIONS[0]} and token {most.position:,} "
            f"(there: {most.requests:,})."
        )
    return ""


def _comparison(late: PositionRow) -> str:
    low_ms, high_ms = late.later_ci95_ms
    nearest_ms, farthest_ms = sorted((abs(low_ms), abs(high_ms)))
    mean = f"around token {late.position:,} the mean ITL is"
    early = f"around token {POSITIONS[0]} of the same {late.requests:,} requests"
    difference = Quantity(abs(late.later_ms), nearest_ms, farthest_ms, "ms")
    if late.is_slower:
        return f"Late tokens are slower: {mean} {difference} longer than {early}."
    if late.is_faster:
        return f"Late tokens are faster: {mean} {difference} shorter than {early}."
    most = Quantity(farthest_ms, unit="ms")
    return f"Late tokens are not shown to be slower: {mean} within {most} of that {early}."
