"""The live page in a real browser: a search from the form to the report, and all that may go wrong.

One Locust, one engine and one browser serve the whole file, in the order of a working day.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from browser_run import CONTRAST, Visit, browser, locust, until

from harness.engine.config import EngineConfig
from harness.engine.process import start_engine
from harness.metrics.metrics import LATENCIES
from harness.records.folder_reader import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.realtime, pytest.mark.xdist_group("browser")]
# Two batch slots, answers of 0.4 s: the third user waits half of one for another's end. First
# tokens come after 20 ms, or after 200 and more: a client that is late beside other tests can tell
# that from 100. The search ends as soon as both are shown, so its budget is for a busy machine.
OPTIONS = (
    "--slo",
    "ttft_p95=100ms",
    "--prompt-tokens",
    16,
    "--output-tokens",
    32,
    "--min-users",
    2,
    "--max-users",
    4,
    "--budget",
    "2m",
    "--workload",
    "completions",
)
SEATS = EngineConfig(max_num_seqs=2)
SOME = "/[1-9][0-9]* requests ended/.test(document.getElementById('progress').textContent)"
# Notes the first card and the headline each time that the cards are drawn.
WATCH = """() => {
  window.said = [];
  const words = (id) => document.querySelector(id)?.textContent;
  new MutationObserver(
    () => window.said.push([words("#cards b"), words("#sentence")]),
  ).observe(document.getElementById("cards"), { childList: true });
}"""
LEVELS = "fetch('harness/live.json').then((got) => got.json()).then((told) => told.facts.steps)"
LONG = "200"  # output tokens: a level that passes takes half a minute, so a search is soon not over


class Day(NamedTuple):
    """What the tests of this file share."""

    opened: Browser
    visit: Visit
    url: str
    runs: Path


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    """Locust with the search, beside an engine; neither has anything to do yet."""
    runs = tmp_path_factory.mktemp("runs")
    with (
        browser() as opened,
        start_engine(SEATS) as engine,
        locust("--host", engine.url, "--runs", runs, *OPTIONS) as url,
    ):
        yield Day(opened, Visit(opened, url), url, runs)


def wait_for_badge(page: Page, *badges: str) -> None:
    """Until the page says one of them."""
    until(page, "all => all.includes(document.getElementById('badge').textContent)", list(badges))


def begun(day: Day, **fields: str) -> tuple[Page, Path]:
    """A search started from the form, and its folder; what an earlier try has left is stopped."""
    page = day.visit.open("/harness")
    until(page, "document.getElementById('form').childElementCount")
    if page.locator("#badge").inner_text() == "running":
        page.get_by_role("button", name="Stop").click()
        wait_for_badge(page, "interrupted")
    before = set(day.runs.iterdir())
    page.evaluate(WATCH)
    page.locator("#asking").evaluate("node => { node.open = true }")
    for name, text in fields.items():
        page.locator(f"#f-{name}").fill(text)
    page.get_by_role("button", name="Start").click()
    wait_for_badge(page, "running")
    until(page, SOME)
    (folder,) = set(day.runs.iterdir()) - before
    return page, folder


def test_bad_input_is_said_beside_its_field(day: Day) -> None:
    """Before any load: each wrong field has its sentence, the first is focused; all by keyboard."""
    page = day.visit.open("/harness")
    wait_for_badge(page, "idle")
    for name, text in (("slo", "ttft_p95=30"), ("budget", "soon"), ("max_users", "many")):
        page.locator(f"#f-{name}").fill(text)
    page.keyboard.press("Enter")
    until(page, "document.getElementById('e-slo').textContent")
    told = {
        name: page.locator(f"#e-{name}").inner_text() for name in ("slo", "budget", "max_users")
    }
    assert "no readable unit" in told["slo"]
    assert "expected a number with ns, us, ms" in told["budget"]
    assert "expected a whole number from 1" in told["max_users"]
    assert page.evaluate("document.activeElement.id") == "f-slo"
    assert page.locator("#f-slo").get_attribute("aria-invalid") == "true"
    assert page.locator("#badge").inner_text() == "idle"
    assert list(day.runs.iterdir()) == []
    page.close()


def test_a_search_from_the_form_to_the_report(day: Day, figure) -> None:
    """Start, figures move, the bracket closes, the knee is said, the report opens."""
    page, folder = begun(day)
    wait_for_badge(page, "knee found")
    result = json.loads((folder / "result.json").read_text())
    knee = result["knee"]
    holds, users = knee["holds"], knee["estimate"]
    figure(f"holds {holds}, knee {users}, {knee['ci95']}, {len(result['levels'])} levels")
    assert users in (2, 3)  # two slots
    assert result["damage"] == []
    check_brackets(page)
    check_knee(page, knee)
    assert page.locator("#levels tbody tr").count() == len(result["levels"])
    assert page.locator("#by-level .stage svg").count() == 2  # TTFT and ITL
    assert page.locator("#whole .wide >> nth=0").locator("tbody tr").count() == len(LATENCIES)
    assert not page.locator("#slos").is_visible()  # each level was judged by itself
    check_links(page, result)
    page.close()


def check_brackets(page: Page) -> None:
    """What the headline said on the way are brackets of the search, the last of them closed."""
    brackets = [level["bracket"] for level in page.evaluate(LEVELS)]
    closed = {
        f"Between {low} and {high} concurrent requests so far."
        for low, high in brackets
        if None not in (low, high)
    }
    said = page.evaluate("window.said")
    headlines = {headline for _, headline in said if headline.startswith("Between")}
    assert headlines <= closed
    assert len({card for card, _ in said}) > 1
    assert None not in brackets[-1]


def check_knee(page: Page, knee: dict[str, Any]) -> None:
    """The knee of result.json, on its cards and in the sentence."""
    cards = page.locator("#cards li")
    assert f"fails at {knee['fails_by']}" in cards.filter(has_text="Holds").inner_text()
    low, high = knee["ci95"]
    assert f"95% CI: {low} to {high}" in cards.filter(has_text="Best estimate").inner_text()
    sentence = page.locator("#sentence").inner_text()
    assert f"Holds {knee['holds']} concurrent requests" in sentence


def check_links(page: Page, result: dict[str, Any]) -> None:
    """To the report, which says the same sentence, and to result.json."""
    headline = page.locator("#sentence").inner_text()
    page.get_by_role("link", name="Open the report").click()
    page.wait_for_url("**/report.html")
    assert page.locator(".badge").first.inner_text() == "knee found"
    assert page.locator("h1").inner_text() == headline
    assert page.locator("figure.drawn").count() > 5  # the charts' script may run there
    page.go_back()
    wait_for_badge(page, "knee found")
    with page.expect_download() as loading:
        page.get_by_role("link", name="result.json").click()
    assert json.loads(loading.value.path().read_text()) == result


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_is_readable(day: Day, scheme: str, width: int) -> None:
    """Contrast 4.5 everywhere, no sideways scrolling, every chart by keyboard, names for all."""
    visit = Visit(
        day.opened, day.url, viewport={"width": width, "height": 800}, color_scheme=scheme
    )
    page = visit.open("/harness")
    wait_for_badge(page, "knee found")
    page.locator("#asking").evaluate("node => { node.open = true }")
    page.locator("#figures summary").click()
    seen, low = page.evaluate(CONTRAST)
    assert low == []
    assert seen > 150
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.locator("body").press("Tab")
    reached = []
    for _ in range(60):
        name = page.evaluate(
            "(document.activeElement.getAttribute('aria-label') "
            "|| document.activeElement.textContent).slice(0, 40)"
        )
        reached.append(name)
        page.keyboard.press("Tab")
    for what in (
        "Skip to",
        "Locust's own",
        "Open the report",
        "p95 TTFT by",
        "The run over time",
        "Start",
    ):
        assert any(name.startswith(what) for name in reached), (what, reached)
    chart = page.locator("[data-name=over-time] .stage")
    chart.focus()
    page.keyboard.press("Home")
    assert ". 0:0" in (chart.get_attribute("aria-label") or "")
    named = "[...document.querySelectorAll('input,select')].filter(n => !n.labels.length).length"
    assert page.evaluate(named) == 0
    assert visit.errors == []
    visit.context.close()


def test_stop_midway_keeps_what_was_measured(day: Day) -> None:
    """The second run from the same form; Stop leaves a report of it, and the page says so."""
    page, folder = begun(day, output_tokens=LONG)
    page.get_by_role("button", name="Stop").click()
    wait_for_badge(page, "interrupted")
    assert page.locator("#sentence").inner_text().startswith("Interrupted:")
    assert json.loads((folder / "result.json").read_text())["interrupted"] is True
    run = read_run(folder)
    assert run.damage.sentences() == []  # this run's numbers count from 0, too
    assert len(run.table) > 0
    page.close()


def test_locust_s_own_page_leads_here(day: Day) -> None:
    """By a link, which covers nothing."""
    page = day.visit.open("/harness")
    page.get_by_role("link", name="Locust's own page").click()
    page.get_by_role("link", name="Open the live page").click()
    page.wait_for_url("**/harness")
    page.close()


def test_the_server_dies(day: Day) -> None:
    """The page says that the target failed, and the run folder is whole."""
    with start_engine(SEATS) as engine:
        page, folder = begun(day, host=engine.url, output_tokens=LONG)
        os.kill(engine.pid, signal.SIGKILL)
        wait_for_badge(page, "server failed")
    assert "The server failed under load" in page.locator("#sentence").inner_text()
    assert (folder / "report.html").exists()
    page.get_by_text("Start a search").click()
    page.get_by_role("button", name="Start").click()
    wait_for_badge(page, "refused")
    assert "nothing listens at" in page.locator("#sentence").inner_text()
    page.close()


def test_a_plain_test_has_its_figures(day: Day, tmp_path: Path) -> None:
    """Every latency's quantiles and the share over an SLO; "Reset" in Locust empties both."""
    asked = (
        "--autostart",
        "-u",
        8,
        "-r",
        8,
        "--slo",
        "ttft_p95=1ms",
        "--output-tokens",
        8,
        "--run-folder",
        tmp_path / "run",
    )
    with (
        start_engine(EngineConfig()) as engine,
        locust("--host", engine.url, *asked, file="chat", codes=(130,)) as url,  # it goes on
    ):
        visit = Visit(day.opened, url)
        page = visit.open("/harness")
        until(page, "document.querySelector('#slos .bad')")  # over so far
        latencies, slos = page.locator("#whole table").all()
        assert latencies.locator("tbody tr").count() == len(LATENCIES)
        assert "ttft_p95=1ms\tover so far\t100.00%\t5%" in slos.inner_text()
        page.request.post(f"{url}/stats/reset")
        until(page, "document.querySelector('#slos').textContent.includes('too few requests')")
        with page.expect_download() as loading:
            page.get_by_role("link", name="Latencies as CSV").click()
        lines = loading.value.path().read_text().splitlines()
        assert len(lines) == 1 + len(LATENCIES)
        assert visit.errors == []
        assert visit.elsewhere() == []


def test_nothing_was_asked_for_elsewhere(day: Day) -> None:
    """All of the above stayed on this server, and no page logged an error."""
    assert len(day.visit.asked) > 50
    assert day.visit.elsewhere() == []
    assert day.visit.errors == []


def test_login(day: Day, tmp_path: Path) -> None:
    """Without the password nothing is shown; with it, Locust's page and ours."""
    secret = tmp_path / "password"
    secret.write_text("correct horse\n")
    env = {"HARNESS_WEB_USER": "ops", "HARNESS_WEB_PASSWORD_FILE": str(secret)}
    with locust("--host", "http://127.0.0.1:1", env=env) as url:
        visit = Visit(day.opened, url)
        page = visit.open("/harness")
        page.wait_for_url("**/login**")
        for word in ("wrong", "correct horse"):
            page.locator("[name=username]").fill("ops")
            page.locator("[name=password]").fill(word)
            page.get_by_role("button", name="Login").click()
            if word == "wrong":
                page.get_by_text("do not belong together").wait_for()
        page.wait_for_url("**/harness")  # where the visit began
        wait_for_badge(page, "idle")
        page.get_by_role("button", name="Start").click()
        wait_for_badge(page, "refused")
        assert visit.elsewhere() == []
