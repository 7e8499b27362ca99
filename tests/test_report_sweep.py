"""What a sweep says of its levels: plateau, knee, where latency blows up, the GPU's use."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from harness.core.states import Decision
from harness.metrics.level_figures import GpuFigures, PlateauKnee, PowerKnee
from harness.metrics.result import Latency, Level, Result
from harness.report.curves import curve_charts
from harness.report.report_data import ReportData
from harness.report.sweep import GPU_USE, NOT_COUNTED, concurrency_rows, findings
from harness.report.write import level_row

USERS = (1, 4, 8, 16)
KNEE = "The knee, where throughput over latency peaks, is at 8 (4 to 16) users."
FLAT = "Throughput levels off, within 10% of its peak, at 8 users."
STEEP = "Latency blows up from 8 to 16 users: "
OF = "times the p95 end-to-end latency"
MORE = "for 1.05 times the tokens/s."
NEAR = "90% of the best throughput over latency."
PEAK = f"Sweet spot: 8 users; the levels next to it have less than {NEAR}"
SPOT = (
    "Sweet spot: 8 to 16 users (the highest level held, so it may reach further); each level there "
    f"has at least {NEAR}"
)
LESS = "At every step latency grows by less than throughput."
USE = "GPU utilization at 8 users is "


def sweep(
    tokens: tuple[float, ...],
    p95_ms: tuple[float, ...],
    width: float = 0.05,
    use: float = nan,
    command: str = "sweep",
    plateau: int = 8,
) -> ReportData:
    """Levels with these figures; each p95 has an interval of `width` to each side."""
    levels = []
    for i, (users, ms) in enumerate(zip(USERS, p95_ms, strict=True)):
        ci95 = (ms * (1 - width), ms * (1 + width))
        level = Level(
            i,
            users,
            decision=Decision.held,
            output_tokens_per_s=tokens[i],
            prompt_tokens_per_s=10,
            latencies={"e2e_ms": Latency(20, mean=ms / 2, p95=ms, p95_ci95=ci95)},
            gpu=GpuFigures(1, 9, util_pct_mean=use),
            requests_per_s=2,
        )
        levels.append(level)
    result = Result(
        command,
        levels=tuple(levels),
        power=PowerKnee(8, (4, 16), 1.0),
        plateau=PlateauKnee(plateau, (plateau, plateau), 1.0),
    )
    return ReportData(None, result)  # type: ignore[arg-type]


GROWS = (100.0, 390.0, 760.0, 800.0)


@pytest.mark.parametrize(
    ("facts", "want"),
    [
        # 1.9 times the latency for 800 / 760 times the tokens
        (sweep(GROWS, (500, 520, 560, 1064)), [PEAK, f"{STEEP}1.90 {OF} {MORE}"]),
        # 560 + 50% is above 1,064 - 50%
        (
            sweep(GROWS, (500, 520, 560, 1064), 0.5),
            [PEAK, f"{STEEP}1.90 {OF} (intervals overlap) {MORE}"],
        ),
        # requests fail with sixteen users: no p95
        (sweep(GROWS, (500, 520, 560, inf)), [PEAK, f"{STEEP}inf {OF} {MORE}"]),
        (sweep(GROWS, (500, 520, 560, 580)), [SPOT, LESS]),
        (sweep(GROWS, (500, 520, 560, 580), use=30.4), [SPOT, LESS, f"{USE}30%: {GPU_USE[50]}."]),
        (sweep(GROWS, (500, 520, 560, 580), use=50), [SPOT, LESS, f"{USE}50%: {GPU_USE[80]}."]),
        (sweep(GROWS, (500, 520, 560, 580), use=79.9), [SPOT, LESS, f"{USE}80%: {GPU_USE[80]}."]),
        (sweep(GROWS, (500, 520, 560, 580), use=100), [SPOT, LESS, f"{USE}100%: {GPU_USE[101]}."]),
    ],
)
def test_findings(facts: ReportData, want: list[str]) -> None:
    """From the figures alone, the sweet spot beside the knee; nothing of a GPU that is not read."""
    assert findings(facts) == [FLAT, KNEE, *want]


def test_throughput_that_still_grows() -> None:
    """Four times the users, four times the tokens."""
    facts = sweep((100, 400, 800, 1600), (500, 500, 500, 500), plateau=16)
    assert findings(facts)[0] == "Throughput still grows at 16 users."


def test_a_run_has_no_findings() -> None:
    """Nor a sweep of one level."""
    facts = sweep(GROWS, (500, 520, 560, 580))
    alone = ReportData(None, replace(facts.result, levels=facts.levels[:1]))  # type: ignore[arg-type]
    run = sweep(GROWS, (500, 520, 560, 580), command="run")
    assert findings(alone) == []
    assert findings(run) == []


def test_the_curves_of_a_gpu() -> None:
    """A panel of its own, only where a GPU was read."""
    without = curve_charts(sweep(GROWS, (500, 520, 560, 580)))
    read = curve_charts(sweep(GROWS, (500, 520, 560, 580), use=60))
    names = [chart.name for chart in without]
    assert [chart.name for chart in read] == [*names, "curve-gpu"]


def test_a_level_held_twice_is_one_row() -> None:
    """Means over its measurements, the outer ends of their intervals."""
    once = sweep(GROWS, (500, 520, 560, 580))
    again = sweep(GROWS, (700, 520, 560, 580))
    both = Result("sweep", levels=(*once.levels, *again.levels))
    row = concurrency_rows(ReportData(None, both))[0]  # type: ignore[arg-type]
    assert row["concurrency"] == 1
    assert row["measurements"] == 2
    assert row["p95_e2e_s"] == 0.6
    assert row["p95_e2e_s_lo"] == 0.475
    assert row["p95_e2e_s_hi"] == 0.735
    assert row["tok_s"] == 110


def test_notes_say_what_one_would_want_to_know() -> None:
    """Of each level: why it is invalid, errors, a rise of the p95, and the plateau."""
    facts = sweep(GROWS, (500, 520, 1092, 1200))
    one, four, eight, sixteen = facts.levels
    some_fail = replace(sixteen, n_failed=3, outcomes={"ok": 97, "status": 3})
    levels = (
        replace(some_fail, prompt_tokens_per_s=nan),
        replace(one, decision=Decision.invalid, reason="this client cannot tell"),
        replace(four, n_failed=1, outcomes={"ok": 999, "status": 1}),
        eight,
        replace(eight, decision=Decision.invalid, reason="the clock jumped."),
    )
    facts = ReportData(None, replace(facts.result, levels=levels))  # type: ignore[arg-type]
    notes = {row["concurrency"]: row["notes"] for row in concurrency_rows(facts)}
    again = "invalid (1 of 2): the clock jumped"
    assert set(notes) == {1, 4, 8, 16}
    assert notes[1] == "invalid: this client cannot tell"
    assert notes[4] == "errors below 1%"
    assert notes[8] == f"{again}; p95 2.1 times the level before; levels off here"
    assert notes[16] == f"errors 3%; {NOT_COUNTED}"


def test_tokens_per_second_are_the_same_in_both_files() -> None:
    """Prompt and output in `tok_s`, as readers of batching.json expect; output beside it."""
    facts = sweep(GROWS, (500, 520, 560, 580))
    row, *_ = concurrency_rows(facts)
    for written in (row, level_row(facts.levels[0])):
        assert written["tok_s"] == 110
        assert written["output_tok_s"] == 100
