"""The report's curves: each level has its p95, hollow where weak; nothing undecided is red."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from measure_tables import record, table

from harness.charts.definition import Chart, Color, Point, Shape
from harness.charts.draw import draw
from harness.core.states import Decision, Verdict
from harness.metrics.latency_figures import blocked_windows
from harness.metrics.result import Knee, KneeCurve, Latency, Level, Result, SloResult
from harness.metrics.scan import scan
from harness.metrics.token_gaps import WindowGapCounter
from harness.records.folder_reader import Damage, Run
from harness.records.record_table import concat_tables
from harness.records.samples import GpuSample, ServerSample
from harness.report.curves import around_knee, curve_chart, knee_charts
from harness.report.distributions import distribution_charts
from harness.report.report_data import ReportData
from harness.report.timeline import timeline_chart
from harness.units import SECOND

SLO = SloResult("ttft_p95=500ms", Verdict.met)
FIRM = (390.0, 410.0)
WIDE = (200.0, 500.0)
OPEN_END = (390.0, nan)


def level(
    users: int,
    decision: Decision = Decision.inconclusive,
    p95: float = 400.0,
    ci95: tuple[float, float] = FIRM,
    slos: tuple[SloResult, ...] = (),
) -> Level:
    """One hold, all of whose latencies are alike."""
    seen = Latency(n=300, p50=p95 / 2, p95=p95, p95_ci95=ci95)
    return Level(
        0,
        users,
        decision=decision,
        latencies={"ttft_ms": seen, "itl_ms": seen, "e2e_ms": seen},
        slos=slos,
        output_tokens_per_s=100.0 * users,
        goodput_per_s=float(users),
    )


def facts(*levels: Level, knee: Knee | None = None) -> ReportData:
    """A run of these levels, with an SLO on the p95 TTFT."""
    run = Run(Path(), {}, concat_tables([]), [], [], [], [], [], Damage())
    return ReportData(run, Result(levels=levels, knee=knee, slos=(SLO,)))


def marked(chart: Chart | None) -> list[tuple[Color, Point]]:
    """Each point that stands for a level, with its color."""
    assert chart is not None
    return [
        (series.color, point)
        for series in chart.panels[0].series
        if series.shape == Shape.points
        for point in series.points
    ]


@pytest.mark.parametrize(
    ("held", "color", "hollow"),
    [
        (level(8, Decision.passed), "blue", False),
        (level(8, Decision.failed), "red", False),
        (level(8, Decision.inconclusive), "muted", False),
        (level(8, Decision.inconclusive, 900.0, (890.0, 910.0)), "muted", False),  # over it
        (level(8, Decision.passed, ci95=WIDE), "blue", True),
        (level(8, Decision.failed, ci95=OPEN_END), "red", True),
        (level(8, Decision.held), "ink", False),
        (level(8, Decision.held, slos=(SLO,)), "blue", False),
        (level(8, Decision.held, slos=(SloResult("x", Verdict.missed), SLO)), "red", False),
        (
            level(8, Decision.held, 900.0, slos=(SloResult("x", Verdict.inconclusive),)),
            "muted",
            False,
        ),
    ],
)
def test_a_point(held: Level, color: str, hollow: bool) -> None:
    """Its color is what was decided, also where its p95 is over the limit; hollow: weak."""
    ((got, point),) = marked(curve_chart(facts(held), "ttft"))
    assert (got, point.hollow) == (color, hollow)
    assert (point.x, point.y, point.n) == (8, held.ttft_ms.p95, 300)


def test_an_interval_without_an_upper_end() -> None:
    """It is infinite, so that the drawing ends it in an arrow."""
    ((_, point),) = marked(curve_chart(facts(level(8, ci95=OPEN_END)), "ttft"))
    assert (point.low, point.high) == (OPEN_END[0], inf)


def test_failures_have_no_height() -> None:
    """A p95 that failed requests make infinite is a triangle at the top."""
    failed = level(8, Decision.failed, inf, (300.0, inf))
    chart = curve_chart(facts(level(4), failed), "ttft")
    assert (Color.red, inf) in [(color, point.y) for color, point in marked(chart)]
    assert_is_drawn(chart)


@pytest.mark.parametrize("p95", [0.0, 400.0])
def test_a_latency_of_zero(p95: float) -> None:
    """A log axis has no place for it, so it is left out; a request cut off at once may have one."""
    held = level(4, p95=p95, ci95=(p95, p95))
    zero = Latency(n=1, p50=0.0, p95=0.0, p95_ci95=(0.0, 0.0))
    nothing = replace(held, users=8, latencies=held.latencies | {"ttft_ms": zero})
    for levels in ((held, nothing), (nothing,)):
        assert_is_drawn(curve_chart(facts(*levels), "ttft"))


def assert_is_drawn(chart: Chart | None) -> None:
    """To SVG in the page's colors, in which every number is one."""
    assert chart is not None
    svg = draw(chart, titled=True)
    assert ET.fromstring(svg).tag.endswith("svg")  # noqa: S314 - our own
    assert [word for word in ("NaN", "Infinity", "undefined") if word in svg] == []
    assert set(re.findall(r"var\(--(\w+)\)", svg)) <= {*Color, "card"}
    assert set(re.findall(r"#[0-9a-fA-F]{3,6}\b", svg)) <= {"#000"}  # of clip paths


