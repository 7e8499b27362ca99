"""Charts drawn to SVG without a browser, by the JavaScript that also draws them in a page."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from harness.charts.definition import as_json

if TYPE_CHECKING:
    from dukpy import JSInterpreter

    from harness.charts.definition import Chart

PAGE: Final = files("harness.charts") / "page"
SCRIPTS: Final = ("echarts.common.min.js", "charts.js")
# What ECharts looks for and an engine without a browser lacks; nothing here waits.
NO_BROWSER: Final = (
    "var self = this, global = this; function setTimeout() {} function clearTimeout() {}"
)
FONT: Final = "system-ui, 'DejaVu Sans', sans-serif"
WIDE_PX: Final = 1_120
NARROW_PX: Final = 420


@cache
def scripts() -> str:
    """All JavaScript of the charts, for a page of one file."""
    return "\n".join((PAGE / name).read_text() for name in SCRIPTS)


@cache
def _engine() -> JSInterpreter:
    """Load the scripts once: that takes longer than a few charts."""
    from dukpy import JSInterpreter  # noqa: PLC0415 - only what draws needs it

    engine = JSInterpreter()
    engine.evaljs([NO_BROWSER, scripts(), "null"])
    return engine


def draw(chart: Chart, *, titled: bool) -> str:
    """An `<svg>` element whose colors are CSS variables."""
    width = WIDE_PX if chart.wide else NARROW_PX
    call = "harnessCharts.still(dukpy.chart, dukpy.width, dukpy.titled)"
    svg: str = _engine().evaljs(call, chart=as_json(chart), width=width, titled=titled)
    return _as_element(chart, svg)


# What says nothing: the page has the font, and empty or unstroked shapes are not seen.
SILENT: Final = re.compile(
    r"<style\s*>.*?</style>"
    r'|<path d=""[^>]*></path>'
    r'|font-family:[^;"]+;?'
    r'| (?:pointer-events="visible"|xml:space="preserve"|class="zr\d+-cls-\d+"|ecmeta_\w+="[^"]*")'
    r'| stroke="[^"]*" stroke-width="0"(?: stroke-opacity="[^"]*")?',
    re.DOTALL,
)


def _as_element(chart: Chart, svg: str) -> str:
    """With a name, without what a page has already; the same bytes for the same chart."""
    head, body = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]+"', head)
    body = SILENT.sub("", body)
    body = re.sub(r"zr\d+-", f"{chart.name}-", body)  # ECharts counts its charts
    body = re.sub(r">\s+<", "><", body)
    words = f"{chart.title}. {chart.note}" if chart.note else chart.title
    start = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box[0] if box else ""}'
    return f'{start} font-family="{FONT}"><title>{escape(words, quote=False)}</title>{body}'.strip()
