"""A report's charts in a real browser: they answer, and nothing leaves the page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from browser_run import CONTRAST, Visit, browser
from report_folder import found_run

from harness.records import names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("charts")]
WIDE = "#chart-ttft-knee, #chart-itl-knee"  # the latency that decides


@pytest.fixture(scope="module")
def opened() -> Iterator[Browser]:
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of the report of a found knee, as a file."""
    path, _ = found_run(tmp_path_factory.getbasetemp())
    return (path / names.REPORT_HTML).as_uri()


@pytest.fixture
def page(opened: Browser, url: str) -> Iterator[Page]:
    visit = Visit(opened, url)
    page = visit.open("")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    assert visit.errors == []
    assert asked == []
    visit.context.close()


def test_pointing_tells_value_interval_and_n(page: Page) -> None:
    """Of the level that is nearest, with its result."""
    stage = page.locator(WIDE).locator(".stage")
    box = stage.bounding_box() or {"width": 0, "height": 0}
    stage.hover(position={"x": box["width"] / 2, "y": box["height"] / 2})
    words = stage.locator(".tip").inner_text()
    assert "concurrent requests" in words
    assert re.search(r"\((95%: [\d.,]+ to [\d.,]+|at least [\d.,]+)\)", words)
    assert "n = " in words
    assert "level " in words


def test_keys_read_and_zoom(page: Page) -> None:
    """Home is the first level shown; "All" shows them all, and a chart says what is read."""
    stage = page.locator(WIDE).locator(".stage")
    stage.focus()
    page.keyboard.press("Home")
    near = stage.get_attribute("aria-label") or ""
    page.locator(WIDE).get_by_role("button", name="All").click()
    stage.focus()
    page.keyboard.press("Home")
    first = stage.get_attribute("aria-label") or ""
    assert "1 concurrent request: " in first
    assert near != first
    page.keyboard.press("0")
    pressed = page.locator(WIDE).get_by_role("button", name="Around the knee")
    assert pressed.get_attribute("aria-pressed") == "true"
    page.keyboard.press("-")
    assert pressed.get_attribute("aria-pressed") == "false"


def test_a_name_of_the_legend_hides_its_series(page: Page) -> None:
    """And a second click brings it back."""
    figure = page.locator("#chart-curve-ttft")
    paths = figure.locator(".stage svg path")
    before = paths.count()
    button = figure.get_by_role("button", name="median")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert paths.count() < before
    button.click()
    assert paths.count() == before


def test_without_scripts_and_in_print(opened: Browser, url: str) -> None:
    """The pictures stand there, and there alone."""
    still = ".still svg"
    silent = Visit(opened, url, java_script_enabled=False).open("")
    shown = silent.locator(still).count()
    assert shown > 10
    assert silent.locator(still).first.is_visible()
    silent.context.close()
    printed = Visit(opened, url).open("")
    assert printed.locator(f"{still}:visible").count() == 0
    printed.emulate_media(media="print")
    assert printed.locator(f"{still}:visible").count() == shown
    assert printed.locator(".stage:visible").count() == 0
    printed.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_charts_are_readable(opened: Browser, url: str, scheme: str, width: int) -> None:
    """Contrast 4.5 of every word, in the charts, too; nothing scrolls sideways."""
    size = {"width": width, "height": 900}
    page = Visit(opened, url, viewport=size, color_scheme=scheme).open("")
    page.locator("figure.drawn").last.wait_for()
    _, low = page.evaluate(CONTRAST)
    assert low == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()
