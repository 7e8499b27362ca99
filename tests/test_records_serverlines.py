"""The server's samples in server.jsonl: what is written comes back, in few bytes."""

from __future__ import annotations

from math import inf, isnan

import pytest

from harness.records.folder_reader import NUMBER_FIELDS, from_row, from_rows, to_row
from harness.records.histogram import Histogram
from harness.records.json_files import dumps
from harness.records.samples import ServerSample

TTFT = Histogram((0.1, 1.0, 10.0, inf), (3.0, 5.0, 5.0, 5.0), 2.25)
LATER = Histogram(TTFT.bounds, (3.0, 6.0, 6.0, 7.0), 40.5)
OTHER = Histogram((0.5, inf), (1.0, 7.0), 40.5)


def sample(at_ns: int, ttft: Histogram) -> ServerSample:
    """With a histogram and what repeats it."""
    return ServerSample(
        at_ns,
        running=3.0,
        kv_usage=0.25,
        ttft_sum_s=ttft.sum,
        ttft_count=ttft.count,
        finished={"length": 5.0},
        histograms={"ttft": ttft},
    )


@pytest.mark.parametrize(
    ("ttft", "want"),
    [
        (TTFT, b'"histograms":{"ttft":[2.25,[3,2]]},"bounds":{"ttft":[0.1,1.0,10.0]}}'),
        (LATER, b'"histograms":{"ttft":[40.5,[3,3,0,1]]},"bounds":{"ttft":[0.1,1.0,10.0]}}'),
    ],
)
def test_a_line(ttft: Histogram, want: bytes) -> None:
    """Whole numbers are short, empty buckets at the end are left out, nothing is said twice."""
    head = b'{"at_ns":1,"running":3,"kv_usage":0.25,"finished":{"length":5},'
    assert dumps(to_row(sample(1, ttft), {})) == head + want


@pytest.mark.parametrize("last", [LATER, OTHER])
def test_lines_come_back(last: Histogram) -> None:
    """Bounds stand in the first line and where they change: here the server was restarted."""
    samples = [sample(1, TTFT), sample(2, TTFT), sample(3, last)]
    known: dict[str, tuple[float, ...]] = {}
    rows = [to_row(written, known) for written in samples]
    assert ["bounds" in row for row in rows] == [True, False, last is OTHER]
    got, bad = from_rows(rows)
    for read, written in zip(got, samples, strict=True):
        assert read.histograms == written.histograms
        assert read.ttft_sum_s == written.ttft_sum_s
        assert read.ttft_count == written.ttft_count
        assert read.finished == written.finished
    assert bad == 0


def test_an_older_folder() -> None:
    """Lines of plain numbers, null where nothing was said, and fields that we do not know."""
    row = {"at_ns": 7, "running": 2.0, "waiting": None, "ttft_sum_s": 1.5, "x": []}
    got = from_row(row, {})
    assert got.running == 2.0
    assert got.ttft_sum_s == 1.5
    assert got.histograms == {}
    for name in set(NUMBER_FIELDS) - {"running", "ttft_sum_s"}:
        assert isnan(getattr(got, name)), name


@pytest.mark.parametrize(
    "row",
    [{}, {"at_ns": None}, {"at_ns": 1, "running": "x"}, {"at_ns": 1, "bounds": {"ttft": ["x"]}},
     {"at_ns": 1, "histograms": {"ttft": 3}, "bounds": {"ttft": [1]}}, {"at_ns": 1, "finished": 3}],
)  # fmt: skip
def test_a_damaged_line_costs_itself(row: dict[str, object]) -> None:
    """It is counted, the others are read."""
    got, bad = from_rows([{"at_ns": 1, "running": 1}, row, {"at_ns": 2, "running": 2}])
    assert [sample.running for sample in got] == [1.0, 2.0]
    assert bad == 1


def test_a_histogram_whose_bounds_are_lost() -> None:
    """It is left out, the rest of the line is read."""
    got = from_row({"at_ns": 1, "running": 1, "histograms": {"ttft": [1.0, [1]]}}, {})
    assert got.running == 1.0
    assert got.histograms == {}
