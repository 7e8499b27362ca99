"""The live page's charts: the search as it narrows, the levels, and what each second fills."""

from __future__ import annotations

from math import inf, isnan
from typing import Any

import pytest

from harness.charts.definition import Chart, Color, Scale, Shape
from harness.core.states import Decision
from harness.export.live_charts import by_level, live_charts, over_time
from harness.export.live_state import COLUMNS, LiveState

SLOS = [
    {"key": "ttft", "statistic": "p95", "limit": 500.0, "unit": "ms", "limit_ms": 500.0},
    {"key": "tpot", "statistic": "p90", "limit": 20.0, "unit": "ms", "limit_ms": 20.0},
]


def step(users: int, decision: Decision, p95_ms: list[Any], bracket: list[Any]) -> dict[str, Any]:
    """A level that ended, ten seconds for each user."""
    return {
        "users": users,
        "decision": decision,
        "result": "as told",
        "from_s": 10.0 * users - 5,
        "to_s": 10.0 * users,
        "bracket": bracket,
        "ttft_p95_ms": p95_ms,
        "itl_p95_ms": [12.0, 11.0, None],
    }


STEPS = [
    step(8, Decision.passed, [100.0, 90.0, 120.0], [8, None]),
    step(16, Decision.failed, ["inf", 400.0, None], [8, 16]),
    step(12, Decision.inconclusive, [None, None, None], [8, 16]),
]
SEARCH = {"searches": True, "decides": True, "slos": SLOS, "steps": STEPS, "bracket": [8, 16]}


def panels(chart: Chart) -> list[str]:
    return [panel.title for panel in chart.panels]


def test_one_axis_for_the_run() -> None:
    """Headlines, and what has an SLO; the server below, on the same time."""
    chart = over_time(SEARCH)
    assert chart.x.scale == Scale.time
    assert panels(chart) == [
        "TTFT of the last 10 s, ms",
        "ITL of the last 10 s, ms",
        "TPOT of the last 10 s, ms",
        "Users (concurrent requests)",
        "Output tokens/s",
        "Requests on the server",
        "KV cache in use, %",
    ]
    columns = {series.column for panel in chart.panels for series in panel.series} - {""}
    assert columns <= set(COLUMNS)
    (limit,) = chart.panels[0].limits
    assert (limit.at, limit.name) == (500, "SLO p95 500 ms")


def test_the_promise_narrows() -> None:
    """After each level: the highest that holds, the lowest that fails."""
    users = over_time(SEARCH).panels[3]
    lines = {one.name: one.points for one in users.series if one.shape == Shape.steps}
    holds, fails = lines["holds"], lines["fails at"]
    assert [(point.x, point.y) for point in holds] == [(80, 8), (160, 8), (120, 8)]
    assert isnan(fails[0].y)
    assert [point.y for point in fails[1:]] == [16, 16]


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        ({}, False),  # nothing has begun
        ({"slos": SLOS}, False),  # levels that are given
        ({"unit": "requests/s", "searches": True, "decides": True}, True),
    ],
)
def test_levels_of_another_unit_have_a_panel(facts: dict[str, Any], want: bool) -> None:
    """Requests per second are no users."""
    titles = panels(over_time(facts))
    assert ("Levels, requests/s" in titles) == want


def test_levels_with_the_one_that_is_held() -> None:
    """Of each headline; a level without the figure is not there."""
    ttft, itl = by_level(SEARCH)
    assert (ttft.name, itl.name) == ("ttft-by-level", "itl-by-level")
    series = {one.name: one for one in ttft.panels[0].series}
    assert list(series) == ["mean", "passed", "failed", "held now (last 10 s)"]
    assert series["failed"].points[0].y == inf
    assert series["held now (last 10 s)"].column == "ttft_p95_ms"
    names = {limit.name: limit.color for limit in ttft.panels[0].limits}
    assert names == {
        "SLO p95 500 ms": Color.ink,
        "holds 8": Color.green,
        "fails at 16": Color.red,
    }


def test_the_end_has_the_knee() -> None:
    """Its estimate with the interval; nothing is held any more."""
    facts = SEARCH | {"over": True, "knee": [10, 8, 13], "holds": 8}
    ttft, _ = by_level(facts)
    (band,) = ttft.panels[0].bands
    assert (band.low, band.high) == (8, 13)
    assert "held now (last 10 s)" not in [one.name for one in ttft.panels[0].series]


def test_the_page_gets_them_with_its_facts() -> None:
    """And not again while these do not change."""
    state = LiveState({"searches": False})
    first = state.changes_since()
    assert first["facts"]["charts"] == live_charts(state.facts)
    assert "facts" not in state.changes_since(first["cursor"])
