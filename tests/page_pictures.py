"""Take the pictures of docs/ and of the sample report of this code: `make docs`.

The live page is that of a search which runs for it, for a minute. Each picture of a page notes the
page's headings, which tests/test_docs_pictures.py compares with those of the code.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from browser_run import Visit, browser, locust, missing, until
from PIL import Image, PngImagePlugin

from harness.charts.embed import picture
from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.metrics.result import read_result
from harness.records.folder_reader import Damage, Run
from harness.records.record_table import concat_tables
from harness.report.curves import around_knee
from harness.report.report_data import ReportData

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

    from harness.charts.definition import Chart

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/pictures"
SAMPLE = ROOT / "reports/samples"
HEADINGS = "headings"  # the note in a picture
OF_PAGE = """[...document.querySelectorAll("h2")].filter((one) => one.offsetParent)
  .map((one) => one.textContent)"""
SEARCH = "--slo ttft_p95=300ms --prompt-tokens 64 --output-tokens 32 --max-users 64 --budget 60s"
ENGINE = EngineConfig(max_num_seqs=8)
OVER = "/knee found|holds|inconclusive/.test(document.getElementById('badge').textContent)"


class Shot(NamedTuple):
    """How a picture of a page is taken."""

    name: str
    width: int
    height: int
    scheme: str = "light"
    form: bool = False  # opened


SHOTS = (
    Shot("webui-light", 1400, 1900),
    Shot("webui-dark", 1400, 1900, "dark", form=True),
    Shot("webui-narrow", 390, 2100),
)


# picture of the sample report -> width and height
REPORTS = {SAMPLE / "report.png": (1400, 1900), PICTURES / "report-narrow.png": (390, 2100)}


def knee_chart() -> Chart:
    """Of the sample's result: that chart needs none of its records."""
    result = read_result(SAMPLE)
    run = Run(SAMPLE, {}, concat_tables([]), [], [], [], [], [], Damage())
    chart = around_knee(ReportData(run, result))
    assert chart is not None
    return chart


def save(page: Page, path: Path, height: int) -> None:
    """The top of the page, in 256 colors, with its headings."""
    page.wait_for_timeout(500)  # charts take their width
    clip = {"x": 0, "y": 0, "width": page.viewport_size["width"], "height": height}
    shot = page.screenshot(full_page=True, clip=clip)
    with tempfile.NamedTemporaryFile(suffix=".png") as whole:
        Path(whole.name).write_bytes(shot)
        image = Image.open(whole.name).quantize(256)
    note = PngImagePlugin.PngInfo()
    note.add_text(HEADINGS, json.dumps(page.evaluate(OF_PAGE)))
    image.save(path, pnginfo=note, optimize=True)


def take_live_page(opened: Browser) -> None:
    with (
        tempfile.TemporaryDirectory() as runs,
        start_engine(ENGINE) as engine,
        locust("--host", engine.url, "--runs", runs, *SEARCH.split()) as url,
    ):
        page = Visit(opened, url).open("/harness")
        until(page, "document.getElementById('form').childElementCount")
        page.get_by_role("button", name="Start").click()
        until(page, OVER)
        for shot in SHOTS:
            size = {"width": shot.width, "height": 900}
            page = Visit(opened, url, viewport=size, color_scheme=shot.scheme).open("/harness")
            until(page, OVER)
            page.locator("#asking").evaluate("(node, open) => { node.open = open }", shot.form)
            save(page, PICTURES / f"{shot.name}.png", shot.height)


def main() -> None:
    (PICTURES / "report-knee.svg").write_text(picture(knee_chart()))
    if why := missing():
        sys.stderr.write(f"No pictures of pages: {why}\n")
        return
    with browser() as opened:
        for path, (width, height) in REPORTS.items():
            size = {"width": width, "height": 900}
            page = Visit(opened, (SAMPLE / "report.html").as_uri(), viewport=size).open("")
            save(page, path, height)
        take_live_page(opened)


if __name__ == "__main__":
    main()
