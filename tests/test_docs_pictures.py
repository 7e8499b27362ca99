"""The pictures in the docs and the sample report show this code: its headings, its charts."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest
from page_pictures import HEADINGS, PICTURES, REPORTS, SAMPLE, SHOTS, knee_chart
from PIL import Image

from harness.charts.embed import picture

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "harness/report/templates"
# picture -> where its headings are written
PAGES = {
    **dict.fromkeys(REPORTS, TEMPLATES / "report.html.j2"),
    **{PICTURES / f"{shot.name}.png": ROOT / "harness/webpage/page/live.html" for shot in SHOTS},
}


def headings(text: str) -> list[re.Pattern[str]]:
    """Those of a page or a template, in which a value may stand for any words."""
    found = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    return [
        re.compile(".*".join(map(re.escape, re.split(r"\{\{.*?\}\}|\{%.*?%\}", heading))))
        for heading in found
    ]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_headings_are_those_of_the_code(path: Path) -> None:
    """`make docs` takes the pictures again."""
    shown = json.loads(Image.open(path).text[HEADINGS])
    written = headings(PAGES[path].read_text())
    assert len(shown) > 2
    assert [one for one in shown if not any(known.fullmatch(one) for known in written)] == []


def test_the_sample_report_has_the_code_s_headings() -> None:
    """And charts that answer."""
    text = (SAMPLE / "report.html").read_text()
    written = headings((TEMPLATES / "report.html.j2").read_text())
    shown = [html.unescape(one) for one in re.findall(r"<h2[^>]*>(.*?)</h2>", text)]
    assert [one for one in shown if not any(known.fullmatch(one) for known in written)] == []
    assert text.count('<figure class="chart') > 8
    assert "harnessCharts.mountAll()" in text


def test_the_drawn_chart_is_that_of_the_code() -> None:
    """To the byte: it is drawn without a browser."""
    assert (PICTURES / "report-knee.svg").read_text() == picture(knee_chart())
