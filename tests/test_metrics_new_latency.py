"""A new latency is a function and a row of METRICS: everything else follows from the row."""

from __future__ import annotations

from typing import Any

import pytest
from changed_copy import Addition, printed_with

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("new latency")
FUNCTION = '''\
def second(table: RecordTable) -> Observations:
    """The second event that carries a token."""
    return _to_event(table, np.where(table.counts > 1, 1, -1))


'''
ROW = """\
        LatencyMetric(
            "ttft2",
            "TTFT2",
            "Time to second token",
            "As TTFT, to the second event that carries a token.",
            "harness_ttft2_seconds",
            "ms",
            second,
            buckets_s=GAP_S,
            counted=AT_END,
            live=True,
            headline=True,
        ),
"""
BEFORE_FUNCTION = "def e2e("
BEFORE_ROW = """\
        LatencyMetric(
            "itl",
"""
# Run where METRICS has that row: a run's result and reports, the page, the exporter and the docs.
SHOW = """
import json, runpy, sys
from pathlib import Path
from report_folder import make, report
from harness.export.live_state import COLUMNS
from harness.metrics.slo import Slo
from harness.records import names
from harness.run.run_page import ending

run = Path(sys.argv[1])
result = make(run, seconds=1, levels=(1, 4))
report(run, result)
written = json.loads((run / names.RESULT).read_text())
pages = runpy.run_path("docs/generate.py")["pages"]()
print(json.dumps({
    "result": [written["levels"][1]["ttft2_ms"]["n"] > 0, "ttft2_p95_ms" in written["knee"]],
    "attribute": result.levels[1].ttft2_ms.n,
    "slo": Slo.parse("ttft2_p95=1s").name,
    "tiles": [tile["name"] for tile in ending(result, "Found.")["tiles"]],
    "live": [column for column in COLUMNS if column.startswith("ttft2")],
    "csv": (run / names.LEVELS_CSV).read_text().splitlines()[0].split(","),
    "report": "p95 TTFT2, ms" in (run / names.REPORT_HTML).read_text(),
    "docs": [name for name, page in pages.items() if "ttft2" in page],
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SHOW prints in a copy of the package in which nothing but METRICS is changed."""
    additions = [
        Addition("metrics/metrics.py", BEFORE_FUNCTION, FUNCTION),
        Addition("metrics/metrics.py", BEFORE_ROW, ROW),
    ]
    return printed_with(additions, SHOW, tmp_path_factory.mktemp("copy"))


def test_a_row_is_all_that_a_latency_needs(shown: dict[str, Any]) -> None:
    """The result, its reports, the page, the metrics and the docs have it from METRICS alone."""
    assert shown["result"] == [True, True]
    assert shown["attribute"] > 0
    assert shown["slo"] == "ttft2_p95"
    assert shown["tiles"][-4:] == ["p95 TTFT", "p95 TTFT2", "p95 ITL", "Output tokens/s"]
    assert "ttft2_p95_ms" in shown["live"]
    assert {"ttft2_ms.p95", "ttft2_ms.p95_ci95_lo"} <= set(shown["csv"])
    assert shown["report"]
    assert {
        "metrics.md",
        "run-folder.md",
        "result.md",
        "result.schema.json",
        "exporter.md",
    } <= set(shown["docs"])
