"""A new series of vLLM's is a field of ServerSample and one of ServerFigures: the rest follows."""

from __future__ import annotations

from typing import Any

import pytest
from changed_copy import Addition, printed_with

# one worker makes what they look at
pytestmark = pytest.mark.xdist_group("new series")
# vLLM has it no longer: nobody else reads it.
READING = """\
    swapped: float = gauge(
        "vllm:num_requests_swapped",
        "requests whose KV blocks are on the CPU",
        live=True,
        exported=Exported("server_swapped"),
    )
"""
BEFORE_READING = """\
    kv_usage: float = gauge(
"""
FIGURE = """\
    swapped_mean: float = by(MEAN, column="Swapped out")  # requests with KV blocks on the CPU
"""
BEFORE_FIGURE = "    kv_usage_mean: float = by("
# Run where these are added: from a page of vLLM's to the report, Prometheus, the page and the docs.
SHOW = """
import json, runpy, sys
from pathlib import Path
from types import SimpleNamespace
from harness.core.typed_json import to_json
from harness.diagnosis.rules.inputs import VerdictInputs
from harness.diagnosis.server_window import server_figures
from harness.export.exporter_service import TargetState, target_values
from harness.export.live_state import COLUMNS, SERVER_LINES
from harness.export.metric_definitions import TARGET, newest_name, render_metrics
from harness.metrics.result import Level, Result
from harness.records.folder_reader import from_rows, to_row
from harness.report.report_data import ReportData
from harness.report.tables import level_rows
from harness.run.run_page import requests_at
from harness.wire.vllm_metrics import server_sample

PAGE = "vllm:num_requests_running 1\\nvllm:num_requests_waiting 2\\nvllm:num_requests_swapped %d"
scraped = [server_sample(PAGE % n, n * 10**9) for n in (3, 5)]
[samples, bad_lines] = from_rows([to_row(sample, {}) for sample in scraped])
level = Level(0, 8, server=server_figures(samples))
exported = render_metrics(TARGET, target_values(TargetState(up=True, samples=samples), 0))
[row] = level_rows(ReportData(SimpleNamespace(info={}), Result(levels=(level,))))
pages = runpy.run_path("docs/generate.py")["pages"]()
print(json.dumps({
    "scraped": [sample.swapped for sample in scraped],
    "recorded": [sample.swapped for sample in samples],
    "result": to_json(level)["server"]["swapped_mean"],
    "rules": VerdictInputs(level).server.swapped_mean,
    "report": row["Swapped out"],
    "live": [name in COLUMNS for name in SERVER_LINES],
    "point": dict(zip(SERVER_LINES, requests_at(samples[-1]))),
    "exporter": [line for line in exported.decode().splitlines() if "swapped" in line],
    "query": newest_name("swapped"),
    "docs": sorted(name for name, page in pages.items() if "swapped" in page),
}))
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What SHOW prints in a copy of the package in which nothing but two tables is changed."""
    additions = [
        Addition("records/samples.py", BEFORE_READING, READING),
        Addition("metrics/level_figures.py", BEFORE_FIGURE, FIGURE),
    ]
    return printed_with(additions, SHOW, tmp_path_factory.mktemp("copy"))


def test_two_rows_are_all_that_a_series_needs(shown: dict[str, Any]) -> None:
    """Scrape, run folder, result, rules, report, live page, exporter, queries and docs have it."""
    assert shown == {
        "scraped": [3.0, 5.0],
        "recorded": [3.0, 5.0],
        "result": 4.0,
        "rules": 4.0,
        "report": "4.00",
        "live": [True, True, True],
        "point": {"running": 1, "waiting": 2, "swapped": 5},
        "exporter": [
            "# HELP harness_server_swapped Requests whose KV blocks are on the CPU.",
            "# TYPE harness_server_swapped gauge",
            "harness_server_swapped 5.0",
        ],
        "query": "vllm:num_requests_swapped",
        "docs": [
            *("exporter.md", "result.md", "result.schema.json"),
            *("run-folder.md", "vllm-series.md"),
        ],
    }
