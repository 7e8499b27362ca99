"""The report's curves: each level has its p95, hollow where weak; nothing undecided is red."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest
from measure_tables import record, table

from harness.core.states import Decision, Verdict
from harness.metrics.latency_figures import blocked_windows
from harness.metrics.result import Knee, Latency, Level, Result, SloResult
from harness.metrics.scan import scan
from harness.metrics.token_gaps import WindowGapCounter
from harness.records.folder_reader import Damage, Run
from harness.records.record_table import concat_tables
from harness.records.samples import GpuSample
from harness.report.curves import curve_chart, curve_charts, metric_around_knee
from harness.report.distributions import distribution_charts
from harness.report.report_data import ReportData
from harness.report.svg import VARIABLES
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


def points(svg: str) -> list[tuple[str, str]]:
    """(color, fill) of each marker that stands for a level."""
    style = r"<use [^>]*style=\"fill: var\(--(\w+)\); stroke: var\(--(\w+)\)"
    return [(edge, fill) for fill, edge in re.findall(style, svg)]


@pytest.mark.parametrize(
    ("held", "color", "fill"),
    [
        (level(8, Decision.passed), "blue", "blue"),
        (level(8, Decision.failed), "red", "red"),
        (level(8, Decision.inconclusive), "muted", "muted"),
        (level(8, Decision.inconclusive, 900.0, (890.0, 910.0)), "muted", "muted"),  # over it
        (level(8, Decision.passed, ci95=WIDE), "blue", "card"),
        (level(8, Decision.failed, ci95=OPEN_END), "red", "card"),
        (level(8, Decision.held), "ink", "ink"),
        (level(8, Decision.held, slos=(SLO,)), "blue", "blue"),
        (level(8, Decision.held, slos=(SloResult("x", Verdict.missed), SLO)), "red", "red"),
        (
            level(8, Decision.held, 900.0, slos=(SloResult("x", Verdict.inconclusive),)),
            "muted",
            "muted",
        ),
    ],
)
def test_a_point(held: Level, color: str, fill: str) -> None:
    """Its color is what was decided, also where its p95 is over the limit; hollow: weak."""
    assert points(curve_chart(facts(held), "ttft"))[-1] == (color, fill)


def test_failures_have_no_height() -> None:
    """A p95 that failed requests make infinite is a triangle at the top."""
    failed = level(8, Decision.failed, inf, (300.0, inf))
    svg = curve_chart(facts(level(4), failed), "ttft")
    assert ("red", "red") in points(svg)
    assert "inf" not in svg
    assert "nan" not in svg


@pytest.mark.parametrize("p95", [0.0, 400.0])
def test_a_latency_of_zero(p95: float) -> None:
    """A log axis has no place for it, so it is left out; a request cut off at once may have one."""
    held = level(4, p95=p95, ci95=(p95, p95))
    zero = Latency(n=1, p50=0.0, p95=0.0, p95_ci95=(0.0, 0.0))
    nothing = replace(held, users=8, latencies=held.latencies | {"ttft_ms": zero})
    for levels in ((held, nothing), (nothing,)):
        svg = curve_chart(facts(*levels), "ttft")
        assert "curve-ttft" in svg
        assert "nan" not in svg
        assert "inf" not in svg


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
    names = [name for svg in drawn for name in ("ttft", "itl") if f"spread-{name}" in svg]
    assert names == want


@pytest.mark.parametrize(
    ("users", "want"),
    [
        ((20,), ["20"]),  # of a single level, and no power of two near it
        ((4, 8, 40), ["4", "8", "40"]),
        ((1, 2, 4, 8, 16, 32, 64, 48), ["1", "2", "4", "8", "16", "32", "64"]),
        ((64, 65), ["64"]),  # they would overlap
    ],
)
def test_ticks_are_at_levels(users: tuple[int, ...], want: list[str]) -> None:
    """Few levels have a tick each; of many, the powers of two."""
    svg = curve_chart(facts(*map(level, users)), "throughput")
    ticks = re.search(r"throughput-matplotlib.axis_1\"(.*?)concurrent requests", svg, re.DOTALL)
    assert ticks is not None
    assert re.findall(r">([\d,]+)</text>", ticks[1]) == want


NEAR = (level(34, Decision.passed), level(36), level(38), level(36))
KNEE = Knee(holds=34, estimate=36, fails_by=40, ci95=(34, 38))


@pytest.mark.parametrize(
    ("knee", "levels", "want"),
    [
        (KNEE, (level(1), *NEAR, level(64)), "ttft"),
        (KNEE, (level(1), level(34), level(64)), None),  # no crowd
        (Knee(), NEAR, None),  # no estimate
        (None, NEAR, None),  # levels that were given
    ],
)
def test_the_surroundings_of_the_knee(
    knee: Knee | None, levels: tuple[Level, ...], want: str | None
) -> None:
    """They have a panel of their own where many holds lie within 30% of the best estimate."""
    seen = facts(*levels, knee=knee)
    drawn = [svg for svg in curve_charts(seen) if "around the knee" in svg]
    assert metric_around_knee(seen) == want
    assert len(drawn) == (want is not None)
    for svg in drawn:
        assert "holds 34" in svg


# where the text begins or ends
@pytest.mark.parametrize(("holds", "side"), [(34, "start"), (38, "end")])
def test_the_label_of_the_knee(holds: int, side: str) -> None:
    """It stands on the side that has room."""
    knee = Knee(holds=holds, estimate=holds, ci95=(holds, holds))
    svg = curve_chart(facts(*NEAR, knee=knee), "ttft", around=True)
    (style,) = re.findall(r"<text style=\"([^\"]*)\"[^>]*>holds", svg)
    assert f"text-anchor: {side}" in style


@pytest.mark.parametrize(
    ("p95", "want"),
    [(400.0, "SLO p95 500 ms"), (20.0, "SLO p95 500 ms: far above"), (900.0, "SLO p95 500 ms")],
)
def test_the_line_of_an_slo(p95: float, want: str) -> None:
    """Far above everything it would flatten the curve, so it is only named."""
    held = level(4, p95=p95, ci95=(p95 * 0.9, p95 * 1.1))
    svg = curve_chart(facts(held), "ttft")
    assert re.findall(r">(SLO [^<]*)</text>", svg) == [want]
    assert set(VARIABLES.values()) >= set(re.findall(r"var\((--\w+)\)", svg))


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
    svg = timeline_chart(replace(seen, run=replace(seen.run, gpu=samples)))
    assert re.findall(r">(Requests in flight|KV [^<]*|GPU [^<]*)</text>", svg) == want
