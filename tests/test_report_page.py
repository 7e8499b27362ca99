"""report.html: one file, the answer first, and no text of others in it is markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from shutil import copytree
from typing import TYPE_CHECKING

import pytest
from report_folder import CLIENT, begin, found_run, make, report

from harness.charts import embed
from harness.metrics.result import Bottleneck, Knee, Result, SloCause
from harness.metrics.token_positions import PositionFigures, PositionRow
from harness.records import names
from harness.report.positions import position_sentence
from harness.run.results import write_results

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("report")  # one worker makes the folder, 3 s, for all

HOSTILE = (
    '</pre></style></title><script>alert(1)</script> & "quo\'ted" [bold] a|b {{ 7 * 7 }} \u2028 x'
)
LOADS = ("src", "srcset", "data", "poster", "action", "background", "href", "xlink:href")
MAX_BYTES = 1_500_000
VOID = ("meta", "br", "hr")


class Page(HTMLParser):
    """Elements in order, their attributes, and the text by the element that holds it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it."""
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note it; it holds nothing."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        """Each closes what was opened last."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note it."""
        if data.strip():
            self.words.setdefault(self.open[-1] if self.open else "", []).append(data)


def page(path: Path, result: Result | None = None) -> Page:
    """The folder's report, read strictly."""
    report(path, result)
    return Page((path / names.REPORT_HTML).read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of a found knee."""
    path, _ = found_run(tmp_path_factory.getbasetemp())
    return Page((path / names.REPORT_HTML).read_text())


def test_it_is_one_file(found: Page) -> None:
    """Nothing is loaded from anywhere: drawings are inline, links lead within them."""
    loaded = {value for name, value in found.attributes if name in LOADS}
    assert {value for value in loaded if not value.startswith("#")} == set()
    loading = {"link", "img", "iframe", "object", "base", "image"}
    assert loading & set(found.tags) == set()
    text = without_scripts(found.text)
    assert re.findall(r"@import|url\((?!#)", text) == []
    # the target in words, and SVG's name space
    addresses = {"http://127.0.0.1", "http://www.w3.org"}
    assert set(re.findall(r"https?://[\w.]+", text)) == addresses


def without_scripts(text: str) -> str:
    """The charts' data and what makes them answer are tested in a browser."""
    return re.sub(r"<script[^>]*>.*?</script>", "", text, flags=re.DOTALL)


def test_it_runs_no_other_script(found: Page) -> None:
    """The page's own policy names the one script, which is the charts'."""
    (policy,) = (value for _, value in found.attributes if "default-src" in str(value))
    assert policy == embed.policy()
    (code,) = re.findall(r"<script>(.*?)</script>", found.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy


def test_it_is_small(found: Page) -> None:
    """So that it can be sent by mail."""
    assert len(found.text.encode()) < MAX_BYTES


def test_the_answer_comes_first(found: Page) -> None:
    """A badge, a headline, then cards, drawings and the table; no id twice, none missing."""
    assert found.words["span"][0] == "knee found"
    assert found.words["h1"][0].startswith("Holds 50 concurrent requests: p95 TTFT ")
    assert found.tags.index("h1") < found.tags.index("ul") < found.tags.index("svg")
    assert found.tags.count("svg") == 13
    assert found.tags.count("tr") == 81
    ids = [value for name, value in found.attributes if name == "id"]
    linked = set(re.findall(r"(?:url\(|href=\")#([^\")]+)", found.text))
    assert len(ids) == len(set(ids))
    assert linked - set(ids) == set()


def test_the_sweet_spot_is_beside_the_knee(found: Page) -> None:
    """The sentence under the headline: what a level costs is read with the knee."""
    _, first, *_ = found.words["p"]  # behind the target
    assert first.startswith("Sweet spot, regardless of the SLO: ")


def test_hostile_text_is_text(tmp_path: Path, found: Page) -> None:
    """Names, a step's reason, the run's, a verdict: shown to the letter, and no element more."""
    path = tmp_path / "run"
    result = make(path, seconds=1, said=HOSTILE, fail_above=4)
    assert result is not None
    told = Bottleneck(
        "x",
        HOSTILE,
        0.9,
        evidence=(HOSTILE,),
        try_next=(HOSTILE,),
        slo="ttft_p95=1s",
        also=(SloCause("itl_p95=50ms", "y", HOSTILE, 0.5),),
    )
    first, *others = result.levels
    hostile_result = replace(
        result,
        invalid_reason=HOSTILE,
        client=CLIENT | {"cpu_s": HOSTILE},
        bottleneck=told,
        levels=(replace(first, reason=HOSTILE), *others),
    )
    hostile = page(path, hostile_result)
    assert set(hostile.tags) <= set(found.tags)
    assert "<script>alert" not in hostile.text
    said = " ".join(text for words in hostile.words.values() for text in words)
    scripts = said.count("<script>alert(1)</script>")
    assert scripts >= 10
    assert said.count("{{ 7 * 7 }}") == scripts


MISSING = {
    "run.json only": (begin, ["No GPU was read", "The server exposed no metrics"]),
    "torn records": (
        lambda path: make(path, seconds=1, levels=(2, 4), status=""),
        ["bytes of an unfinished last record were cut off", "No GPU was read"],
    ),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_said(case: str, tmp_path: Path) -> None:
    """An interrupted run's page is whole and lists what it does not know."""
    write, want = MISSING[case]
    path = tmp_path / "run"
    write(path)
    for file in names.record_files(path):
        file.write_bytes(file.read_bytes()[:-7])
    write_results(path)
    told = page(path)
    assert told.words["span"][0] == "interrupted"
    assert told.open == []
    for text in want:
        assert any(text in line for line in told.words["li"]), text


def test_cards_leave_out_what_is_not_known(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A knee without an interval has none in its card."""
    path, result = found_run(tmp_path_factory.getbasetemp())
    path = copytree(path, tmp_path / "run")
    knee = Knee(holds=50, estimate=51, fails_by=52)
    told = page(path, replace(result, knee=knee))
    lines = told.words["small"] + told.words["h1"]
    assert [line for line in lines if "nan" in line] == []


LATE = PositionFigures(
    (
        PositionRow(10, 45, 17.47, 22.8),
        PositionRow(100, 315, 17.65, 21.05, 15, 0.358, (-0.152, 0.868)),
        PositionRow(500, 1515, 18.24, 21.7, 15, 0.887, (0.391, 1.383)),
        PositionRow(1000, 3216, 18.82, 22.47, 15, -5.44, (-31.76, 20.87)),
    )
)


LATE_ROWS = (
    "| Around token | n | ITL p50, ms | ITL p95, ms | Mean ITL above the 10th's, ms |",
    "| 10 | 45 | 17.5 | 22.8 |  |",
    "| 500 | 1,515 | 18.2 | 21.7 | +0.89 (+0.39 to +1.38) |",
    "| 1,000 | 3,216 | 18.8 | 22.5 | -5 (-32 to +21) |",
)


def test_late_tokens(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A table of ITL by token position in both reports, each figure to its precision."""
    path, result = found_run(tmp_path_factory.getbasetemp())
    path = copytree(path, tmp_path / "run")
    levels = tuple(replace(level, positions=LATE) for level in result.levels)
    told = page(path, replace(result, levels=levels))
    assert "ITL by token position" in told.words["h2"]
    assert "Mean ITL above the 10th's, ms" in told.words["th"]
    short = (path / names.REPORT_MD).read_text()
    for line in (*LATE_ROWS, position_sentence(LATE)):
        assert f"\n{line}\n" in short
    assert position_sentence(LATE) in told.words["p"]
    one_row = PositionFigures(LATE.rows[:1])
    levels = tuple(replace(level, positions=one_row) for level in result.levels)
    report(path, replace(result, levels=levels))
    assert "Around token" not in (path / names.REPORT_MD).read_text()


AGENT = {
    "name": "agent", "system_tokens": 1024, "models": [["a", 3.0], ["b", 1.0]],
    "prompt": {"mean": 192, "shape": "lognormal", "cv": 0.4, "low": 16, "high": 4096},
    "output": {"mean": 96, "shape": "lognormal"}, "max_model_len": 1500,
}  # fmt: skip
SETTINGS = {
    # what run.json's config holds beside what it always has: what the page says of it
    "as given": (
        {"drive": {"workload": AGENT, "calibration": {"overhead": 7}, "headers": [["X-T", "$T"]],
                   "body": {"temperature": 0, "top_p": 0.9}},
         "clipped_of_1000": 12, "folder": "reports/a run"},
        (("agent: prompt 1,216 tokens (lognormal, cv 0.4, from 16, to 4096; 1,024 of a shared "
          "system message; 7 of the chat template), output 96 tokens (lognormal), 12 of 1,000 "
          "requests clipped to 1,500 tokens"), "temperature 0, top_p 0.9", "X-T", "a 3, b 1"),
        "vllm-harness report 'reports/a run'",
    ),
    "nothing more": (
        {}, ("chat: prompt 256 tokens (fixed), output 48 tokens (normal)",),
        "vllm-harness report {}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTINGS)
def test_what_was_sent_and_how_to_report_it_again(case: str, tmp_path: Path) -> None:
    """Prompts with all that they hold; the folder by the path that the run was given."""
    config, said, again = SETTINGS[case]
    folder = begin(tmp_path / "run")
    info = json.loads((tmp_path / "run" / names.RUN).read_text())
    info["config"] |= config
    folder.write_json(names.RUN, info)
    told = page(tmp_path / "run")
    for line in said:
        assert told.words["dd"].count(line) == 1, line
    pasted = "".join(told.words["pre"]).splitlines()
    assert pasted[-1] == again.format(tmp_path / "run")
    assert re.search(r"\npre \{[^}]*white-space:pre-wrap", told.text)
