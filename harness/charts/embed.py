"""Charts in a page of one file: a still picture of each, and what makes it answer."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Final

import orjson

from harness.charts.definition import as_json
from harness.charts.draw import PAGE, draw, scripts
from harness.core.extras import has_extra

if TYPE_CHECKING:
    from harness.charts.definition import Chart

# The colors of the reports' style sheet.
LIGHT: Final = (
    "--card:#f6f7f9;--ink:#16181d;--muted:#5c6370;--rule:#d9dce1;--blue:#0067a8;--red:#b84a00;"
    "--green:#00795a;--gold:#b58200;"
)
DARK: Final = (
    "--card:#1d2026;--ink:#eceef2;--muted:#a3a9b5;--rule:#3a3f49;--blue:#62b4f0;--red:#ff9a5c;"
    "--green:#4fd0a5;--gold:#e0a92e;"
)
DARK_QUERY: Final = "@media (prefers-color-scheme:dark){"
START: Final = "\nharnessCharts.mountAll();\n"


def figure(chart: Chart) -> str:
    """The still picture, for print and pages without JavaScript, and the chart as data."""
    kind = "chart broad" if chart.wide else "chart"
    # An end tag within the data would end the script.
    data = orjson.dumps(as_json(chart)).decode().replace("<", "\\u003c")
    still = f'<div class="still">{_still(chart)}</div>'
    name = escape(chart.name)
    script = f'<script type="application/json">{data}</script>'
    return f'<figure class="{kind}" id="chart-{name}">{still}{script}</figure>'


def _still(chart: Chart) -> str:
    if has_extra("charts"):
        return draw(chart, titled=True)
    title = escape(chart.title, quote=False)
    return f"<p><b>{title}</b>: this chart needs JavaScript, as it was written without dukpy.</p>"


@cache
def page_parts() -> dict[str, str]:
    """What a template with figures needs besides, by its names there."""
    return {
        "chart_style": (PAGE / "charts.css").read_text(),
        "chart_script": f"<script>{_code()}</script>",  # at the page's end
        "policy": policy(),
    }


@cache
def policy() -> str:
    """The page's Content-Security-Policy: it may run this script alone, and request nothing."""
    digest = hashlib.sha256(_code().encode()).digest()
    allowed = f"'sha256-{base64.b64encode(digest).decode()}'"
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'"


def _code() -> str:
    return scripts().replace("</script", "<\\/script") + START


def picture(chart: Chart) -> str:
    """An SVG file for Markdown: the reports' colors, which follow the reader's light or dark."""
    svg = draw(chart, titled=True)
    head, body = svg.split(">", 1)
    colors = "".join(
        f"{query}svg{{{palette}background:var(--card)}}{end}"
        for query, palette, end in (("", LIGHT, ""), (DARK_QUERY, DARK, "}"))
    )
    return f"{head}><style>{colors}</style>{body}\n"
