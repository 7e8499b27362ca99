"""ITL by token position: positions, the difference within requests, and what is too little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from random_tables import Pieces

from harness.metrics.scan import scan
from harness.metrics.token_positions import (
    POSITIONS,
    PositionCounter,
    PositionFigures,
    PositionRow,
)
from harness.records.record_table import NUMBER_COLUMNS, OK, RecordTable
from harness.report.positions import position_sentence
from harness.units import MS

if TYPE_CHECKING:
    from harness.core.arrays import Ints

GROWTH_NS = 1_000  # of a gap from token to token


def answers(requests: int, tokens: int, per_event: int = 1) -> RecordTable:
    """Gap i of request r lasts 10 ms + r µs + i µs, where i is the token that ends it."""
    number = np.arange(1, tokens // per_event + 1) * per_event
    return table_of(10 * MS + GROWTH_NS * (np.arange(requests)[:, None] + number), per_event)


def table_of(gap_ns: Ints, per_event: int = 1) -> RecordTable:
    """Requests that all begin at 0; a row of gaps for each, the first before its first event."""
    requests, events = gap_ns.shape
    at_ns = np.cumsum(gap_ns, axis=1)
    columns = dict.fromkeys(NUMBER_COLUMNS, np.zeros(requests, np.int64))
    columns["scheduled_ns"] = np.full(requests, -1)
    columns["done_ns"] = at_ns[:, -1]
    columns["outcome"] = np.full(requests, OK)
    columns["name"] = np.full(requests, -1)
    return RecordTable(
        **columns,
        offsets=np.arange(requests + 1) * events,
        at_ns=at_ns.ravel(),
        not_before_ns=at_ns.ravel(),
        tokens=np.full(at_ns.size, per_event),
    )


def figures_of(table: RecordTable, pieces: int = 7) -> PositionFigures:
    """Of all its events, read in pieces."""
    counter = PositionCounter(0, 2**60)
    scan(Pieces(table, pieces), [counter])
    return counter.figures()


@pytest.mark.parametrize("per_event", [1, 2])
def test_positions(per_event: int) -> None:
    """The gap that ends token i lasts about 10 ms + i µs, with one or two tokens an event."""
    found = figures_of(answers(30, 1200, per_event))
    assert [row.position for row in found.rows] == list(POSITIONS)
    for row in found.rows:
        middle_ms = 10 + 0.001 * (row.position + 14.5)
        assert row.p50_ms == pytest.approx(middle_ms, rel=2e-3)
        if row.position == POSITIONS[0]:  # it is not compared with itself
            assert row.requests == 0
            continue
        later_ms = 0.001 * (row.position - POSITIONS[0])
        assert row.requests == 30
        assert row.later_ms == pytest.approx(later_ms, rel=0.02)
        assert row.is_slower
    firsts = [point.first for point in found.curve]
    assert firsts == sorted(firsts)
    assert firsts[0] == 2 * per_event
    assert found.curve[-1].last >= 1000
    assert sum(point.n for point in found.curve) <= 30 * (1200 // per_event - 1)


def test_a_window_counts_its_own_gaps_alone() -> None:
    """Positions are those of the whole answer, also where its beginning lies before the window."""
    table = answers(30, 600)
    counter = PositionCounter(5_000 * MS, 2**60)  # about from the 490th token on
    scan(Pieces(table, 7), [counter])
    found = counter.figures()
    assert [row.position for row in found.rows] == [500]
    assert found.rows[0].requests == 0  # none has a token around the 10th here
    assert found.rows[0].p50_ms == pytest.approx(10.515, rel=2e-3)


@pytest.mark.parametrize(("requests", "tokens"), [(0, 0), (3, 12), (30, 5), (30, 1)])
def test_too_little(requests: int, tokens: int) -> None:
    """Without answers, with few, and with answers of one token there is nothing to say."""
    found = figures_of(answers(requests, tokens)) if requests else PositionFigures()
    assert found.rows == ()
    assert position_sentence(found) == ""


@pytest.mark.parametrize(
    ("later", "ci95", "want"),
    [
        (
            1.2,
            (0.8, 1.6),
            "Late tokens are slower: {mean} 1.2 ms (0.8 to 1.6) longer than {of}.",
        ),
        (
            -1.2,
            (-1.6, -0.8),
            "Late tokens are faster: {mean} 1.2 ms (0.8 to 1.6) shorter than {of}.",
        ),
        (
            0.1,
            (-31.76, 20.87),
            "Late tokens are not shown to be slower: {mean} within 31.8 ms of that {of}.",
        ),
    ],
)
def test_the_sentence(later: float, ci95: tuple[float, float], want: str) -> None:
    """It speaks of the farthest position that can be compared."""
    rows = (
        PositionRow(10, 200, 10, 12),
        PositionRow(500, 200, 11, 13, 40, later, ci95),
        PositionRow(1000, 20, 11, 13),
    )
    mean = "around token 500 the mean ITL is"
    of = "around token 10 of the same 40 requests"
    assert position_sentence(PositionFigures(rows)) == want.format(mean=mean, of=of)


def test_too_few_requests_to_compare() -> None:
    """Four answers are too few for an interval, which is said; five are enough."""
    four = figures_of(answers(4, 1200))
    five = figures_of(answers(5, 1200))
    assert [row.requests for row in four.rows] == [4, 4, 4]  # 12 gaps around the 10th are too few
    assert position_sentence(four) == (
        "Whether late tokens are slower is not known: that takes 5 requests with measured tokens "
        "around both token 10 and token 100 (there: 4)."
    )
    assert position_sentence(five).startswith("Late tokens are slower: around token 1,000 ")


def test_the_interval_of_few_requests_is_students() -> None:
    """Five requests whose late gaps are longer by 1 to 5 ms: 3 ± 2.776 x 1.581 / sqrt(5)."""
    late_ms = np.arange(1, 6)[:, None] * (np.arange(1, 121) > 50)
    found = figures_of(table_of((10 + late_ms) * MS))
    (around_100,) = found.rows
    assert around_100.requests == 5
    assert around_100.later_ms == 3
    assert around_100.later_ci95_ms == pytest.approx((3 - 1.963, 3 + 1.963), abs=0.02)
