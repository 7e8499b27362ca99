"""Where the mean TTFT goes, as the report shows it: bars, a table that adds up, buckets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from report_folder import LEVELS, found_run

from harness.core.states import Decision
from harness.core.typed_json import from_json
from harness.metrics.level_figures import TtftSplit
from harness.metrics.result import Level, Result
from harness.records import names
from harness.records.folder_reader import read_run
from harness.report.answer import build_answer
from harness.report.report_data import ReportData
from harness.report.tables import ttft_buckets, ttft_split
from harness.report.waterfall import waterfall_chart
from harness.report.write import markdown

if TYPE_CHECKING:
    from pathlib import Path

    from harness.charts.definition import Chart

pytestmark = pytest.mark.xdist_group("report")  # one worker makes the folder, 3 s, for all

ADDED = ("Queue", "Prefill", "Rest", "Residual")
SPLIT = {
    "exact": True, "n": 1234,
    "queue_ms": 120.04, "queue_ms_bound": [120.04, 120.04],
    "prefill_ms": 31.2, "prefill_ms_bound": [31.2, 31.2],
    "rest_ms": 9.3, "rest_ms_bound": [9.3, 9.3],
    "ttft_ms": 160.54, "ttft_ms_bound": [160.54, 160.54],
    "residual_ms": -4.1, "residual_ms_bound": [-4.1, -4.1],
    "client_ms": 156.44, "client_ms_bound": [156.44, 156.44],
    "ttft_p95_ms_bucket": [250.0, 500.0], "queue_p95_ms_bucket": [0.0, 300.0],
    "prefill_p95_ms_bucket": [7680000.0, "inf"],
}  # fmt: skip
BOUNDED = SPLIT | {"exact": False, "queue_ms_bound": [80.0, 300.0], "rest_ms_bound": [0.0, 99.9]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose steps last long enough for scrapes inside them."""
    return found_run(tmp_path_factory.getbasetemp())[0]


def test_the_report_has_a_bar_and_a_row_for_each_step(folder: Path) -> None:
    """Drawing and table in the page, the same table in Markdown."""
    page = (folder / names.REPORT_HTML).read_text()
    text = (folder / names.REPORT_MD).read_text()
    assert page.count("<title>Mean TTFT by where it is spent, ms</title>") == 1
    drawn = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    labels = re.findall(r"#\d+: \d+", drawn)
    assert labels == [f"#{i + 1}: {users}" for i, users in enumerate(LEVELS)]
    rows = [line for line in text.splitlines() if re.match(r"\| \d+ \| \d+ \| \d+ \|", line)]
    assert len(rows) == len(LEVELS)


def facts(folder: Path, *splits: dict[str, Any]) -> ReportData:
    """A run of one step each."""
    levels = []
    for i, split in enumerate(splits):
        ttft_split = from_json(TtftSplit, split)
        levels.append(Level(i, 8, decision=Decision.passed, ttft_split=ttft_split))
    return ReportData(read_run(folder), Result(levels=tuple(levels)))


def test_the_table_adds_up(folder: Path) -> None:
    """One number of decimals in a row; bounds only where they are wider than a point."""
    exact, bounded = ttft_split(facts(folder, SPLIT, BOUNDED))
    assert exact == {
        "#": "1",
        "Users": "8",
        "n": "1,234",
        "Queue": "120",
        "Prefill": "31",
        "Rest": "9",
        "Server": "161",
        "Residual": "-4",
        "Client": "156",
        "Exact": "yes",
    }
    assert sum(int(exact[name]) for name in ADDED) == int(exact["Client"])
    assert bounded["Queue"] == "120 (80 to 300)"
    assert bounded["Rest"] == "9 (0 to 100)"
    assert bounded["Exact"] == "no"


def residual_begins_at(chart: Chart | None) -> float:
    """Where the bar of the first level's residual begins."""
    assert chart is not None
    (residual,) = (one for one in chart.panels[0].series if one.name == "residual")
    return residual.points[0].low


def test_a_residual_below_zero_is_drawn_to_the_left_of_it(folder: Path) -> None:
    """It is no part that is spent, and it is not hidden."""
    drawn = waterfall_chart(facts(folder, SPLIT))
    positive = waterfall_chart(facts(folder, SPLIT | {"residual_ms": 4.1}))
    assert residual_begins_at(drawn) == 0
    assert residual_begins_at(positive) > 0


def test_buckets_stand_beside_each_other(folder: Path) -> None:
    """What the server did not say is a dash."""
    assert ttft_buckets(facts(folder, SPLIT)) == [
        {
            "#": "1",
            "Users": "8",
            "TTFT p50": "–",  # noqa: RUF001
            "Queue p50": "–",  # noqa: RUF001
            "Prefill p50": "–",  # noqa: RUF001
            "TTFT p95": "250 to 500",
            "Queue p95": "0 to 300",
            "Prefill p95": "over 7,680,000",
        },
    ]


def test_without_a_split_there_is_nothing(folder: Path) -> None:
    """A server that does not say its queue time, a run without scrapes."""
    silent = ("queue_ms", "queue_ms_bound", "rest_ms", "rest_ms_bound")
    unsaid = SPLIT | dict.fromkeys(silent)
    for found in (facts(folder, {}), facts(folder, unsaid)):
        assert waterfall_chart(found) is None
        assert ttft_split(found) == []
        assert "where it is spent" not in markdown(found, build_answer(found))
