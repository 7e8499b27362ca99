"""Gaps beside prompts, and how requests came, from small tables."""

from __future__ import annotations

import pytest
from measure_tables import MS, SECOND, record, table

from harness.diagnosis.interference import arrival_figures, gap_figures
from harness.metrics.level_figures import ArrivalFigures, GapFigures

END = 4 * SECOND


def steps(long_ms: float, every: int) -> list[float]:
    """Token times of one request: 10 ms a step, each `every`-th one is longer."""
    at = 0.0
    times = []
    for i in range(200):
        at += long_ms if i % every == every - 1 else 10
        times.append(at)
    return times


def test_gaps_with_a_prompt_in_their_step_are_longer() -> None:
    """Each fifth step computes somebody's prompt and takes 30 ms instead of 10."""
    times = steps(30, 5)
    prompts = [record(i + 1, at - 35, [at]) for i, at in enumerate(times[4::5])]
    got = gap_figures(table(record(0, -10, times), *prompts), 0, END)
    assert got.alone_p50_ms == 10
    assert got.alone_p95_ms == 10
    assert got.beside_p50_ms == 30
    assert got.prompt_share == pytest.approx(0.2, abs=0.01)
    assert got.longest_prompt_share == 1
    assert got.late_share == 0
    assert got.base_ms == pytest.approx(10)
    assert got.correlation == pytest.approx(1)


def test_a_prompt_cut_into_steps_is_beside_all_of_them() -> None:
    """Its first token comes with the second of two long steps; it was computed in both."""
    at = 0.0
    times = []
    firsts = []
    for i in range(200):
        at += 30 if i % 10 >= 8 else 10
        times.append(at)
        if i % 10 == 9:
            firsts.append(at)
    prompts = [record(i + 1, first - 70, [first]) for i, first in enumerate(firsts)]
    rows = table(record(0, -10, times), *prompts)
    assert gap_figures(rows, 0, END).alone_p95_ms == 30
    assert gap_figures(rows, 0, END, 0.06).alone_p95_ms == 10


def test_events_sent_late() -> None:
    """Each tenth token waits 8 ms for its sender: the next one follows in 2 ms."""
    times = [10.0 * i + (8 if i % 10 == 5 else 0) for i in range(200)]
    got = gap_figures(table(record(0, -10, times)), 0, END)
    assert got.late_share == pytest.approx(0.1, abs=0.01)


def test_too_few_gaps_say_nothing() -> None:
    """No share of three gaps."""
    assert gap_figures(table(record(0, 0, [10, 20, 30])), 0, END) == GapFigures()
    assert arrival_figures(table(record(0, 0, [10])), 0, END) == ArrivalFigures()


@pytest.mark.parametrize(
    ("sent", "least", "most"),
    [
        ([20.0 * i for i in range(200)], 0, 0.1),  # one each 20 ms
        ([400.0 * (i // 20) for i in range(200)], 10, 20),  # twenty at once each 400 ms
    ],
)
def test_dispersion_of_arrivals(sent: list[float], least: float, most: float) -> None:
    """Even arrivals have none, bursts of twenty have about twenty less what bins share."""
    rows = table(*(record(i, at, [at + 5]) for i, at in enumerate(sent)))
    assert least <= arrival_figures(rows, 0, END).dispersion <= most


def test_tokens_of_one_event_are_late() -> None:
    """Several tokens in one event were not made at one time."""
    rows = table(record(0, 0, [10.0 * i for i in range(50)], tokens=[1, 2] * 25))
    assert gap_figures(rows, 0, 500 * MS).late_share == pytest.approx(0.5, abs=0.02)
