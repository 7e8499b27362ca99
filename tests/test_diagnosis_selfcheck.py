"""The instrument's own uncertainty against the scale of the judgement, and the client's figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measure_tables import MS, record, table

from harness.core.load import Users
from harness.core.typed_json import to_json
from harness.diagnosis.instrument import (
    client_figures,
    instrument_sentence,
    quantile_uncertainties,
    turnarounds,
)
from harness.metrics.evidence import Window
from harness.metrics.slo import Slo
from harness.records.request_record import Outcome
from harness.records.samples import ClientSample
from harness.units import SECOND

WINDOW = Window(0, Users(4), "up", 0, 0, 0, 10 * SECOND, 12 * SECOND)
TTFT = Slo.parse("ttft_p95=500ms")


def requests(first_ms: float, unsure_ms: float, n: int = 100, **more: object) -> list:
    """N requests of one token at `first_ms`, known no better than `unsure_ms` before it."""
    records = []
    for number in range(n):
        sent_ms = 50 * number
        came_ms = sent_ms + first_ms
        records.append(record(number, sent_ms, [came_ms], lows=[came_ms - unsure_ms], **more))
    return records


@pytest.mark.parametrize(
    ("first_ms", "unsure_ms", "slos", "want"),
    [
        (400, 0, [TTFT], 0.0),
        (400, 10, [TTFT], 0.02),  # 10 ms of a limit of 500
        (9, 4, [TTFT], 0.008),  # far below the limit, 4 ms of 9 do not matter
        (1000, 100, [TTFT], 0.1),  # above it the value is the scale
        (100, 10, [], 0.1),  # no SLO: of the value
        (2, 0.4, [], 0.04),  # ... 0.4 ms of at least 0.5 / 5 % = 10 ms
    ],
)
def test_the_share_of_the_instrument(
    first_ms: float, unsure_ms: float, slos: list[Slo], want: float
) -> None:
    """(quantile of the highs - quantile of the lows) / max(limit, value)."""
    found = quantile_uncertainties(table(*requests(first_ms, unsure_ms)), WINDOW, slos)[0]
    assert found.share == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize(
    ("unsure", "of", "want"),
    [
        (0, 0, ""),
        (25, 100, ""),
        (26, 100, "474 and 500 ms"),
        (40, 94, ""),
        (40, 96, "460 and 500 ms"),
    ],
)
def test_a_step_is_refused_above_five_percent(unsure: float, of: int, want: str) -> None:
    """`of` 100 requests at 500 ms are unsure: a p95 feels it when the 95 lowest are."""
    sure = requests(500, 0)[of:]
    said = instrument_sentence(table(*requests(500, unsure)[:of], *sure), WINDOW, [TTFT])
    assert want in said
    assert ("try --processes 4" in said) == bool(want)


def test_no_stamps_at_all_is_said() -> None:
    """On a system without kernel stamps no arrival is exact."""
    said = instrument_sentence(table(*requests(500, 40)), WINDOW, [TTFT])
    assert "no arrival has a kernel stamp here" in said


def test_failures_and_open_requests_are_not_the_instruments_fault() -> None:
    """Failed: [inf, inf]. Open at 8 s of age: [8 s, inf], which is no error of the clock."""
    bad = [record(200 + i, 10, [], 400, Outcome.status) for i in range(50)]
    waiting = [record(300 + i, 10, [], 8000, Outcome.open) for i in range(50)]
    rows = table(*requests(500, 1), *bad, *waiting)
    assert instrument_sentence(rows, WINDOW, [TTFT]) == ""


def test_turnaround_is_from_a_users_end_to_its_next_start() -> None:
    """User 1 of worker 0 pauses 2 ms and 4 ms; another worker's user 1 does not mix in."""
    rows = [
        record(0, 0, [10]),
        record(1, 12, [20]),
        record(2, 24, [30]),
        record(0, 11, [15], worker=1),
    ]
    rows = [replace(r, user=1) for r in rows]
    assert turnarounds(table(*rows), WINDOW).tolist() == [2 * MS, 4 * MS]


def test_a_planned_pause_is_no_delay_of_the_client() -> None:
    """Of pauses of 502 and 504 ms, 500 are think time; who is early has none."""
    at = ((0, 10), (512, 520), (1024, 1030), (1500, 1509))
    rows = [record(n, sent, [done]) for n, (sent, done) in enumerate(at)]
    rows = [replace(r, user=1, think_ns=500 * MS) for r in rows]
    assert turnarounds(table(*rows), WINDOW).tolist() == [2 * MS, 4 * MS, 0]


def test_a_steps_client_figures() -> None:
    """CPU as cores by process, counters as growth, the worst lag, all within the window."""
    samples = [
        ClientSample(1 * SECOND, "worker 0", 0.5, 1.5, 100, 90),
        ClientSample(3 * SECOND, "worker 0", 1.5, 4.5, 300, 270),
        ClientSample(30 * SECOND, "worker 0", 15.0, 99.0, 3000, 2700),
        ClientSample(1 * SECOND, "main", 0.1),
        ClientSample(2 * SECOND, "main", 0.2),
    ]
    got = client_figures(table(*requests(400, 10)), WINDOW, [TTFT], samples)
    assert to_json(got) == {
        "instrument_share": {"ttft_p95": 0.02},
        "turnaround_ms": {"mean": None, "p99": None},
        "cpu": {"main": 0.1, "worker 0": 0.5},
        "loop_lag_max_ms": 4.5,
        "stamp_coverage": 0.9,
        "clock_steps": 0,
        "throttled_share": None,
    }