@pytest.mark.parametrize(
    ("events", "want"),
    [
        ([100.0, 100.0, 100.0], ["ttft"]),  # in one read: no gap is above zero
        ([100.0, 100.0, 120.0], ["ttft", "itl"]),
        ([], []),
    ],
)
def test_gaps_of_zero(events: list[float], want: list[str]) -> None:
    """The share of them is part of a curve, but they alone are none: its axis is logarithmic."""
    seen = table(record(0, 0, events, 200))
    span = 0, SECOND
    gaps = WindowGapCounter(seen, blocked_windows(seen, [span])[0])
    scan(seen, [gaps])
    held = replace(level(1), settled_ns=span[0], end_ns=span[1])
    untold = facts(held)
    run = replace(untold.run, table=seen)
    drawn = distribution_charts(replace(untold, run=run, gaps={span: gaps}))
    assert [chart.name for chart in drawn] == [f"spread-{name}" for name in want]
    for chart in drawn:
        assert_is_drawn(chart)


@pytest.mark.parametrize(
    ("users", "want"),
    [
        ((20,), ["20"]),  # of a single level, and no power of two near it
        ((4, 8, 40), ["4", "8", "40"]),
        ((1, 2, 4, 8, 16, 32, 64, 48), ["1", "2", "4", "8", "16", "32", "48", "64"]),
        ((64, 65, 640), ["64", "640"]),  # two of them would overlap
    ],
)
def test_ticks_are_at_levels(users: tuple[int, ...], want: list[str]) -> None:
    """Each level has one, as far as there is room."""
    chart = curve_chart(facts(*map(level, users)), "throughput")
    assert chart is not None
    svg = draw(chart, titled=False)
    texts = re.findall(r"<text [^>]*text-anchor=\"middle\"[^>]*>([\d,]+)</text>", svg)
    assert texts == want


NEAR = (level(34, Decision.passed), level(36), level(38), level(36))
KNEE = Knee(holds=34, estimate=36, fails_by=40, ci95=(34, 38))


@pytest.mark.parametrize(
    ("knee", "levels", "want"),
    [
        (KNEE, (level(1), *NEAR, level(64)), True),
        (KNEE, (level(1), level(34), level(64)), False),  # no crowd
        (Knee(), NEAR, False),  # no estimate
        (None, NEAR, False),  # levels that were given
    ],
)
def test_the_surroundings_of_the_knee(
    knee: Knee | None, levels: tuple[Level, ...], want: bool
) -> None:
    """A wide chart shows them where many holds lie near the knee, which is in the middle."""
    chart = around_knee(facts(*levels, knee=knee))
    assert (chart is not None) == want
    if chart is None:
        return
    low, high = chart.zoom or (nan, nan)
    assert (low + high) / 2 == 36
    assert low < 34
    assert high > 40
    svg = draw(chart, titled=True)
    assert [name for name in ("holds 34", "fails at 40", "SLO p95 500 ms") if name not in svg] == []
    assert_is_drawn(chart)


@pytest.mark.parametrize(
    ("p95", "want"),
    [(400.0, "SLO p95 500 ms"), (20.0, "SLO p95 500 ms: far above"), (900.0, "SLO p95 500 ms")],
)
def test_the_line_of_an_slo(p95: float, want: str) -> None:
    """Far above everything it would flatten the curve, so it is only named."""
    held = level(4, p95=p95, ci95=(p95 * 0.9, p95 * 1.1))
    chart = curve_chart(facts(held), "ttft")
    assert chart is not None
    assert re.findall(r">(SLO [^<]*)</text>", draw(chart, titled=False)) == [want]


@pytest.mark.parametrize(("limit", "want"), [(300.0, True), (50.0, False), (900.0, False)])
def test_the_knee_at_other_limits(limit: float, want: bool) -> None:
    """No chart whose own limit lies outside of its range."""
    curve = KneeCurve("ttft_p95", limit, ((100.0, 8, 7, 9), (500.0, 16, 14, 18)))
    charts = knee_charts(facts(*NEAR, knee=replace(KNEE, curves=(curve,))))
    assert len(charts) == want
    for chart in charts:
        assert_is_drawn(chart)


TWO_GPUS = [
    GpuSample(at * SECOND, gpu, util_pct=80.0, power_w=400.0) for at in range(5) for gpu in (0, 1)
]


@pytest.mark.parametrize(
    ("samples", "want"),
    [
        ([], ["Requests in flight"]),
        (TWO_GPUS, ["Requests in flight", "GPU utilization, %", "GPU power, W"]),
        ([GpuSample(SECOND, 0, util_pct=80.0)], ["Requests in flight", "GPU utilization, %"]),
    ],
)
def test_gpus_over_time(samples: list[GpuSample], want: list[str]) -> None:
    """What was read of the GPUs has a panel below the requests."""
    seen = facts(level(8))
    chart = timeline_chart(replace(seen, run=replace(seen.run, gpu=samples)))
    assert chart is not None
    assert [panel.title for panel in chart.panels] == want
    assert_is_drawn(chart)


@pytest.mark.parametrize(("kv_usage", "want"), [(0.0, []), (0.005, []), (0.2, [nan]), (0.6, [100])])
def test_a_cache_that_is_never_used_has_no_panel(kv_usage: float, want: list[float]) -> None:
    """A flat line at zero takes no room; the axis ends at 100% where that is near."""
    seen = facts(level(8))
    samples = [ServerSample(at * SECOND, kv_usage=kv_usage) for at in range(3)]
    chart = timeline_chart(replace(seen, run=replace(seen.run, server=samples)))
    assert chart is not None
    ends = [panel.y.high for panel in chart.panels if panel.title.startswith("KV cache")]
    assert ends == pytest.approx(want, nan_ok=True)
